// SPDX-License-Identifier: Apache-2.0
// The planner against a naive one, on random leaves, boxes and places; and on damaged records.
#include "db/read/restore_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "tests/prng.h"

namespace stepwell::db {
namespace {

std::string PlanKeyOf(const std::string& name) {
  format::PathComponent component;
  component.name = name;
  return format::EncodeLeafKey("params", {component}).value();
}

format::LeafRecord ArrayLeaf(const std::string& name, format::Shape shape,
                             format::Shape chunk_shape) {
  format::LeafRecord leaf;
  leaf.key = PlanKeyOf(name);
  leaf.dtype = format::DType::kFloat32;
  leaf.shape = std::move(shape);
  leaf.chunk_shape = std::move(chunk_shape);
  leaf.chunk_count = format::ChunkCount(leaf.shape, leaf.chunk_shape);
  const uint64_t bytes = format::ChunkBytes(leaf.chunk_shape, 4);
  for (uint64_t i = 0; i < leaf.chunk_count; ++i) {
    format::ChunkRecord chunk;
    chunk.logical_bytes = static_cast<uint32_t>(bytes);
    chunk.stored_bytes = static_cast<uint32_t>(bytes + format::kCrcBytes);
    chunk.crc = static_cast<uint32_t>(i);
    leaf.chunks.push_back(chunk);
  }
  return leaf;
}

// Gives every chunk of every leaf a place, in random order, with random gaps, in a few segments.
void Place(Prng& random, std::vector<format::LeafRecord>* leaves) {
  std::vector<format::ChunkRecord*> all;
  for (format::LeafRecord& leaf : *leaves) {
    for (format::ChunkRecord& chunk : leaf.chunks) all.push_back(&chunk);
  }
  if (random.Coin()) {
    for (size_t i = all.size(); i > 1; --i) std::swap(all[i - 1], all[random.Below(i)]);
  }
  uint64_t segment = 1;
  uint64_t offset = 4096;
  for (format::ChunkRecord* chunk : all) {
    if (random.OneIn(20)) {
      ++segment;
      offset = 4096;
    }
    if (random.OneIn(4)) offset += random.Below(2 * kReadGapBytesMax);
    if (random.OneIn(4)) offset = AlignUp(offset, 4096);
    if (random.OneIn(10)) offset += kReadGapBytesMax;
    chunk->segment = segment;
    chunk->offset_bytes = offset;
    offset += chunk->stored_bytes;
  }
}

LoadRequest RandomRequest(Prng& random, const format::LeafRecord& leaf) {
  LoadRequest request;
  request.leaf = &leaf;
  request.box = format::WholeArray(leaf.shape);
  if (random.OneIn(3)) return request;
  for (size_t axis = 0; axis < leaf.shape.size(); ++axis) {
    const uint64_t a = random.Below(leaf.shape[axis] + 1);
    const uint64_t b = random.Below(leaf.shape[axis] + 1);
    request.box.start[axis] = std::min(a, b);
    request.box.stop[axis] = std::max(a, b);
  }
  return request;
}

bool Overlaps(const format::Box& box, const format::LeafRecord& leaf, uint64_t chunk) {
  const format::Shape origin = format::ChunkOrigin(chunk, leaf.shape, leaf.chunk_shape);
  for (size_t axis = 0; axis < leaf.shape.size(); ++axis) {
    const uint64_t stop = std::min(origin[axis] + leaf.chunk_shape[axis], leaf.shape[axis]);
    if (std::max(origin[axis], box.start[axis]) >= std::min(stop, box.stop[axis])) return false;
  }
  return true;
}

using Where = std::tuple<uint64_t, uint64_t>;  // segment, offset

// Every chunk of every leaf is asked whether it meets the box of a request.
std::map<Where, std::set<uint32_t>> NaiveWants(const std::vector<LoadRequest>& requests) {
  std::map<Where, std::set<uint32_t>> wants;
  for (uint32_t i = 0; i < requests.size(); ++i) {
    const format::LeafRecord& leaf = *requests[i].leaf;
    for (uint64_t chunk = 0; chunk < leaf.chunk_count; ++chunk) {
      if (!Overlaps(requests[i].box, leaf, chunk)) continue;
      const format::ChunkRecord& record = leaf.chunks[chunk];
      wants[{record.segment, record.offset_bytes}].insert(i);
    }
  }
  return wants;
}

void ExpectRightPlan(const RestorePlan& plan, const std::vector<LoadRequest>& requests) {
  const std::map<Where, std::set<uint32_t>> wants = NaiveWants(requests);
  ASSERT_EQ(plan.chunks.size(), wants.size());
  uint64_t needed = 0;
  auto want = wants.begin();  // in the same order: by (segment, offset)
  for (const PlannedChunk& chunk : plan.chunks) {
    EXPECT_EQ(std::make_tuple(chunk.record->segment, chunk.record->offset_bytes), want->first);
    EXPECT_TRUE(std::is_sorted(chunk.requests.begin(), chunk.requests.end()));
    EXPECT_EQ(std::set(chunk.requests.begin(), chunk.requests.end()), want->second);
    EXPECT_EQ(chunk.requests.size(), want->second.size());
    EXPECT_EQ(chunk.record, &chunk.leaf->chunks[chunk.chunk_index]);
    needed += chunk.record->stored_bytes;
    ++want;
  }
  EXPECT_EQ(plan.bytes_needed, needed);

  uint64_t total = 0;
  for (const PlannedChunk& chunk : plan.chunks) total += chunk.record->stored_bytes;
  const uint64_t read_bytes_max = total <= kSmallPlanBytes ? kSmallPlanReadBytesMax : kReadBytesMax;
  uint64_t read_bytes = 0;
  uint32_t next = 0;
  for (size_t i = 0; i < plan.reads.size(); ++i) {
    const PlannedRead& read = plan.reads[i];
    EXPECT_EQ(read.chunk_begin, next);
    ASSERT_LT(read.chunk_begin, read.chunk_end);
    next = read.chunk_end;
    uint64_t end = read.offset_bytes;
    for (uint32_t c = read.chunk_begin; c < read.chunk_end; ++c) {
      const format::ChunkRecord& record = *plan.chunks[c].record;
      EXPECT_EQ(record.segment, read.segment);
      EXPECT_GE(record.offset_bytes, end);
      EXPECT_LE(record.offset_bytes - end, c == read.chunk_begin ? 0 : kReadGapBytesMax);
      end = record.offset_bytes + record.stored_bytes;
    }
    EXPECT_EQ(read.length_bytes, end - read.offset_bytes);
    EXPECT_TRUE(read.length_bytes <= read_bytes_max || read.chunk_end == read.chunk_begin + 1);
    read_bytes += read.length_bytes;
    if (i + 1 == plan.reads.size()) break;
    // The next one is apart for a reason.
    const format::ChunkRecord& record = *plan.chunks[next].record;
    EXPECT_TRUE(record.segment > read.segment ||
                (record.segment == read.segment &&
                 (record.offset_bytes - end > kReadGapBytesMax ||
                  record.offset_bytes + record.stored_bytes - read.offset_bytes > read_bytes_max)));
  }
  EXPECT_EQ(next, plan.chunks.size());
  EXPECT_EQ(plan.bytes_read, read_bytes);
}

TEST(RestorePlan, AgreesWithANaivePlanner) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed);
    std::vector<format::LeafRecord> leaves;
    const bool large = random.OneIn(4);  // chunks of up to 4 MiB
    const uint64_t leaf_count = 1 + random.Below(8);
    for (uint64_t i = 0; i < leaf_count; ++i) {
      format::Shape shape(random.Below(4));
      format::Shape chunk_shape(shape.size());
      for (size_t axis = 0; axis < shape.size(); ++axis) {
        shape[axis] = random.OneIn(12) ? 0 : 1 + random.Below(large ? 300 : 20);
        chunk_shape[axis] = 1 + random.Below(large ? 100 : 8);
      }
      leaves.push_back(ArrayLeaf(StrCat("w", i), shape, chunk_shape));
    }
    Place(random, &leaves);
    std::vector<LoadRequest> requests;
    const uint64_t request_count = 1 + random.Below(8);
    for (uint64_t i = 0; i < request_count; ++i) {
      requests.push_back(RandomRequest(random, leaves[random.Below(leaves.size())]));
    }
    const Result<RestorePlan> plan = PlanRestore(requests);
    ASSERT_TRUE(plan.ok()) << plan.status().ToString();
    ExpectRightPlan(*plan, requests);
    if (testing::Test::HasFailure()) return;
  }
}

