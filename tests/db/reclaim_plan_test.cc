// SPDX-License-Identifier: Apache-2.0
#include "db/commit/reclaim.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/db/support/reclaim_support.h"

namespace stepwell::db {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(ReclaimPlanTest, RangesAreJoined) {
  EXPECT_THAT(Normalize({{8192, 12288}, {0, 4096}, {4096, 6000}, {9000, 10000}, {5, 5}}),
              ElementsAre(ByteRange{0, 6000}, ByteRange{8192, 12288}));
  EXPECT_EQ(TotalBytes({{0, 4096}, {8192, 12288}}), 8192U);
}

TEST(ReclaimPlanTest, HolesAreWholeBlocksBetweenWhatIsNeeded) {
  EXPECT_THAT(HolesBetween({{0, 8192}, {20480, 24576}, {40960, 45056}}, 45056, 4096),
              ElementsAre(ByteRange{8192, 20480}, ByteRange{24576, 40960}));
  // Larger blocks: the needed ones are kept whole.
  EXPECT_THAT(HolesBetween({{0, 8192}, {20480, 24576}, {40960, 45056}}, 45056, 16384),
              ElementsAre());
  EXPECT_THAT(HolesBetween({{0, 4096}, {70000, 80000}}, 131072, 16384),
              ElementsAre(ByteRange{16384, 65536}, ByteRange{81920, 131072}));
}

SegmentState Segment() {
  SegmentState state;
  state.known = state.sealed = true;
  state.size_bytes = state.allocated_bytes = 1 << 20;
  return state;
}
ReclaimLimits Limits() {
  ReclaimLimits limits;
  limits.settled = true;
  limits.punch_gain_min = limits.evacuate_gain_min = 65536;
  limits.spare_bytes_max = 4 << 20;
  return limits;
}

TEST(ReclaimPlanTest, ADeadSegmentIsRecycledOrRemoved) {
  SegmentState state = Segment();
  EXPECT_EQ(DecideSegment(state, Limits()).action, ReclaimAction::kRecycle);
  state.link_count = 2;
  EXPECT_EQ(DecideSegment(state, Limits()).action, ReclaimAction::kRemove);
  state.link_count = 1;
  state.was_shown = true;
  EXPECT_EQ(DecideSegment(state, Limits()).action, ReclaimAction::kRemove);
  state.was_shown = false;
  state.allocated_bytes /= 2;  // holes
  EXPECT_EQ(DecideSegment(state, Limits()).action, ReclaimAction::kRemove);
  state = Segment();
  ReclaimLimits limits = Limits();
  limits.spare_bytes_max = 0;
  EXPECT_EQ(DecideSegment(state, limits).action, ReclaimAction::kRemove);
}

TEST(ReclaimPlanTest, APartlyDeadSegmentIsPunchedElseMoved) {
  SegmentState state = Segment();
  state.has_live = true;
  state.moved_bytes = 100000;
  state.needed = {{0, 8192}, {65536, 65536 + 102400}, {(1 << 20) - 8192, 1 << 20}};
  ReclaimDecision decision = DecideSegment(state, Limits());
  EXPECT_EQ(decision.action, ReclaimAction::kPunch);
  EXPECT_THAT(decision.holes,
              ElementsAre(ByteRange{8192, 65536}, ByteRange{65536 + 102400, (1 << 20) - 8192}));
  // A linked segment's bytes are never changed, and some file systems cannot punch.
  for (int i = 0; i < 3; ++i) {
    state.link_count = i == 0 ? 2 : 1;
    state.was_shown = i == 1;  // what was linked once may be open where it was
    state.punchable = i < 2;
    EXPECT_EQ(DecideSegment(state, Limits()).action, ReclaimAction::kEvacuate);
    state.moved_bytes = 600000;  // more than half
    EXPECT_EQ(DecideSegment(state, Limits()).action, ReclaimAction::kNothing);
    state.moved_bytes = 100000;
    state.has_live = false;
    state.pinned = true;  // somebody reads what is dead, which stays at its place
    EXPECT_EQ(DecideSegment(state, Limits()).action, ReclaimAction::kNothing);
    state.has_live = true;
    state.pinned = false;
  }
  state.punchable = true;
  state.was_shown = false;
  ReclaimLimits limits = Limits();
  limits.settled = false;
  EXPECT_EQ(DecideSegment(state, limits).action, ReclaimAction::kLater);
  state.known = false;  // damaged records: everything stays
  EXPECT_EQ(DecideSegment(state, Limits()).action, ReclaimAction::kNothing);
}

}  // namespace
}  // namespace stepwell::db
