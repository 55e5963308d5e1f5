// SPDX-License-Identifier: Apache-2.0
// The restore executor on segments built by hand: every box, stride, type and codec comes back as
// it was; whatever is wrong is said with file, offset and leaf.
#include "db/read/restore.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "db/layout.h"
#include "db/read/restore_plan.h"
#include "db/read/step_reader.h"
#include "io/open_disk.h"
#include "tests/prng.h"

namespace stepwell::db {
namespace {

using testing::HasSubstr;

std::string RestoreKeyOf(const std::string& name) {
  format::PathComponent component;
  component.name = name;
  return format::EncodeLeafKey("params", {component}).value();
}

// Segments in memory until Write().
class Segments {
 public:
  explicit Segments(std::string store) : store_(std::move(store)) {}

  format::ChunkRecord Add(format::CodecId codec, size_t item_bytes, ConstBytes logical,
                          uint64_t segment, size_t alignment) {
    std::string payload(format::PayloadBytesMax(codec, logical.size()), '\0');
    const Result<format::Payload> encoded = format::EncodePayload(
        codec, item_bytes, logical, {reinterpret_cast<std::byte*>(payload.data()), payload.size()});
    EXPECT_TRUE(encoded.ok());
    std::string& bytes = bytes_[segment];
    bytes.resize(AlignUp(std::max<size_t>(bytes.size(), 4096), alignment));
    format::ChunkRecord record;
    record.segment = segment;
    record.offset_bytes = bytes.size();
    record.stored_bytes = static_cast<uint32_t>(encoded->size_bytes);
    record.logical_bytes = logical.size();
    record.crc = encoded->crc;
    bytes += payload.substr(0, encoded->size_bytes);
    return record;
  }

  void Write() {
    std::filesystem::create_directories(SegmentsPath(store_));
    for (auto& [segment, bytes] : bytes_) {
      bytes.resize(AlignUp(bytes.size(), 4096));
      std::ofstream file(SegmentPath(store_, segment), std::ios::binary);
      file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    }
  }

  std::string& bytes(uint64_t segment) { return bytes_[segment]; }

