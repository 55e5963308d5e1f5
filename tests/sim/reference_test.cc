// SPDX-License-Identifier: Apache-2.0
// Steps that refer to the same chunks: what some live step refers to stays, and what none does
// goes, compared with a mark and sweep over the records of all live steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "tests/io/support/expect_ok.h"
#include "tests/sim/support/soak_seeds.h"
#include "tests/sim/support/store_workload.h"

namespace stepwell::sim {
namespace {

constexpr size_t kSteps = 5;
constexpr uint64_t kReferenceBlock = 4096;
// One chunk a leaf, large enough for blocks of its own.
constexpr uint64_t kElements = 16 * kReferenceBlock / sizeof(float);

// Leaf "w" of version v, beside a leaf that always changes. With deltas, versions are alike.
std::vector<db::LeafSpec> Specs(bool delta) {
  return {{"w", {kElements}, true, false, 1, 0, 0, delta ? uint64_t{50} : 0},
          {"step", {3}, false, false}};
}

// `bulk`: elements of a leaf that no other step has.
Result<db::SaveHandle> SaveVersion(db::Store* store, uint64_t step, uint64_t version,
                                   bool delta = false, uint64_t bulk = 0) {
  std::vector<std::vector<float>> scratch;
  scratch.reserve(4);
  const auto specs = Specs(delta);
  std::vector<db::LeafSpec> own = {specs[1]};
  if (bulk > 0) own.push_back({"bulk", {bulk}, true, false});
  db::SaveRequest request = db::MakeRequest(step, step, own, &scratch);
  db::SaveRequest steady = db::MakeRequest(step, version, {specs[0]}, &scratch);
  request.items[0].leaves.push_back(std::move(steady.items[0].leaves[0]));
  return store->Save(std::move(request));
}

// The versions' payloads: (segment, offset) -> bytes, and how many of the steps refer to each.
using Places = std::map<std::pair<uint64_t, uint64_t>, std::pair<uint64_t, size_t>>;

Result<Places> Mark(db::Store* store) {
  Places places;
  STEPWELL_ASSIGN_OR_RETURN(const auto steps, store->Steps());
  for (const auto& step : steps) {
    STEPWELL_ASSIGN_OR_RETURN(const auto reader, store->Read(step.step));
    STEPWELL_ASSIGN_OR_RETURN(const auto leaves, reader->Leaves(""));
    for (const auto& leaf : leaves) {
      for (const auto& chunk : leaf.chunks) {
        format::EachPayload(chunk, [&](const format::StoredPayload& payload) {
          auto& [bytes, count] = places[{payload.segment, payload.offset_bytes}];
          bytes = payload.stored_bytes;
          ++count;
        });
      }
    }
  }
  return places;
}

Status CheckVersion(db::Store* store, uint64_t step, uint64_t version, bool delta = false) {
  STEPWELL_ASSIGN_OR_RETURN(const auto reader, store->Read(step));
  const db::LeafSpec spec = Specs(delta)[0];
  STEPWELL_ASSIGN_OR_RETURN(const auto leaf, reader->Find(db::KeyOf("state", spec.name)));
  if (!leaf) return InternalError(StrCat("step ", step, " lost its leaf"));
  std::vector<float> out(kElements);
  db::LoadRequest request;
  request.leaf = &*leaf;
  request.box = format::WholeArray(leaf->shape);
  request.out = reinterpret_cast<std::byte*>(out.data());
  STEPWELL_RETURN_IF_ERROR(reader->Load({&request, 1}).status());
  if (out == db::LeafData(spec, version)) return OkStatus();
  return InternalError(StrCat("step ", step, " has other bytes"));
}

// Steps 1 to 5 with versions of a chunk, deleted in some order: after each delete every step that
// is left is whole, and after a reclaim the store has no more than they need.
std::string DeleteInOrder(const std::array<uint64_t, kSteps>& versions,
                          const std::array<size_t, kSteps>& order, bool reopen, bool delta) {
  const auto world = SimWorld::Make({7, kUnlimitedBytes});
  StoreMachine machine(world, 7);
  const OpenSpec spec = {.segment_bytes = 256 << 10, .delta = delta};
  auto store = machine.Open(spec);
  if (!store.ok()) return store.status().ToString();
  for (size_t i = 0; i < kSteps; ++i) {
    auto handle = SaveVersion(store->get(), i + 1, versions[i], delta);
    if (!handle.ok()) return handle.status().ToString();
    if (Status status = handle->Wait(); !status.ok()) return status.ToString();
  }
  // As many payloads as there are runs of a version: each was written once.
  const auto saved = Mark(store->get());
  if (!saved.ok()) return saved.status().ToString();
  size_t runs = 1;
  for (size_t i = 1; i < kSteps; ++i) runs += versions[i] == versions[i - 1] ? 0 : 1;
  const size_t large =
      static_cast<size_t>(std::count_if(saved->begin(), saved->end(), [](const auto& place) {
        return place.second.first > kElements;
      }));
  // With deltas all but the first are small.
  if (large != (delta ? 1 : runs))
    return StrCat(large, " payloads for ", runs, " runs of a version");

  std::set<size_t> left;
  for (size_t i = 0; i < kSteps; ++i) left.insert(i);
  for (const size_t gone : order) {
    const std::array<uint64_t, 1> steps = {gone + 1};
    if (Status status = (*store)->Delete(steps); !status.ok()) return status.ToString();
    left.erase(gone);
    if (reopen) {
      if (Status status = (*store)->Close(); !status.ok()) return status.ToString();
      store = machine.Open(spec);
      if (!store.ok()) return store.status().ToString();
    }
    if (Status status = (*store)->Reclaim().status(); !status.ok()) return status.ToString();
    for (const size_t i : left) {
      const Status status = CheckVersion(store->get(), i + 1, versions[i], delta);
      if (!status.ok()) return StrCat("after ", gone + 1, " went: ", status.ToString());
    }
    const auto marked = Mark(store->get());
    if (!marked.ok()) return marked.status().ToString();
    uint64_t needed = 0;
    for (const auto& [place, payload] : *marked) needed += AlignUp(payload.first, kReferenceBlock);
    const auto space = (*store)->Stats().space;
    const uint64_t kept = space.live_bytes + space.padding_bytes + space.dead_bytes;
    // Beside payloads there is a block for each frame that is not needed any more and lies in a
    // segment that recovery may need.
    if (kept > needed + 16 * kReferenceBlock) {
      return StrCat("after ", gone + 1, " went: ", kept, " bytes are kept for ", needed, "; live ",
                    space.live_bytes, ", padding ", space.padding_bytes, ", dead ",
                    space.dead_bytes, "\n", DescribeSegments(machine.world()), machine.log());
    }
  }
  return "";
}

// All ways in which five steps may have equal and different versions, up to names.
std::vector<std::array<uint64_t, kSteps>> Patterns() {
  std::vector<std::array<uint64_t, kSteps>> patterns;
  for (uint64_t code = 0; code < 243; ++code) {
    std::array<uint64_t, kSteps> versions{};
    uint64_t rest = code;
    uint64_t known = 0;
    bool canonical = true;
    for (uint64_t& version : versions) {
      version = rest % 3;
      rest /= 3;
      canonical = canonical && version <= known;
      if (version == known) ++known;
    }
    if (canonical) patterns.push_back(versions);
  }
  return patterns;
}

std::string TextOf(const std::array<uint64_t, kSteps>& versions,
                   const std::array<size_t, kSteps>& order) {
  std::string text = "versions";
  for (const uint64_t version : versions) text += StrCat(" ", version);
  text += ", deleted";
  for (const size_t step : order) text += StrCat(" ", step + 1);
  return text;
}

// Every pattern, in every `stride`-th order of all.
void DeleteInOrders(size_t stride, bool reopen, bool delta) {
  size_t runs = 0;
  size_t number = 0;
  for (const auto& versions : Patterns()) {
    std::array<size_t, kSteps> order{};
    std::iota(order.begin(), order.end(), 0);
    do {
      if (number++ % stride != 0) continue;
      ++runs;
      const std::string problem = DeleteInOrder(versions, order, reopen, delta);
      ASSERT_EQ(problem, "") << TextOf(versions, order);
    } while (std::next_permutation(order.begin(), order.end()));
  }
  EXPECT_GE(runs, 100u);
}

TEST(ReferenceTest, WhatNoStepRefersToGoesInWhateverOrderStepsAreDeleted) {
  DeleteInOrders(/*stride=*/13, /*reopen=*/false, /*delta=*/false);
}

TEST(ReferenceTest, AlsoWhereEachDeleteIsOfAnotherSession) {
  DeleteInOrders(/*stride=*/29, /*reopen=*/true, /*delta=*/false);
}

// A difference needs its keyframe and the differences between, whoever wrote them.
TEST(ReferenceTest, AlsoWhereVersionsAreDifferences) {
  DeleteInOrders(/*stride=*/17, /*reopen=*/false, /*delta=*/true);
  DeleteInOrders(/*stride=*/37, /*reopen=*/true, /*delta=*/true);
}

// Each step lies in a segment of its own, and builds upon the one before. Where most of the first
// segment is dead, what is needed of it moves, and the segment goes.
TEST(ReferenceTest, DifferencesKeepWhatEarlierSessionsWrote) {
  const std::string segment = "/store/segments/0000000001.seg";
  for (const bool moves : {false, true}) {
    SCOPED_TRACE(moves);
    const auto world = SimWorld::Make({19, kUnlimitedBytes});
    StoreMachine machine(world, 19);
    const OpenSpec spec = {.segment_bytes = 256 << 10, .delta = true};
    auto store = machine.Open(spec);
    for (uint64_t step = 1; step <= 3; ++step) {
      ASSERT_OK(store.status());
      auto handle = SaveVersion(store->get(), step, step, /*delta=*/true,
                                step == 1 && moves ? 2 * kElements : 0);
      ASSERT_OK(handle.status());
      ASSERT_OK(handle->Wait());
      ASSERT_OK((*store)->Close());
      store = machine.Open(spec);
    }
    // What has another name is not punched.
    if (moves) ASSERT_OK(SimFileSystem(world).Link(segment, "/link"));
    for (const uint64_t gone : {uint64_t{1}, uint64_t{2}}) {
      ASSERT_OK((*store)->Delete(std::array{gone}));
      ASSERT_OK((*store)->Close());
      store = machine.Open(spec);
      ASSERT_OK(store.status());
      ASSERT_OK((*store)->Reclaim().status());
      for (uint64_t step = gone + 1; step <= 3; ++step) {
        EXPECT_OK(CheckVersion(store->get(), step, step, /*delta=*/true));
      }
    }
    EXPECT_EQ(world->Contents(segment).has_value(), !moves);
  }
}

// Two saves under way together refer to one commit, each to another half of it. When that is gone,
// both halves are needed, by steps that own nothing in its segment.
TEST(ReferenceTest, StepsThatReferToDifferentPayloadsOfASegmentKeepBoth) {
  const auto world = SimWorld::Make({11, kUnlimitedBytes});
  StoreMachine machine(world, 11);
  const auto specs_of = [](uint64_t left, uint64_t right) {
    std::vector<db::LeafSpec> specs;
    for (const char* name : {"a", "b"}) specs.push_back({name, {kElements}, true, false, left});
    for (const char* name : {"c", "d"}) specs.push_back({name, {kElements}, true, false, right});
    return specs;
  };
  // A leaf that changes with every 1000 seeds is that of step 1 in all of them.
  const std::vector<std::vector<db::LeafSpec>> specs = {specs_of(1000, 1000), specs_of(1, 1000),
                                                        specs_of(1000, 1)};
  auto store = machine.Open({});
  ASSERT_OK(store.status());
  ASSERT_OK(db::SaveSeeded(store->get(), 1, 1, specs[0])->Wait());
  ASSERT_OK((*store)->Close());
  store = machine.Open({});  // the next ones lie in other segments
  ASSERT_OK(store.status());
  std::vector<db::SaveHandle> handles;
  for (const uint64_t step : {2U, 3U}) {
    auto handle = db::SaveSeeded(store->get(), step, step, specs[step - 1]);
    ASSERT_OK(handle.status());
    handles.push_back(*handle);
  }
  for (const db::SaveHandle& handle : handles) ASSERT_OK(handle.Wait());
  const std::array<uint64_t, 1> first = {1};
  ASSERT_OK((*store)->Delete(first));
  ASSERT_OK((*store)->Reclaim().status());
  for (const uint64_t step : {2U, 3U}) {
    const auto reader = (*store)->Read(step);
    ASSERT_OK(reader.status());
    EXPECT_OK(db::CheckSeeded(&**reader, step, specs[step - 1]));
    const auto leaves = (*reader)->Leaves("");
    ASSERT_OK(leaves.status());
    size_t referenced = 0;
    for (const auto& leaf : *leaves) {
      for (const auto& chunk : leaf.chunks) referenced += chunk.referenced ? 1 : 0;
    }
    EXPECT_EQ(referenced, 2u) << "step " << step;
  }
}

// Without a reclaim that looks at everything: the last step that refers to a payload gives it back.
TEST(ReferenceTest, SpaceStaysFlatWhereOwnersDieFirst) {
  const auto world = SimWorld::Make({13, kUnlimitedBytes});
  StoreMachine machine(world, 13);
  auto store = machine.Open({.keep_latest = 1, .segment_bytes = 256 << 10, .delta = false});
  ASSERT_OK(store.status());
  for (uint64_t step = 1; step <= 3600; ++step) {
    auto handle = SaveVersion(store->get(), step, step / 60);
    ASSERT_OK(handle.status());
    ASSERT_OK(handle->Wait());
  }
  EXPECT_OK(CheckVersion(store->get(), 3600, 60));
  EXPECT_LT(world->UsedBytes(), uint64_t{2} << 20);
}

// The one step that lives needs a keyframe and differences of steps that went long ago, and never
// more of them than half a keyframe.
TEST(ReferenceTest, SpaceStaysFlatUnderDifferences) {
  const auto world = SimWorld::Make({17, kUnlimitedBytes});
  StoreMachine machine(world, 17);
  auto store = machine.Open({.keep_latest = 1, .segment_bytes = 256 << 10, .delta = true});
  ASSERT_OK(store.status());
  uint64_t first = 0;
  uint64_t most = 0;
  for (uint64_t step = 1; step <= 2000; ++step) {
    auto handle = SaveVersion(store->get(), step, step, /*delta=*/true);
    ASSERT_OK(handle.status());
    ASSERT_OK(handle->Wait());
    const auto record = (*store)->Read(step);
    ASSERT_OK(record.status());
    most = std::max(most, (*record)->step().stored_bytes);
    if (step == 1) first = most;
  }
  EXPECT_OK(CheckVersion(store->get(), 2000, 2000, /*delta=*/true));
  EXPECT_LE(most, first * 3 / 2);
  EXPECT_GT(most, first * 5 / 4);
  EXPECT_LT(world->UsedBytes(), uint64_t{2} << 20);
}

// Here it is their bytes that end a chain of differences, not how many there are. Together they
// take at most as much as the keyframe, which is compressed.
TEST(ReferenceTest, LargeDifferencesTakeNoMoreThanAKeyframe) {
  const auto world = SimWorld::Make({23, kUnlimitedBytes});
  StoreMachine machine(world, 23);
  auto store = machine.Open({.keep_latest = 1, .segment_bytes = 256 << 10, .delta = true});
  ASSERT_OK(store.status());
  const std::vector<db::LeafSpec> specs = {{"w", {kElements}, true, false, 1, 0, 0, 6}};
  uint64_t first = 0;
  uint64_t most = 0;
  for (uint64_t step = 1; step <= 60; ++step) {
    ASSERT_OK(db::SaveSeeded(store->get(), step, step, specs)->Wait());
    const auto record = (*store)->Read(step);
    ASSERT_OK(record.status());
    most = std::max(most, (*record)->step().stored_bytes);
    if (step == 1) first = most;
  }
  EXPECT_OK(db::CheckSeeded(store->get(), 60, 60, specs));
  EXPECT_LE(most, first * 2);
  EXPECT_GT(most, first * 3 / 2);
}

}  // namespace
}  // namespace stepwell::sim
