// SPDX-License-Identifier: Apache-2.0
// An index that commits fill, and a model of what is in it.
#pragma once

#include "db/index/index.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "io/open_disk.h"
#include "tests/sim/support/sim_disk.h"

namespace stepwell::db::index_tests {

inline constexpr format::Id128 kStoreId{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
inline constexpr char kPath[] = "/index";
inline constexpr uint64_t kBatches = 8;

struct Row {
  uint64_t step = 0;
  uint64_t commit = 0;
  uint32_t frame_crc = 0;
  bool has_texts = false;
  std::string metadata_json;
  std::string metrics_json;
  bool operator==(const Row&) const = default;
};
using Model = std::map<uint64_t, Row>;

// Every fifth commit has texts that are too long for a row.
inline Row MakeRow(uint64_t step, uint64_t commit) {
  const auto crc = static_cast<uint32_t>(commit * 2654435761U);
  if (commit % 5 == 0) return {step, commit, crc, false, "", ""};
  return {step, commit, crc, true, StrCat("{\"commit\":", commit, "}"),
          commit % 3 == 0 ? "" : StrCat("{\"loss\":", step, "}")};
}

// Step `commit` comes, the one three before goes, and every fourth commit replaces its predecessor.
inline Model ModelAfter(uint64_t commits) {
  Model model;
  for (uint64_t commit = 1; commit <= commits; ++commit) {
    if (commit > 3) model.erase(commit - 3);
    const uint64_t step = commit % 4 == 0 ? commit - 1 : commit;
    model[step] = MakeRow(step, commit);
  }
  return model;
}

inline IndexRow RowOf(const Row& row) {
  return {row.step, row.commit, row.frame_crc, row.has_texts, row.metadata_json, row.metrics_json};
}

inline Status ApplyRow(Index* index, const Row& row) { return index->Apply({{}, {RowOf(row)}}); }

inline Status ApplyCommit(Index* index, uint64_t commit) {
  const uint64_t step = commit % 4 == 0 ? commit - 1 : commit;
  const Row row = MakeRow(step, commit);
  IndexBatch batch;
  if (commit > 3) batch.removed_steps.push_back(commit - 3);
  batch.rows.push_back(RowOf(row));
  return index->Apply(batch);
}

inline Result<Model> RowsOf(Index* index, uint64_t first = 0) {
  Model rows;
  STEPWELL_RETURN_IF_ERROR(index->Scan(first, [&](const IndexRow& row) {
    EXPECT_TRUE(rows.empty() || rows.rbegin()->first < row.step);
    rows[row.step] = {row.step,      row.commit,
                      row.frame_crc, row.has_texts,
                      std::string(row.metadata_json), std::string(row.metrics_json)};
    return true;
  }));
  return rows;
}

// Fails, or holds exactly the model after the newest commit that has a row, which is returned.
inline Result<uint64_t> CheckPrefix(Index* index) {
  STEPWELL_ASSIGN_OR_RETURN(const Model rows, RowsOf(index));
  uint64_t commits = 0;
  for (const auto& [step, row] : rows) commits = std::max(commits, row.commit);
  EXPECT_EQ(rows, ModelAfter(commits));
  return commits;
}

struct Opened {
  std::shared_ptr<io::Freeze> freeze = std::make_shared<io::Freeze>();
  Status status;
  std::unique_ptr<Index> index;
};
inline Opened Open(io::FileSystem* files, const std::string& path = kPath,
                   const format::Id128& store_id = kStoreId, bool to_read = false) {
  Opened opened;
  Index::Options options;
  options.file_system = files;
  options.path = path;
  options.store_id = store_id;
  options.freeze = opened.freeze;
  auto index = to_read ? Index::OpenToRead(options) : Index::Open(options);
  opened.status = index.status();
  if (index.ok()) opened.index = std::move(index).value();
  return opened;
}

inline std::shared_ptr<sim::SimWorld> NewWorld() {
  return sim::SimWorld::Make({1, uint64_t{1} << 30});
}

// All batches, flushed after every second one; the commit that a flush made durable.
inline uint64_t Fill(Index* index) {
  uint64_t durable = 0;
  for (uint64_t commit = 1; commit <= kBatches; ++commit) {
    if (!ApplyCommit(index, commit).ok()) return durable;
    if (commit % 2 != 0) continue;
    if (!index->Flush().ok()) return durable;
    durable = commit;
  }
  return durable;
}

inline void ExpectRebuilds(io::FileSystem* files) {
  const Status destroyed = Index::Destroy(files, kPath);
  ASSERT_TRUE(destroyed.ok()) << destroyed.ToString();
  const Opened opened = Open(files);
  ASSERT_TRUE(opened.status.ok()) << opened.status.ToString();
  EXPECT_EQ(CheckPrefix(opened.index.get()).value(), 0u);
  EXPECT_EQ(Fill(opened.index.get()), kBatches);
  EXPECT_EQ(CheckPrefix(opened.index.get()).value(), kBatches);
}

}  // namespace stepwell::db::index_tests