 private:
  const std::string store_;
  std::map<uint64_t, std::string> bytes_;
};

// An array as it lies in memory, C order.
struct Array {
  format::LeafRecord leaf;
  const format::DTypeInfo* dtype = nullptr;
  std::string bytes;
};

Array MakeArray(Prng& random, const std::string& name, format::DType type, format::Shape shape,
                format::Shape chunk_shape, format::CodecId codec, Segments* segments) {
  Array array;
  array.dtype = format::FindDType(type);
  array.leaf.key = RestoreKeyOf(name);
  array.leaf.dtype = type;
  array.leaf.shape = std::move(shape);
  array.leaf.chunk_shape = std::move(chunk_shape);
  array.leaf.codec = codec;
  const size_t item_bytes = array.dtype->item_bytes;
  array.bytes.resize(*format::ElementCount(array.leaf.shape, item_bytes) * item_bytes);
  for (char& byte : array.bytes) {
    if (type == format::DType::kBool) {
      byte = static_cast<char>(random.Below(2));
    } else if (type == format::DType::kInt4) {
      byte = static_cast<char>(random.Below(16));
    } else {
      byte = static_cast<char>(random.Next() & (codec == format::CodecId::kRaw ? 0xFF : 0x0F));
    }
  }
  const format::LeafRecord& leaf = array.leaf;
  array.leaf.chunk_count = format::ChunkCount(leaf.shape, leaf.chunk_shape);
  const std::vector<int64_t> strides = format::CStrides(leaf.shape, item_bytes);
  const format::ArrayView view{AsBytes(array.bytes).data(), leaf.shape, strides};
  std::vector<std::byte> chunk(format::ChunkBytes(leaf.chunk_shape, item_bytes));
  for (uint64_t i = 0; i < leaf.chunk_count; ++i) {
    format::GatherChunk(view, *array.dtype, leaf.chunk_shape, i, chunk.data());
    array.leaf.chunks.push_back(
        segments->Add(codec, item_bytes, chunk, 1 + random.Below(3), random.Coin() ? 4096 : 1));
  }
  return array;
}

// A request and its memory, which is larger than what the request may touch.
struct Target {
  LoadRequest request;
  std::string memory;
  size_t origin = 0;  // of element 0 in `memory`
};

// `request.out` is set last, when the Target does not move any more.
Target MakeTarget(Prng& random, const Array& array) {
  Target target;
  target.request.leaf = &array.leaf;
  const size_t rank = array.leaf.shape.size();
  format::Box& box = target.request.box;
  box = format::WholeArray(array.leaf.shape);
  for (size_t axis = 0; axis < rank && !random.OneIn(4); ++axis) {
    const uint64_t a = random.Below(box.stop[axis] + 1);
    const uint64_t b = random.Below(box.stop[axis] + 1);
    box.start[axis] = std::min(a, b);
    box.stop[axis] = std::max(a, b);
  }
  // Axes in any order, of either direction, with gaps.
  std::vector<size_t> order(rank);
  for (size_t axis = 0; axis < rank; ++axis) order[axis] = axis;
  const bool plain = random.Coin();
  if (!plain) {
    for (size_t i = rank; i > 1; --i) std::swap(order[i - 1], order[random.Below(i)]);
  }
  std::vector<int64_t> strides(rank);
  int64_t stride = array.dtype->item_bytes;
  int64_t origin = 0;
  for (size_t i = rank; i-- > 0;) {
    const size_t axis = order[i];
    const auto extent = static_cast<int64_t>(box.stop[axis] - box.start[axis]);
    if (!plain && random.OneIn(4)) stride += array.dtype->item_bytes;
    strides[axis] = stride;
    stride *= std::max<int64_t>(1, extent);
    if (!plain && random.OneIn(3) && extent > 0) {
      origin += strides[axis] * (extent - 1);
      strides[axis] = -strides[axis];
    }
  }
  target.memory.assign(static_cast<size_t>(stride) + 64, '\x5A');
  target.origin = 32 + static_cast<size_t>(origin);
  if (!plain || random.Coin()) target.request.strides_bytes = std::move(strides);
  return target;
}

// `array`'s box copied element by element into `target`'s memory as it was.
std::string Expected(const Array& array, const Target& target) {
  std::string memory(target.memory.size(), '\x5A');
  const format::Box& box = target.request.box;
  const size_t rank = array.leaf.shape.size();
  const size_t item_bytes = array.dtype->item_bytes;
  format::Shape extents(rank);
  uint64_t count = 1;
  for (size_t axis = 0; axis < rank; ++axis) {
    extents[axis] = box.stop[axis] - box.start[axis];
    count *= extents[axis];
  }
  const std::vector<int64_t> from_strides = format::CStrides(array.leaf.shape, item_bytes);
  std::vector<int64_t> to_strides = target.request.strides_bytes;
  if (to_strides.empty()) to_strides = format::CStrides(extents, item_bytes);
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t rest = i;
    int64_t from = 0;
    auto to = static_cast<int64_t>(target.origin);
    for (size_t axis = rank; axis-- > 0;) {
      const auto at = static_cast<int64_t>(rest % extents[axis]);
      rest /= extents[axis];
      from += (static_cast<int64_t>(box.start[axis]) + at) * from_strides[axis];
      to += at * to_strides[axis];
    }
    std::memcpy(memory.data() + to, array.bytes.data() + from, item_bytes);
  }
  return memory;
}

struct Setup {
  io::DiskKind disk;
  bool threads;
};

class RestoreTest : public testing::TestWithParam<Setup> {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "/restore_test_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    store_ = pattern;
    if (!MakeDisk().ok()) GTEST_SKIP() << MakeDisk().status().ToString();
    if (GetParam().threads) {
      executor_ = *io::MakeThreadPool(2);
    } else {
      executor_ = std::make_unique<io::InlineExecutor>();
    }
  }
  void TearDown() override { std::filesystem::remove_all(store_); }

  static Result<std::unique_ptr<io::Disk>> MakeDisk() {
    io::DiskOptions options;
    options.kind = GetParam().disk;
    return io::OpenDisk(options);
  }

