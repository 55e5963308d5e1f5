// SPDX-License-Identifier: Apache-2.0
#include "db/log/catalog.h"

#include <gtest/gtest.h>

#include "db/log/log_writer.h"

namespace stepwell::db {
namespace {

std::shared_ptr<const LiveStep> StepOf(uint64_t step, uint64_t commit) {
  auto live = std::make_shared<LiveStep>();
  live->record.step = step;
  live->record.commit = commit;
  live->place = {.segment = 1, .offset_bytes = 4096 * commit, .length_bytes = 100};
  return live;
}

// Where space is short, no base is written, and a delta has undecided steps, too.
TEST(CatalogWriteTest, ADeltaHasPreparedSteps) {
  LiveSteps live;
  CatalogWriter writer(&live, /*segment_bytes_max=*/uint64_t{1} << 20);
  CatalogNote base;
  base.place = {.segment = 1, .offset_bytes = 4096, .length_bytes = 100};
  base.first_segment = 1;
  writer.Durable(base, /*oldest_in_flight=*/1);
  ASSERT_NE(writer.newest(), nullptr);
  LiveSteps::Change change;
  change.commit = 1;
  change.added = StepOf(7, 1);
  live.Commit(change);
  writer.Note(change);
  LiveSteps::Change prepared;
  prepared.commit = 2;
  prepared.prepared = StepOf(8, 2);
  prepared.metas = {{99, {.commit = 99, .pinned = true}}};  // of no step
  live.Commit(prepared);
  writer.Note(prepared);
  LiveSteps::Change ended;  // undecided, and gone before the catalog
  ended.commit = 3;
  ended.prepared = StepOf(9, 3);
  live.Commit(ended);
  writer.Note(ended);
  LiveSteps::Change aborted;
  aborted.commit = 4;
  aborted.decided = ended.prepared;
  live.Commit(aborted);
  writer.Note(aborted);
  const auto delta = writer.Make({}, {}, /*block_bytes=*/4096, /*short_of_space=*/true);
  ASSERT_TRUE(delta.ok()) << delta.status().ToString();
  EXPECT_EQ(delta->root.previous, base.place);
  std::map<uint64_t, uint64_t> steps;
  for (const auto& entry : delta->root.live) steps[entry.step.commit] = entry.step.step;
  EXPECT_EQ(steps, (std::map<uint64_t, uint64_t>{{1, 7}, {2, 8}}));
}

TEST(LogWriterTest, AFrameHasALimit) {
  const std::string payload(format::kFramePayloadBytesMax + 1, 'x');
  EXPECT_TRUE(CheckFrameSize(std::string_view(payload).substr(1)).ok());
  const Status status = CheckFrameSize(payload);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("the limit is 268435456"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace stepwell::db
