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

#include "format/key.h"
#include "io/open_disk.h"
#include "tests/sim/support/sim_disk.h"

namespace stepwell::db::index_tests {

using format::LeafRecord;
using format::PathComponent;

inline constexpr format::Id128 kStoreId{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
inline constexpr char kPath[] = "/index";
inline constexpr uint64_t kBatches = 8;

struct StepData {
  format::StepRecord record;
  uint32_t frame_crc = 0;
  std::vector<LeafRecord> leaves;  // sorted by key
};
using Model = std::map<uint64_t, StepData>;

inline std::string Key(std::string_view item, const std::vector<std::string>& names) {
  format::KeyPath path;
  for (const std::string& name : names) path.push_back({PathComponent::Type::kKey, 0, name});
  return format::EncodeLeafKey(item, path).value();
}

inline LeafRecord Leaf(std::string key, uint64_t seed, uint64_t chunks) {
  LeafRecord leaf;
  leaf.key = std::move(key);
  leaf.dtype = format::DType::kFloat32;
  leaf.shape = {chunks, 256};
  leaf.chunk_shape = {1, 256};
  leaf.logical_bytes = chunks * 1024;
  leaf.chunk_count = chunks;
  for (uint64_t i = 0; i < chunks; ++i) {
    format::ChunkRecord chunk;
    chunk.segment = seed;
    chunk.offset_bytes = 4096 * (i + 1);
    chunk.stored_bytes = 1028;
    chunk.logical_bytes = 1024;
    chunk.crc = static_cast<uint32_t>(seed * 1000003 + i);
    leaf.chunks.push_back(chunk);
  }
  return leaf;
}

inline StepData MakeStep(uint64_t step, uint64_t commit, uint64_t chunks = 3) {
  StepData data;
  data.record.step = step;
  data.record.commit = commit;
  data.record.metadata_json = StrCat("{\"commit\":", commit, "}");
  data.frame_crc = static_cast<uint32_t>(commit * 2654435761U);
  data.leaves = {
      Leaf(Key("opt", {"mu", "a"}), commit, chunks), Leaf(Key("params", {}), commit + 1, 0),
      Leaf(Key("params", {"a"}), commit + 2, chunks + 1),
      Leaf(Key("params", {"a", "b"}), commit + 3, 1), Leaf(Key("params", {"ab"}), commit + 4, 2)};
  std::sort(data.leaves.begin(), data.leaves.end(),
            [](const LeafRecord& a, const LeafRecord& b) { return a.key < b.key; });
  return data;
}

// Step `commit` comes, the one three before goes, and every fourth commit replaces its predecessor.
inline Model ModelAfter(uint64_t commits) {
  Model model;
  for (uint64_t commit = 1; commit <= commits; ++commit) {
    if (commit > 3) model.erase(commit - 3);
    const uint64_t step = commit % 4 == 0 ? commit - 1 : commit;
    model[step] = MakeStep(step, commit);
  }
  return model;
}

inline Status ApplyCommit(Index* index, uint64_t commit) {
  IndexBatch batch;
  const uint64_t step = commit % 4 == 0 ? commit - 1 : commit;
  if (commit > 3) batch.removed_steps.push_back(commit - 3);
  if (step != commit) batch.removed_steps.push_back(step);
  const StepData data = MakeStep(step, commit);
  batch.added.push_back({&data.record, data.frame_crc, &data.leaves});
  batch.through_commit = commit;
  return index->Apply(batch);
}

inline Status ApplyStep(Index* index, const StepData& data) {
  IndexBatch batch;
  batch.added.push_back({&data.record, data.frame_crc, &data.leaves});
  batch.through_commit = data.record.commit;
  return index->Apply(batch);
}

// Fails (with a Status) or holds exactly the model after its applied commit.
inline Status CheckPrefix(Index* index) {
  const Model model = ModelAfter(index->applied_commit());
  STEPWELL_ASSIGN_OR_RETURN(const std::vector<IndexedStep> steps, index->Steps());
  EXPECT_EQ(steps.size(), model.size());
  for (const IndexedStep& step : steps) {
    const auto found = model.find(step.step);
    if (found == model.end()) {
      ADD_FAILURE() << "step " << step.step << " should not be there";
      continue;
    }
    const StepData& data = found->second;
    EXPECT_EQ(step.commit, data.record.commit);
    EXPECT_EQ(step.frame_crc, data.frame_crc);
    STEPWELL_ASSIGN_OR_RETURN(const auto leaves, index->Read(step.step, step.commit, step.frame_crc,
                                                             format::KeysBelow("")));
    EXPECT_TRUE(leaves.has_value() && *leaves == data.leaves) << "step " << step.step;
  }
  return OkStatus();
}

struct Opened {
  std::shared_ptr<io::Freeze> freeze = std::make_shared<io::Freeze>();
  Status status;
  std::unique_ptr<Index> index;
};
inline Opened Open(io::FileSystem* files, const std::string& path = kPath,
                   const format::Id128& store_id = kStoreId) {
  Opened opened;
  Index::Options options;
  options.file_system = files;
  options.path = path;
  options.store_id = store_id;
  options.freeze = opened.freeze;
  auto index = Index::Open(options);
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
  EXPECT_EQ(opened.index->applied_commit(), 0u);
  EXPECT_EQ(Fill(opened.index.get()), kBatches);
  EXPECT_TRUE(CheckPrefix(opened.index.get()).ok());
}

}  // namespace stepwell::db::index_tests
