// SPDX-License-Identifier: Apache-2.0
// The part of a save whose bytes are far away, as on an accelerator (FarSource).
#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "db/save/far.h"
#include "db/store/writer_store.h"
#include "io/guard.h"

namespace stepwell::db {
namespace {

// Brought to memory together: large enough for full blocks, and small against the window, so that
// the next copies are under way while these are staged.
constexpr uint64_t kRangeBytesMax = uint64_t{16} << 20;
constexpr uint64_t kRangesInWindowMin = 4;

}  // namespace

// Chunk by chunk as the copies come, so neither the state nor an array of it is ever in memory as a
// whole. While the pool is full nothing is released, so no further copy is begun.
Status WriterStore::StageFar(const std::shared_ptr<SaveJob>& job, const FarCopies& far,
                             const std::function<bool()>& keep_waiting, size_t* dispatched) {
  const CopiedInto here(this);
  const std::vector<FarRange> ranges = PlanFarRanges(
      job->leaves, far.leaves, std::min(kRangeBytesMax, far.window_bytes / kRangesInWindowMin));
  FarWindow window(far, ranges, job->leaves);
  const PlannedLeaf* chosen = nullptr;
  for (const FarRange& range : ranges) {
    if (job->failed.load()) break;
    STEPWELL_RETURN_IF_ERROR(window.Bring());
    for (const auto [number, chunk] : range.chunks) {
      PlannedLeaf* const leaf = &job->leaves[number];
      if (leaf != std::exchange(chosen, leaf)) ChooseCodec(options_.codec, chunk, leaf);
    }
    const size_t first = job->staged_blocks.size();
    for (BlockTask& block : PlanStagedBlocks(job->leaves, range.chunks)) {
      job->staged_blocks.push_back(std::move(block));
    }
    STEPWELL_RETURN_IF_ERROR(Stage(job, first, keep_waiting, dispatched));
    STEPWELL_RETURN_IF_ERROR(window.Release());
  }
  return OkStatus();
}

// The thread on which copies are made behind Save, one save after the other; null where the system
// gives none.
io::Executor* WriterStore::FarThread() {
  std::call_once(far_once_, [this] {
    auto made = io::MakeThreadPool(1, "stepwell-copies");
    if (!made.ok()) return;
    far_tasks_ = std::make_shared<io::TaskScope>(
        std::move(*made), [this] { engine_->Panic(io::NoMemoryTo("copy from far away")); });
  });
  return far_tasks_.get();
}

}  // namespace stepwell::db