TEST(RestorePlan, NothingWantedIsNothingRead) {
  const format::LeafRecord leaf = ArrayLeaf("w", {4, 0}, {4, 1});
  const LoadRequest request{&leaf, format::WholeArray(leaf.shape), nullptr, {}};
  const Result<RestorePlan> plan = PlanRestore({&request, 1});
  ASSERT_TRUE(plan.ok());
  EXPECT_TRUE(plan->reads.empty());
  EXPECT_EQ(plan->bytes_needed, 0U);
  EXPECT_TRUE(PlanRestore({})->reads.empty());
}

TEST(RestorePlan, CopiesOfALeafShareItsChunks) {
  const format::LeafRecord leaf = ArrayLeaf("w", {8}, {4});
  format::LeafRecord placed = leaf;
  placed.chunks[0].offset_bytes = 4096;
  placed.chunks[1].offset_bytes = 8192;
  const format::LeafRecord copy = placed;
  const std::vector<LoadRequest> requests = {{&placed, {{0}, {8}}, nullptr, {}},
                                             {&copy, {{5}, {6}}, nullptr, {}}};
  const Result<RestorePlan> plan = PlanRestore(requests);
  ASSERT_TRUE(plan.ok());
  ASSERT_EQ(plan->chunks.size(), 2U);
  EXPECT_EQ(plan->chunks[0].requests, std::vector<uint32_t>{0});
  EXPECT_EQ(plan->chunks[1].requests, (std::vector<uint32_t>{0, 1}));
}

