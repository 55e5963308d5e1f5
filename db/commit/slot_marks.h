// SPDX-License-Identifier: Apache-2.0
// The slot of a store open for writing: what STEPWELL names, for other processes at once, and how
// far it names it durably, which recovery then takes for granted (DESIGN.md, "Save"). Engine thread
// only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "db/commit/engine_options.h"
#include "db/commit/engine_thread.h"
#include "format/records.h"
#include "io/disk.h"

namespace stepwell::db {

class SlotMarks {
 public:
  // `make_room`: gives space back on a full disk; false: there is none. `deaths_durable`: the slot
  // that is durable now covers steps that ended.
  SlotMarks(const EngineOptions* options, EngineThread* thread, std::function<bool()> make_room,
            std::function<void()> deaths_durable);

  // The slot to be written next. Its owner for the tip and the catalog is LogEnd, for the rest the
  // caller of Write.
  format::StoreSlot& slot() { return slot_; }
  const format::StoreSlot& slot() const { return slot_; }

  Status Write(bool sync);
  // A commit is durable: the slot names it from the next MarkDurable() on. `killed`: it ended
  // steps.
  void NoteCommit(uint64_t commit, const format::FramePlace& place, bool killed);
  // Writes the slot, for other processes now, and begins to sync it.
  void MarkDurable();
  // For others to see, not synced; false: not now, the next commit tries again.
  bool Update();
  // Every commit so far is durable, and the slot that says so.
  void NoteAllDurable() { durable_mark_ = slot_.durable_commit; }
  // Waits for a sync under way, also when it fails.
  void FinishSync();

  bool sync_in_flight() const { return sync_ != nullptr; }
  // Returns true if a slot sync under way is to vouch for a commit that ended something.
  bool DeathsAwaitSync() const;
  // The newest commit that a synced slot names.
  uint64_t durable_mark() const { return durable_mark_; }
  // Tries again to write a slot that the disk had no room for. An error while STEPWELL is not that
  // of the last commit: then everything that the old slot names must stay.
  Status CheckWritten();
  // That error.
  Status NotWritten() const;

 private:
  struct Sync final : io::Op {
    SlotMarks* marks = nullptr;
    uint64_t commit = 0;  // that the slot names
    bool killed = false;  // something died by a commit that no earlier sync covers
    void OnComplete() override { marks->Synced(); }
  };

  Status LeaveCopiedSlots();
  void Synced();

  const EngineOptions* const options_;
  EngineThread* const thread_;
  const std::function<bool()> make_room_;
  const std::function<void()> deaths_durable_;
  format::StoreSlot slot_;
  uint64_t durable_mark_ = 0;
  bool behind_ = false;  // the disk was full: the slot is not that of the last commit
  std::unique_ptr<Sync> sync_;
  bool sync_again_ = false;
  bool killed_unmarked_ = false;  // by a commit that no slot sync covers yet
};

}  // namespace stepwell::db
