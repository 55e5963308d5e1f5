// SPDX-License-Identifier: Apache-2.0
// Loads from damaged segments, without memory, by many threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/db/support/restore_support.h"

namespace stepwell::db::restore_tests {
namespace {

// Two arrays of four chunks each in segment 1, raw and compressed.
class RestoreDamageTest : public RestoreTest {
 protected:
  void SetUp() override {
    RestoreTest::SetUp();
    if (IsSkipped()) return;
    segments_ = std::make_unique<Segments>(store_);
    Prng random(11);
    for (const format::CodecId codec : {format::CodecId::kRaw, format::CodecId::kBloscLz4}) {
      Array array = MakeArray(random, codec == format::CodecId::kRaw ? "raw" : "blosc",
                              format::DType::kFloat32, {16, 500}, {4, 500}, codec, segments_.get());
      leaves_.push_back(array.leaf);
    }
    segments_->Write();
  }

  Status LoadAll() {
    std::vector<std::string> out(leaves_.size(), std::string(16 * 500 * 4, '\0'));
    std::vector<LoadRequest> requests;
    for (size_t i = 0; i < leaves_.size(); ++i) {
      requests.push_back({&leaves_[i],
                          format::WholeArray(leaves_[i].shape),
                          reinterpret_cast<std::byte*>(out[i].data()),
                          {}});
    }
    return MakeRestorer().Load(requests).status();
  }

  std::vector<BadChunk> CheckAll() {
    std::vector<BadChunk> bad;
    uint64_t done = 0;
    const Status status = MakeRestorer().Check(
        leaves_, [&bad](const BadChunk& chunk) { bad.push_back(chunk); },
        [&done](uint64_t bytes) {
          EXPECT_GT(bytes, done);
          done = bytes;
          return true;
        });
    EXPECT_TRUE(status.ok()) << status.ToString();
    return bad;
  }

  static std::string Message(const std::string& path, const format::LeafRecord& leaf,
                             uint64_t chunk) {
    return StrCat(path, ": offset ", leaf.chunks[chunk].offset_bytes, ": leaf ", LeafName(leaf),
                  " chunk ", chunk, ": ");
  }
  std::string MessageOf(size_t leaf, uint64_t chunk) const {
    const uint64_t segment = leaves_[leaf].chunks[chunk].segment;
    return Message(SegmentPath(store_, segment), leaves_[leaf], chunk);
  }

