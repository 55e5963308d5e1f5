// SPDX-License-Identifier: Apache-2.0
// Done, not done, unknown: what callers hear when a write or a flush fails, against what the next
// open finds (DESIGN.md, "Save").
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>

#include "tests/db/support/fault_disk.h"
#include "tests/db/support/group_support.h"

namespace stepwell::db {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The points at which a commit can be cut off.
enum class Point { kChunks, kFrame, kFlush };

struct Case {
  Point point;
  DiskFault fault;
};
std::string NameOf(const ::testing::TestParamInfo<Case>& info) {
  const char* point = info.param.point == Point::kChunks  ? "Chunks"
                      : info.param.point == Point::kFrame ? "Frame"
                                                          : "Flush";
  return StrCat(point, info.param.fault == DiskFault::kAfter ? "Landed" : "Lost");
}

Status SaveAndWait(Store* store, uint64_t step) {
  STEPWELL_ASSIGN_OR_RETURN(const SaveHandle handle, SaveSeeded(store, step, step, SmallState()));
  return handle.Wait();
}

class OutcomeTest : public ::testing::TestWithParam<Case> {
 protected:
  Result<std::unique_ptr<Store>> Open(uint32_t part = 0, const format::Id128& group = {},
                                      bool faulty = false) {
    StoreOptions options;
    if (grouped_) options.group = StoreGroup{group, part};
    if (!faulty) return Store::Open(PartPath(root_, part), options);
    STEPWELL_ASSIGN_OR_RETURN(auto environment, FaultEnvironment(options, [this](const io::Op& op) {
                                return armed_.load() && IsMine(op) ? GetParam().fault
                                                                   : DiskFault::kNone;
                              }));
    return OpenStore(PartPath(root_, part), options, std::move(environment));
  }

  bool IsMine(const io::Op& op) const {
    if (!op.file->path().ends_with(".seg")) return false;
    if (GetParam().point == Point::kFlush) return op.kind == io::Op::Kind::kSync;
    return op.kind == io::Op::Kind::kWrite &&
           (GetParam().point == Point::kFrame) == IsFrameWrite(op);
  }
  // A failure to write chunks comes before anything that could be committed, so its outcome is
  // known.
  bool Known() const { return GetParam().point == Point::kChunks; }
  // Returns true if recovery finds the change.
  bool Landed() const {
    return GetParam().point == Point::kFlush || GetParam().fault == DiskFault::kAfter;
  }

  void ExpectUnknown(const Status& status, const std::string& what) {
    EXPECT_EQ(status.code(), StatusCode::kOutcomeUnknown) << status.ToString();
    EXPECT_EQ(status.os_error(), EIO);
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("whether " + what + " is not known: "),
                      HasSubstr("Input/output error"), HasSubstr("open it again")));
  }

  TempDir dir_;
  const std::string root_ = dir_ / "run";
  bool grouped_ = false;
  std::atomic<bool> armed_{false};
};

TEST_P(OutcomeTest, Save) {
  auto store = Open(0, {}, /*faulty=*/true);
  ASSERT_OK(store.status());
  ASSERT_OK(SaveAndWait(store->get(), 1));
  armed_ = true;
  const Status status = SaveAndWait(store->get(), 2);
  if (Known()) {
    EXPECT_EQ(status.code(), StatusCode::kIoError) << status.ToString();
  } else {
    ExpectUnknown(status, "step 2 was saved");
  }
  // Nothing of this one began.
  const Status next = SaveAndWait(store->get(), 3);
  EXPECT_EQ(next.code(), StatusCode::kFailedPrecondition) << next.ToString();
  EXPECT_THAT(StepNumbers(store->get()), ElementsAre(1));
  (*store)->Close().IgnoreError("frozen");
  store->reset();
  const auto again = Open();
  ASSERT_OK(again.status());
  const bool there = !Known() && Landed();
  EXPECT_EQ(StepNumbers(again->get()),
            there ? (std::vector<uint64_t>{1, 2}) : std::vector<uint64_t>{1});
  EXPECT_OK(CheckSeeded(again->get(), 1, 1, SmallState()));
  if (there) EXPECT_OK(CheckSeeded(again->get(), 2, 2, SmallState()));
}

TEST_P(OutcomeTest, DeleteAndPin) {
  if (Known()) return;  // they write no chunks
  for (const bool pin : {false, true}) {
    std::filesystem::remove_all(root_);
    armed_ = false;
    auto store = Open(0, {}, /*faulty=*/true);
    ASSERT_OK(store.status());
    for (uint64_t step = 1; step <= 3; ++step) {
      ASSERT_OK(SaveAndWait(store->get(), step));
    }
    armed_ = true;
    const std::vector<uint64_t> steps = {1, 2};
    if (pin) {
      ExpectUnknown((*store)->SetPinned(steps, true), "2 steps (1 to 2) were pinned");
    } else {
      ExpectUnknown((*store)->Delete(steps), "2 steps (1 to 2) were deleted");
      EXPECT_THAT(StepNumbers(store->get()), ElementsAre(1, 2, 3));
    }
    (*store)->Close().IgnoreError("frozen");
    store->reset();
    const auto again = Open();
    ASSERT_OK(again.status());
    if (pin) {
      EXPECT_EQ((*again)->Stats().pinned_steps, Landed() ? 2U : 0U);
    } else {
      EXPECT_EQ(StepNumbers(again->get()),
                Landed() ? std::vector<uint64_t>{3} : (std::vector<uint64_t>{1, 2, 3}));
    }
  }
}