  // A fresh one, as after a new open.
  Restorer& MakeRestorer() {
    restorer_.reset();
    files_ = std::make_unique<SegmentFiles>(io::LocalFileSystem(), store_);
    restorer_ = std::make_unique<Restorer>(files_.get(), executor_.get(), MakeDisk);
    return *restorer_;
  }

  std::string store_;
  std::unique_ptr<io::Executor> executor_;
  std::unique_ptr<SegmentFiles> files_;
  std::unique_ptr<Restorer> restorer_;
};

TEST_P(RestoreTest, LoadsWhatWasStored) {
  constexpr format::DType kTypes[] = {format::DType::kFloat32, format::DType::kBool,
                                      format::DType::kInt4,    format::DType::kBFloat16,
                                      format::DType::kUInt8,   format::DType::kComplex128};
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed);
    Segments segments(store_);
    std::vector<Array> arrays;
    for (int i = 0; i < 12; ++i) {
      format::Shape shape(random.Below(4));
      format::Shape chunk_shape(shape.size());
      for (size_t axis = 0; axis < shape.size(); ++axis) {
        shape[axis] = random.OneIn(20) ? 0 : 1 + random.Below(60);
        chunk_shape[axis] = random.OneIn(3) ? std::max<uint64_t>(1, shape[axis])
                                            : 1 + random.Below(shape[axis] + 4);
      }
      arrays.push_back(MakeArray(
          random, StrCat("w", i), kTypes[random.Below(std::size(kTypes))], shape, chunk_shape,
          random.Coin() ? format::CodecId::kRaw : format::CodecId::kBloscLz4, &segments));
    }
    segments.Write();
    std::vector<Target> targets;
    std::vector<const Array*> sources;
    const uint64_t target_count = 1 + random.Below(20);
    for (uint64_t i = 0; i < target_count; ++i) {
      sources.push_back(&arrays[random.Below(arrays.size())]);
      targets.push_back(MakeTarget(random, *sources.back()));
    }
    std::vector<LoadRequest> requests;
    for (Target& target : targets) {
      target.request.out = reinterpret_cast<std::byte*>(target.memory.data()) + target.origin;
      requests.push_back(target.request);
    }
    Restorer& restorer = MakeRestorer();
    const Result<LoadStats> stats = restorer.Load(requests);
    ASSERT_TRUE(stats.ok()) << stats.status().ToString();
    for (size_t i = 0; i < targets.size(); ++i) {
      ASSERT_TRUE(targets[i].memory == Expected(*sources[i], targets[i])) << "request " << i;
    }
    const Result<RestorePlan> plan = PlanRestore(requests);
    EXPECT_EQ(stats->bytes_needed, plan->bytes_needed);
    EXPECT_EQ(stats->reads, plan->reads.size());
    EXPECT_GE(stats->bytes_read, plan->bytes_read);
    EXPECT_LE(stats->bytes_read, plan->bytes_read + plan->reads.size() * 8192);
  }
}

TEST_P(RestoreTest, ManyReadsOfLargeChunks) {
  Prng random(7);
  Segments segments(store_);
  const Array raw = MakeArray(random, "raw", format::DType::kFloat32, {40, 256, 1024},
                              {1, 256, 1024}, format::CodecId::kRaw, &segments);
  const Array blosc = MakeArray(random, "blosc", format::DType::kFloat32, {40, 256, 1024},
                                {1, 256, 1024}, format::CodecId::kBloscLz4, &segments);
  segments.Write();
  std::vector<std::string> out(2, std::string(raw.bytes.size(), '\0'));
  const auto memory = [&](size_t i) { return reinterpret_cast<std::byte*>(out[i].data()); };
  const std::vector<LoadRequest> requests = {
      {&raw.leaf, format::WholeArray(raw.leaf.shape), memory(0), {}},
      {&blosc.leaf, format::WholeArray(blosc.leaf.shape), memory(1), {}}};
  Restorer& restorer = MakeRestorer();
  for (int round = 0; round < 3; ++round) {
    out[0].assign(raw.bytes.size(), '\0');
    out[1].assign(raw.bytes.size(), '\0');
    const Result<LoadStats> stats = restorer.Load(requests);
    ASSERT_TRUE(stats.ok()) << stats.status().ToString();
    EXPECT_TRUE(out[0] == raw.bytes);
    EXPECT_TRUE(out[1] == blosc.bytes);
    EXPECT_EQ(stats->bytes_out, 2 * raw.bytes.size());
  }
}

