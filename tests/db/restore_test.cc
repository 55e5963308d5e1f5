// SPDX-License-Identifier: Apache-2.0
// The restore executor on segments built by hand: every box, stride, type and codec comes back as
// it was; whatever is wrong is said with file, offset and leaf.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/db/support/restore_support.h"

namespace stepwell::db::restore_tests {
namespace {

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
    std::vector<TestRequest> targets;
    std::vector<const Array*> sources;
    const uint64_t target_count = 1 + random.Below(20);
    for (uint64_t i = 0; i < target_count; ++i) {
      sources.push_back(&arrays[random.Below(arrays.size())]);
      targets.push_back(MakeTestRequest(random, *sources.back()));
    }
    std::vector<LoadRequest> requests;
    for (TestRequest& target : targets) {
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
  stored.logical_bytes = 2 * text.size() + 3;
  stored.chunk_count = 3;
  for (const std::string& part : {text, std::string("abc"), text}) {
    stored.chunks.push_back(segments.Add(format::CodecId::kLz4Frame, 1, AsBytes(part), 2, 1));
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

INSTANTIATE_TEST_SUITE_P(Disks, RestoreTest, testing::ValuesIn(kSetups), SetupName);

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
}  // namespace stepwell::db::restore_tests
