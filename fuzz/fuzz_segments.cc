// SPDX-License-Identifier: Apache-2.0
// Damaged segments through the engine's own reading functions: headers, footers, trailers, the
// scan, the chain, records, restore plans. Input as of fuzz_store; faster, and for forged frames it
// goes on where Store would stop.
#include "db/layout.h"
#include "db/log/recovery.h"
#include "db/log/segment_files.h"
#include "db/read/restore_plan.h"
#include "fuzz/support/check.h"
#include "fuzz/support/edit.h"
#include "fuzz/support/frames.h"
#include "fuzz/support/input.h"
#include "fuzz/support/memory.h"
#include "fuzz/support/stores.h"

namespace stepwell::fuzz {
namespace {

void PlanAll(const std::vector<format::LeafRecord>& leaves) {
  for (const format::LeafRecord& leaf : leaves) {
    if (leaf.kind == format::LeafKind::kNode || leaf.chunks.size() > 1000) continue;
    db::LoadRequest request;
    request.leaf = &leaf;
    if (leaf.kind == format::LeafKind::kArray) request.box = format::WholeArray(leaf.shape);
    const auto plan = db::PlanRestore({&request, 1});
    if (!plan.ok()) continue;
    uint64_t chunks = 0;
    for (const db::PlannedRead& read : plan->reads) {
      Check(read.length_bytes > 0 && read.chunk_end > read.chunk_begin, "a read of nothing");
      chunks += read.chunk_end - read.chunk_begin;
    }
    Check(chunks == plan->chunks.size(), "reads do not cover the chunks");
  }
}

void ReadSteps(const db::LogState& state, db::SegmentFiles& files) {
  for (const auto& [step, live] : state.live) {
    if (const auto leaves = db::ReadStepRecords(files, live.place, ""); leaves.ok()) {
      PlanAll(*leaves);
    }
  }
}

// Every block of every segment as if a frame began there.
void ReadBlocks(io::FileSystem* file_system, db::SegmentFiles& files) {
  const auto names = file_system->List(db::SegmentsPath(kStorePath));
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    const auto id = db::ParseSegmentName(name);
    if (!id) continue;
    const auto file = files.Get(*id);
    if (!file.ok()) continue;
    const auto info = (*file)->Info();
    for (uint64_t at = 0; info.ok() && at < info->size_bytes; at += 4096) {
      format::FramePlace place;
      const auto frame = db::ReadFrameAt(**file, *id, at, &place);
      if (!frame.ok()) continue;
      const auto again = db::ReadFrame(files, place, frame->header.kind);
      Check(again.ok() && again->payload == frame->payload, "a frame reads differently");
    }
  }
}

void ReadLog(io::FileSystem* file_system) {
  db::SegmentFiles files(file_system, kStorePath);
  ReadBlocks(file_system, files);
  const std::string slots = ReadFile(file_system, db::SlotFilePath(kStorePath));
  for (uint64_t at = 0; at + format::kSlotBytes <= slots.size(); at += format::kSlotBytes) {
    const auto slot = format::DecodeSlot(AsBytes(slots).subspan(at, format::kSlotBytes));
    if (!slot.ok()) continue;
    auto marked = db::RecoverByMarks(*slot, files, nullptr);
    if (marked.ok()) {
      ReadSteps(*marked, files);
      (void)db::RecoverByMarks(*slot, files, &*marked);
    }
    const auto scanned = db::RecoverByScan(file_system, kStorePath, *slot, files, {});
    if (scanned.ok()) ReadSteps(*scanned, files);
  }
}

}  // namespace
}  // namespace stepwell::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stepwell::fuzz;
  const auto& stores = BaseStores();
  Input input(data, size);
  const BaseStore& base = stores[input.Below(stores.size())];
  const auto world = base.world->CrashImageProcessKill(1);
  Machine machine(world);
  const EditResult edits = ApplyEdits(machine.files(), kStorePath, &input);
  const MemoryLimit limit(edits.input_bytes, {size_t{1} << 20, 8}, {size_t{64} << 20, 128});
  ReadLog(machine.files());
  return 0;
}