TEST_P(RestoreTest, OneReadNeedsNoDiskOfItsOwn) {
  Prng random(4);
  Segments segments(store_);
  const Array array = MakeArray(random, "w", format::DType::kFloat32, {1024}, {1024},
                                format::CodecId::kRaw, &segments);
  segments.Write();
  SegmentFiles files(io::LocalFileSystem(), store_);
  Restorer restorer(&files, executor_.get(), []() -> Result<std::unique_ptr<io::Disk>> {
    return UnavailableError("a disk was asked for");
  });
  std::string out(array.bytes.size(), '\0');
  const LoadRequest request = {&array.leaf,
                               format::WholeArray(array.leaf.shape),
                               reinterpret_cast<std::byte*>(out.data()),
                               {}};
  for (int round = 0; round < 2; ++round) {
    const Result<LoadStats> stats = restorer.Load({&request, 1});
    ASSERT_TRUE(stats.ok()) << stats.status().ToString();
    EXPECT_EQ(stats->reads, 1U);
    EXPECT_TRUE(out == array.bytes);
  }
}

TEST_P(RestoreTest, SmallLeavesComeInFewReads) {
  Prng random(3);
  Segments segments(store_);
  std::vector<Array> arrays;
  for (int i = 0; i < 500; ++i) {
    arrays.push_back(MakeArray(random, StrCat("w", i), format::DType::kFloat32, {1024}, {1024},
                               format::CodecId::kRaw, &segments));
  }
  segments.Write();
  std::vector<std::string> out(arrays.size(), std::string(4096, '\0'));
  std::vector<LoadRequest> requests;
  for (size_t i = 0; i < arrays.size(); ++i) {
    requests.push_back({&arrays[i].leaf,
                        format::WholeArray({{1024}}),
                        reinterpret_cast<std::byte*>(out[i].data()),
                        {}});
  }
  const Result<LoadStats> stats = MakeRestorer().Load(requests);
  ASSERT_TRUE(stats.ok()) << stats.status().ToString();
  // For each of the three segments its bytes over the size of a read, and a rest.
  EXPECT_LE(stats->reads, 3 + stats->bytes_read / (kSmallPlanReadBytesMax / 2));
  for (size_t i = 0; i < arrays.size(); ++i) EXPECT_EQ(out[i], arrays[i].bytes);
}

TEST_P(RestoreTest, ValuesInlineAndInChunks) {
  Segments segments(store_);
  const std::string text(5000, 'x');
  format::LeafRecord stored;
  stored.key = RestoreKeyOf("text");
  stored.kind = format::LeafKind::kValue;
  stored.codec = format::CodecId::kLz4Frame;
  stored.logical_bytes = 2 * text.size() + 3;
  stored.chunk_count = 3;
  for (const std::string& part : {text, std::string("abc"), text}) {
    stored.chunks.push_back(segments.Add(stored.codec, 1, AsBytes(part), 2, 1));
  }
  segments.Write();
  format::LeafRecord inlined;
  inlined.key = RestoreKeyOf("number");
  inlined.kind = format::LeafKind::kValue;
  inlined.inline_value = "42";
  inlined.logical_bytes = 2;
  std::string a(stored.logical_bytes, '\0');
  std::string b(2, '\0');
  const std::vector<LoadRequest> requests = {
      {&stored, {}, reinterpret_cast<std::byte*>(a.data()), {}},
      {&inlined, {}, reinterpret_cast<std::byte*>(b.data()), {}}};
  const Result<LoadStats> stats = MakeRestorer().Load(requests);
  ASSERT_TRUE(stats.ok()) << stats.status().ToString();
  EXPECT_EQ(a, text + "abc" + text);
  EXPECT_EQ(b, "42");
  // Without reads there is no disk either.
  EXPECT_EQ(MakeRestorer().Load(std::span(requests).subspan(1))->reads, 0U);
}