TEST(RestorePlan, APayloadUsedTwiceIsReadOnce) {
  format::LeafRecord leaf = ArrayLeaf("w", {8}, {4});
  leaf.chunks[1] = leaf.chunks[0];
  const LoadRequest request{&leaf, format::WholeArray(leaf.shape), nullptr, {}};
  const Result<RestorePlan> plan = PlanRestore({&request, 1});
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->chunks.size(), 2U);
  ASSERT_EQ(plan->reads.size(), 1U);
  EXPECT_EQ(plan->bytes_needed, 20U);
  EXPECT_EQ(plan->bytes_read, 20U);
}

TEST(RestorePlan, ValuesKeepTheOrderOfTheirParts) {
  format::LeafRecord leaf;
  leaf.key = PlanKeyOf("text");
  leaf.kind = format::LeafKind::kValue;
  leaf.logical_bytes = 3000;
  leaf.chunk_count = 2;
  leaf.chunks.resize(2);
  for (auto& chunk : leaf.chunks) chunk.codec = format::CodecId::kLz4Frame;
  leaf.chunks[0].logical_bytes = 2000;
  leaf.chunks[0].stored_bytes = 100;
  leaf.chunks[0].offset_bytes = 8192;  // the second part lies first
  leaf.chunks[1].logical_bytes = 1000;
  leaf.chunks[1].stored_bytes = 50;
  leaf.chunks[1].offset_bytes = 4096;
  const LoadRequest request{&leaf, {}, nullptr, {}};
  const Result<RestorePlan> plan = PlanRestore({&request, 1});
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  ASSERT_EQ(plan->chunks.size(), 2U);
  EXPECT_EQ(plan->chunks[0].value_offset_bytes, 2000U);
  EXPECT_EQ(plan->chunks[1].value_offset_bytes, 0U);
}