  std::unique_ptr<Segments> segments_;
  std::vector<format::LeafRecord> leaves_;
};

TEST_P(RestoreDamageTest, AFlippedBitIsNamedAndNothingElseFails) {
  ASSERT_TRUE(LoadAll().ok());
  EXPECT_TRUE(CheckAll().empty());
  Prng random(5);
  for (int round = 0; round < 20; ++round) {
    const size_t leaf = random.Below(2);
    const uint64_t chunk = random.Below(4);
    const format::ChunkRecord& record = leaves_[leaf].chunks[chunk];
    char& byte =
        segments_->bytes(record.segment)[record.offset_bytes + random.Below(record.stored_bytes)];
    byte = static_cast<char>(byte ^ (1 << random.Below(8)));
    const char flipped = byte;
    segments_->Write();
    const Status status = LoadAll();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status.ToString();
    EXPECT_THAT(status.message(), HasSubstr(MessageOf(leaf, chunk)));
    const std::vector<BadChunk> bad = CheckAll();
    ASSERT_EQ(bad.size(), 1U);
    EXPECT_EQ(bad[0].leaf, &leaves_[leaf]);
    EXPECT_EQ(bad[0].chunk_index, chunk);
    EXPECT_EQ(bad[0].payload, &record);
    EXPECT_EQ(bad[0].status.code(), StatusCode::kDataLoss);
    EXPECT_THAT(bad[0].status.message(), HasSubstr(MessageOf(leaf, chunk)));
    for (int bit = 0; bit < 8; ++bit) {  // back again
      byte = static_cast<char>(flipped ^ (1 << bit));
      segments_->Write();
      if (LoadAll().ok()) break;
    }
    ASSERT_TRUE(LoadAll().ok());
  }
}

TEST_P(RestoreDamageTest, VerifyNamesAChunkOfAnUnknownCodec) {
  leaves_[0].chunks[0].codec = format::CodecId{99};
  format::Commit commit;
  commit.step.step = 7;
  commit.step.commit = 1;
  commit.records = leaves_;
  std::sort(commit.records.begin(), commit.records.end(),
            [](const auto& a, const auto& b) { return a.key < b.key; });
  format::FrameHeader header;
  header.commit = 1;
  std::string& bytes = segments_->bytes(1);
  bytes.resize(AlignUp(bytes.size(), 4096));
  format::FramePlace place;
  place.segment = 1;
  place.offset_bytes = bytes.size();
  const std::string payload = format::EncodeCommit(commit);
  place.length_bytes = static_cast<uint32_t>(format::kFrameHeaderBytes + payload.size());
  bytes += format::EncodeFrame(header, payload, 4096, &place.crc);
  segments_->Write();
  Restorer& restorer = MakeRestorer();
  const auto report = VerifySteps({{commit.step, place}}, *files_, restorer, {});
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  ASSERT_EQ(report->problems.size(), 1U);
  const VerifyProblem& problem = report->problems[0];
  EXPECT_THAT(problem.message, HasSubstr("unknown codec 99"));
  const format::ChunkRecord& chunk = leaves_[0].chunks[0];
  EXPECT_EQ(problem.file, files_->PathOf(chunk.segment));
  EXPECT_EQ(problem.offset_bytes, chunk.offset_bytes);
}

TEST_P(RestoreDamageTest, TheFirstErrorInTheOrderOfTheFileIsReported) {
  const format::ChunkRecord* first = nullptr;
  std::string message;
  for (size_t leaf = 0; leaf < 2; ++leaf) {
    for (uint64_t chunk = 0; chunk < 4; ++chunk) {
      const format::ChunkRecord& record = leaves_[leaf].chunks[chunk];
      char& byte = segments_->bytes(record.segment)[record.offset_bytes];
      byte = static_cast<char>(byte ^ 1);
      const auto place = [](const format::ChunkRecord& r) {
        return std::pair(r.segment, r.offset_bytes);
      };
      if (first != nullptr && place(*first) < place(record)) continue;
      first = &record;
      message = MessageOf(leaf, chunk);
    }
  }
  segments_->Write();
  for (int round = 0; round < 5; ++round) {
    EXPECT_THAT(LoadAll().message(), HasSubstr(message));
  }
  EXPECT_EQ(CheckAll().size(), 8U);
}

TEST_P(RestoreDamageTest, AMisdirectedChunkIsCaught) {
  // Each one is intact, with its own checksum behind it, but not the one that belongs there.
  format::LeafRecord& leaf = leaves_[0];
  const format::ChunkRecord a = leaf.chunks[1];
  const format::ChunkRecord b = leaf.chunks[2];
  std::string& in_a = segments_->bytes(a.segment);
  std::string& in_b = segments_->bytes(b.segment);
  const std::string bytes_a = in_a.substr(a.offset_bytes, a.stored_bytes);
  const std::string bytes_b = in_b.substr(b.offset_bytes, b.stored_bytes);
  in_a.replace(a.offset_bytes, a.stored_bytes, bytes_b);
  in_b.replace(b.offset_bytes, b.stored_bytes, bytes_a);
  segments_->Write();
  EXPECT_EQ(LoadAll().code(), StatusCode::kDataLoss);
  EXPECT_EQ(CheckAll().size(), 2U);
}

TEST_P(RestoreDamageTest, AFileThatEndsTooEarly) {
  // The last chunk of some segment is cut in half; those before it are good.
  size_t last_leaf = 0;
  uint64_t last_chunk = 0;
  for (size_t leaf = 0; leaf < 2; ++leaf) {
    for (uint64_t chunk = 0; chunk < 4; ++chunk) {
      const format::ChunkRecord& record = leaves_[leaf].chunks[chunk];
      const format::ChunkRecord& last = leaves_[last_leaf].chunks[last_chunk];
      if (record.segment != last.segment || record.offset_bytes <= last.offset_bytes) continue;
      last_leaf = leaf;
      last_chunk = chunk;
    }
  }
  const format::ChunkRecord& last = leaves_[last_leaf].chunks[last_chunk];
  for (const uint64_t kept : {last.stored_bytes / 2, uint32_t{1}, last.stored_bytes - 1}) {
    std::filesystem::resize_file(SegmentPath(store_, last.segment), last.offset_bytes + kept);
    const Status status = LoadAll();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status.ToString();
    EXPECT_THAT(status.message(), HasSubstr(MessageOf(last_leaf, last_chunk)));
    EXPECT_THAT(status.message(), HasSubstr("the file ends"));
    EXPECT_EQ(CheckAll().size(), 1U);
    segments_->Write();
  }
}

TEST_P(RestoreDamageTest, AMissingSegmentIsNotFound) {
  const format::ChunkRecord& record = leaves_[0].chunks[0];
  const std::string path = SegmentPath(store_, record.segment);
  std::filesystem::remove(path);
  size_t lost = 0;
  for (const format::LeafRecord& leaf : leaves_) {
    for (const format::ChunkRecord& chunk : leaf.chunks) lost += chunk.segment == record.segment;
  }
  const Status status = LoadAll();
  EXPECT_EQ(status.code(), StatusCode::kNotFound) << status.ToString();
  EXPECT_THAT(status.message(), HasSubstr(path));
  EXPECT_EQ(CheckAll().size(), lost);
}

TEST_P(RestoreDamageTest, CheckGoesOnPastDamagedRecordsAndStopsWhenAsked) {
  leaves_[0].chunks[2].logical_bytes = 1;
  leaves_.push_back(leaves_[1]);
  leaves_[2].chunk_count = 17;
  std::vector<BadChunk> bad = CheckAll();
  ASSERT_EQ(bad.size(), 2U);
  EXPECT_EQ(bad[0].leaf, &leaves_[0]);
  EXPECT_EQ(bad[0].chunk_index, 2U);
  EXPECT_EQ(bad[1].leaf, &leaves_[2]);
  EXPECT_EQ(bad[1].payload, nullptr);
  const Status status = MakeRestorer().Check(
      leaves_, [](const BadChunk&) {}, [](uint64_t) { return false; });
  EXPECT_EQ(status.code(), StatusCode::kCancelled);
}

TEST_P(RestoreDamageTest, NoMemoryToLoadIntoIsTheCallersMistake) {
  const LoadRequest request{&leaves_[0], format::WholeArray(leaves_[0].shape), nullptr, {}};
  EXPECT_EQ(MakeRestorer().Load({&request, 1}).status().code(), StatusCode::kInvalidArgument);
}

TEST_P(RestoreDamageTest, ManyThreadsLoadAtOnce) {
  Restorer& restorer = MakeRestorer();
  std::vector<std::string> out(4);
  std::vector<std::thread> threads;
  for (std::string& memory : out) {
    threads.emplace_back([this, &restorer, &memory] {
      for (int round = 0; round < 20; ++round) {
        memory.assign(16 * 500 * 4, '\0');
        const LoadRequest request{&leaves_[0],
                                  format::WholeArray(leaves_[0].shape),
                                  reinterpret_cast<std::byte*>(memory.data()),
                                  {}};
        EXPECT_TRUE(restorer.Load({&request, 1}).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& memory : out) EXPECT_EQ(memory, out[0]);
}

INSTANTIATE_TEST_SUITE_P(Disks, RestoreDamageTest, testing::ValuesIn(kSetups), SetupName);

}  // namespace
}  // namespace stepwell::db::restore_tests