// Two arrays of four chunks each in segment 1, raw and compressed.
class DamageTest : public RestoreTest {
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

TEST_P(DamageTest, AFlippedBitIsNamedAndNothingElseFails) {
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
    EXPECT_EQ(bad[0].record, &record);
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

// It has no chunk to name: that once ended the process.
TEST_P(DamageTest, VerifyNamesTheCommitOfALeafWithAnUnknownCodec) {
  leaves_[0].codec = format::CodecId{99};
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
  EXPECT_EQ(problem.file, files_->PathOf(1));
  EXPECT_EQ(problem.offset_bytes, place.offset_bytes);
}

TEST_P(DamageTest, TheFirstErrorInTheOrderOfTheFileIsReported) {
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

TEST_P(DamageTest, AMisdirectedChunkIsCaught) {
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

TEST_P(DamageTest, AFileThatEndsTooEarly) {
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

TEST_P(DamageTest, AMissingSegmentIsNotFound) {
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

TEST_P(DamageTest, CheckGoesOnPastDamagedRecordsAndStopsWhenAsked) {
  leaves_[0].chunks[2].logical_bytes = 1;
  leaves_.push_back(leaves_[1]);
  leaves_[2].chunk_count = 17;
  std::vector<BadChunk> bad = CheckAll();
  ASSERT_EQ(bad.size(), 2U);
  EXPECT_EQ(bad[0].leaf, &leaves_[0]);
  EXPECT_EQ(bad[0].chunk_index, 2U);
  EXPECT_EQ(bad[1].leaf, &leaves_[2]);
  EXPECT_EQ(bad[1].record, nullptr);
  const Status status = MakeRestorer().Check(
      leaves_, [](const BadChunk&) {}, [](uint64_t) { return false; });
  EXPECT_EQ(status.code(), StatusCode::kCancelled);
}

TEST_P(DamageTest, NoMemoryToLoadIntoIsTheCallersMistake) {
  const LoadRequest request{&leaves_[0], format::WholeArray(leaves_[0].shape), nullptr, {}};
  EXPECT_EQ(MakeRestorer().Load({&request, 1}).status().code(), StatusCode::kInvalidArgument);
}

TEST_P(DamageTest, ManyThreadsLoadAtOnce) {
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

std::string SetupName(const testing::TestParamInfo<Setup>& info) {
  return StrCat(info.param.disk == io::DiskKind::kUring ? "Uring" : "Posix",
                info.param.threads ? "Threads" : "Inline");
}

constexpr Setup kSetups[] = {{io::DiskKind::kPosix, false},
                             {io::DiskKind::kPosix, true},
                             {io::DiskKind::kUring, false},
                             {io::DiskKind::kUring, true}};
INSTANTIATE_TEST_SUITE_P(Disks, RestoreTest, testing::ValuesIn(kSetups), SetupName);
INSTANTIATE_TEST_SUITE_P(Disks, DamageTest, testing::ValuesIn(kSetups), SetupName);

TEST(SegmentNames, AreFixed) {
  EXPECT_EQ(SegmentPath("run", 1), "run/segments/0000000001.seg");
  EXPECT_EQ(SegmentPath("run", 12345678901), "run/segments/12345678901.seg");
  EXPECT_EQ(ParseSegmentName("0000000001.seg"), 1U);
  EXPECT_EQ(ParseSegmentName("12345678901.seg"), 12345678901U);
  for (const char* name : {"", ".seg", "1.seg", "0000000001.se", "000000000x.seg", "-000000001.seg",
                           "+000000001.seg", "00000000001.seg", "99999999999999999999.seg",
                           "18446744073709551615.seg", "0000000001.seg.tmp"}) {
    EXPECT_EQ(ParseSegmentName(name), std::nullopt) << name;
  }
}

}  // namespace
}  // namespace stepwell::db