// An export that is about to link segments hears of it, too.
TEST_P(OutcomeTest, NothingIsSealedAfterAnError) {
  auto store = Open(0, {}, /*faulty=*/true);
  ASSERT_OK(store.status());
  ASSERT_OK(SaveAndWait(store->get(), 1));
  ASSERT_OK((*store)->SealSegments({1, 2, 3}).status());
  armed_ = true;
  EXPECT_FALSE(SaveAndWait(store->get(), 2).ok());
  const Status sealed = (*store)->SealSegments({1, 2, 3}).status();
  EXPECT_FALSE(sealed.ok());
  EXPECT_OK(CheckSeeded(store->get(), 1, 1, SmallState()));
  (*store)->Close().IgnoreError("frozen");
}

// Part 0's decision is the step's commit. Unknown there, it is undecided everywhere else, and the
// next collective open finds all of the step or none.
TEST_P(OutcomeTest, DecisionOfAGroup) {
  if (Known()) return;
  grouped_ = true;
  auto root = Open(0, {}, /*faulty=*/true);
  ASSERT_OK(root.status());
  auto part = Open(1, (*root)->id());
  ASSERT_OK(part.status());
  const std::vector<uint32_t> parts = {0, 1};
  for (Store* store : {root->get(), part->get()}) {
    ASSERT_OK(PrepareAndWait(store, 7, 70, parts));
  }
  armed_ = true;
  ExpectUnknown((*root)->Decide(Commit(7, 70)).status(), "step 7 was committed");
  for (auto* store : {&root, &part}) {
    (**store)->Close().IgnoreError("part 0 is frozen");
    store->value().reset();
  }
  armed_ = false;

  const auto state = [] {
    auto specs = PartState(0);
    for (const auto& spec : PartState(1)) specs.push_back(spec);
    return specs;
  };
  root = Open();
  ASSERT_OK(root.status());
  // Part 1 has it prepared: it can be read as soon as part 0 has it.
  if (Landed()) {
    EXPECT_THAT(StepNumbers(root->get()), ElementsAre(7));
    EXPECT_OK(CheckSeeded(root->get(), 7, 70, state()));
    const auto report = (*root)->Verify({});
    ASSERT_OK(report.status());
    EXPECT_THAT(report->problems, IsEmpty());
  } else {
    EXPECT_THAT(PreparedSteps(root->get()), ElementsAre(7));
  }
  part = Open(1, (*root)->id());
  ASSERT_OK(part.status());
  EXPECT_THAT(PreparedSteps(part->get()), ElementsAre(7));
  ASSERT_OK(Settle({root->get(), part->get()}));
  for (Store* store : {root->get(), part->get()}) {
    EXPECT_THAT(PreparedSteps(store), IsEmpty());
    EXPECT_EQ(StepNumbers(store), Landed() ? std::vector<uint64_t>{7} : std::vector<uint64_t>{});
  }
  if (Landed()) EXPECT_OK(CheckSeeded(root->get(), 7, 70, state()));
  ASSERT_OK((*part)->Close());
  ASSERT_OK((*root)->Close());
}

// Prepared or not, a step is none until it is decided, so that its save has failed for sure.
TEST_P(OutcomeTest, PreparingAStepOfAGroup) {
  grouped_ = true;
  auto root = Open(0, {}, /*faulty=*/true);
  ASSERT_OK(root.status());
  armed_ = true;
  const Status status = PrepareAndWait(root->get(), 7, 70, {0, 1});
  EXPECT_EQ(status.code(), StatusCode::kIoError) << status.ToString();
  (*root)->Close().IgnoreError("frozen");
  root->reset();
  armed_ = false;
  root = Open();
  ASSERT_OK(root.status());
  EXPECT_THAT(StepNumbers(root->get()), IsEmpty());
  EXPECT_EQ((*root)->Read(7).status().code(), StatusCode::kNotFound);
}

// A save that waited behind the failure never began to be committed: that is known.
TEST_P(OutcomeTest, WhatNeverReachedTheDiskWasNotDone) {
  auto store = Open(0, {}, /*faulty=*/true);
  ASSERT_OK(store.status());
  ASSERT_OK(SaveAndWait(store->get(), 1));
  armed_ = true;
  std::vector<std::vector<float>> scratch;
  scratch.reserve(64);
  std::vector<SaveHandle> handles;
  for (uint64_t step = 2; step < 6; ++step) {
    auto handle = (*store)->Save(MakeRequest(step, step, SmallState(), &scratch));
    if (handle.ok()) handles.push_back(std::move(*handle));
  }
  std::vector<uint64_t> unknown;
  for (const SaveHandle& handle : handles) {
    const Status status = handle.Wait();
    ASSERT_FALSE(status.ok());
    if (status.code() == StatusCode::kOutcomeUnknown) unknown.push_back(handle.step());
  }
  (*store)->Close().IgnoreError("frozen");
  store->reset();
  const auto again = Open();
  ASSERT_OK(again.status());
  unknown.push_back(1);
  EXPECT_THAT(StepNumbers(again->get()), ::testing::Each(::testing::AnyOfArray(unknown)));
}

INSTANTIATE_TEST_SUITE_P(Cuts, OutcomeTest,
                         ::testing::Values(Case{Point::kChunks, DiskFault::kBefore},
                                           Case{Point::kChunks, DiskFault::kAfter},
                                           Case{Point::kFrame, DiskFault::kBefore},
                                           Case{Point::kFrame, DiskFault::kAfter},
                                           Case{Point::kFlush, DiskFault::kBefore},
                                           Case{Point::kFlush, DiskFault::kAfter}),
                         NameOf);

}  // namespace
}  // namespace stepwell::db