TEST(RestorePlan, ABoxOutsideTheArrayIsTheCallersMistake) {
  const format::LeafRecord leaf = ArrayLeaf("w", {4, 4}, {4, 4});
  const std::vector<format::Box> boxes = {
      {{0, 0}, {4, 5}}, {{3, 0}, {2, 4}}, {{0}, {4}}, {{}, {}}, {{0, 0}, {4, 4, 4}}};
  for (const format::Box& box : boxes) {
    const LoadRequest request{&leaf, box, nullptr, {}};
    EXPECT_EQ(PlanRestore({&request, 1}).status().code(), StatusCode::kInvalidArgument);
  }
  const LoadRequest strides{&leaf, format::WholeArray(leaf.shape), nullptr, {4}};
  EXPECT_EQ(PlanRestore({&strides, 1}).status().code(), StatusCode::kInvalidArgument);
  format::LeafRecord node;
  node.key = PlanKeyOf("node");
  node.kind = format::LeafKind::kNode;
  const LoadRequest of_node{&node, {}, nullptr, {}};
  EXPECT_EQ(PlanRestore({&of_node, 1}).status().code(), StatusCode::kInvalidArgument);
}

TEST(RestorePlan, RecordsThatContradictThemselvesAreDataLoss) {
  const format::LeafRecord good = ArrayLeaf("w", {8, 4}, {4, 4});
  using Damage = void (*)(format::LeafRecord*);
  const std::map<std::string, Damage> damages = {
      {"chunk count", [](format::LeafRecord* leaf) { leaf->chunk_count = 3; }},
      {"fewer chunks", [](format::LeafRecord* leaf) { leaf->chunks.pop_back(); }},
      {"both fewer",
       [](format::LeafRecord* leaf) {
         leaf->chunks.pop_back();
         leaf->chunk_count = 1;
       }},
      {"first chunk", [](format::LeafRecord* leaf) { leaf->first_chunk = 1; }},
      {"chunk rank", [](format::LeafRecord* leaf) { leaf->chunk_shape.pop_back(); }},
      {"empty chunk", [](format::LeafRecord* leaf) { leaf->chunk_shape[1] = 0; }},
      {"huge chunk",
       [](format::LeafRecord* leaf) {
         leaf->chunk_shape = {uint64_t{1} << 40, uint64_t{1} << 40};
         leaf->chunks.resize(1);
         leaf->chunk_count = 1;
       }},
      {"huge shape",
       [](format::LeafRecord* leaf) {
         leaf->shape = {uint64_t{1} << 40, uint64_t{1} << 40};
       }},
      {"dtype", [](format::LeafRecord* leaf) { leaf->dtype = static_cast<format::DType>(999); }},
      {"no dtype", [](format::LeafRecord* leaf) { leaf->dtype = format::DType::kInvalid; }},
      {"kind", [](format::LeafRecord* leaf) { leaf->kind = static_cast<format::LeafKind>(9); }},
      {"codec", [](format::LeafRecord* leaf) { leaf->chunks[1].codec = format::CodecId{9}; }},
      {"logical", [](format::LeafRecord* leaf) { leaf->chunks[1].logical_bytes = 63; }},
      {"stored too short", [](format::LeafRecord* leaf) { leaf->chunks[1].stored_bytes = 3; }},
      {"stored not exact", [](format::LeafRecord* leaf) { leaf->chunks[1].stored_bytes = 67; }},
      {"stored too long",
       [](format::LeafRecord* leaf) {
         leaf->chunks[1].codec = format::CodecId::kBloscLz4;
         leaf->chunks[1].stored_bytes = UINT32_MAX;
       }},
      {"offset", [](format::LeafRecord* leaf) { leaf->chunks[1].offset_bytes = UINT64_MAX - 10; }},
  };
  for (const auto& [what, damage] : damages) {
    SCOPED_TRACE(what);
    format::LeafRecord leaf = good;
    damage(&leaf);
    LoadRequest request{&leaf, format::WholeArray(leaf.shape), nullptr, {}};
    const Status status = PlanRestore({&request, 1}).status();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status.ToString();
    EXPECT_NE(status.message().find("params/w"), std::string::npos) << status.ToString();
  }
  format::LeafRecord value;
  value.key = PlanKeyOf("w");
  value.kind = format::LeafKind::kValue;
  value.inline_value = "abc";
  value.logical_bytes = 4;
  const LoadRequest request{&value, {}, nullptr, {}};
  EXPECT_EQ(PlanRestore({&request, 1}).status().code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace stepwell::db
