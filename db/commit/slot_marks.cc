// SPDX-License-Identifier: Apache-2.0
#include "db/commit/slot_marks.h"

#include <utility>

#include "db/layout.h"
#include "io/invariant.h"

namespace stepwell::db {

SlotMarks::SlotMarks(const EngineOptions* options, EngineThread* thread,
                     std::function<bool()> make_room, std::function<void()> deaths_durable)
    : options_(options),
      thread_(thread),
      make_room_(std::move(make_room)),
      deaths_durable_(std::move(deaths_durable)),
      slot_(options->slot) {}

Status SlotMarks::Write(bool sync) {
  STEPWELL_RETURN_IF_ERROR(LeaveCopiedSlots());
  Status status = options_->slot_file->Write(slot_, sync);
  // Where writes go to new blocks (btrfs) also this one needs room.
  while (status.code() == StatusCode::kResourceExhausted && make_room_()) {
    status = options_->slot_file->Write(slot_, sync);
  }
  return status;
}

// STEPWELL is not written to while a copy of the store has it, too.
Status SlotMarks::LeaveCopiedSlots() {
  io::File* const before = options_->slot_file->file();
  STEPWELL_RETURN_IF_ERROR(
      options_->slot_file->LeaveCopies(options_->environment.file_system, options_->store_path));
  io::File* const file = options_->slot_file->file();
  if (file == before) return OkStatus();
  Log(options_->log, LogLevel::kInfo,
      StrCat(file->path(), " had another name, of a copy of the store: it is made anew"));
  if (options_->disk != nullptr) options_->disk->RegisterFile(file);
  if (options_->slots_made_anew) options_->slots_made_anew(file);
  return OkStatus();
}

// Without a new slot on a full disk the one before is true still: other processes see later what
// was committed, and a crash is recovered from by a scan. What the old slot names must stay
// (CheckWritten).
bool SlotMarks::Update() {
  const Status status = Write(/*sync=*/false);
  behind_ = !status.ok();
  if (!status.ok() && status.code() != StatusCode::kResourceExhausted) {
    options_->freeze->Trip(status);
  }
  return status.ok();
}

void SlotMarks::NoteCommit(uint64_t commit, const format::FramePlace& place, bool killed) {
  STEPWELL_DCHECK(commit > slot_.durable_commit, "the slot would go back");
  slot_.durable_commit = commit;
  slot_.durable_place = place;
  killed_unmarked_ = killed_unmarked_ || killed;
}

// Recovery takes what a synced slot names for durable without a look, so reclaim may erase on the
// strength of it. No handle waits for this sync.
void SlotMarks::MarkDurable() {
  if (!Update()) return;
  if (sync_ != nullptr) {
    sync_again_ = true;
    return;
  }
  sync_ = std::make_unique<Sync>();
  sync_->marks = this;
  sync_->kind = io::Op::Kind::kSync;
  sync_->file = options_->slot_file->file();
  sync_->commit = slot_.durable_commit;
  sync_->killed = std::exchange(killed_unmarked_, false);
  options_->slot_file->BeginSync();
  ++options_->instruments->syncs;
  options_->disk->Submit(sync_.get());
}

void SlotMarks::Synced() {
  if (thread_->panicked()) return;
  const std::unique_ptr<Sync> sync = std::move(sync_);
  options_->slot_file->EndSync(sync->status.ok());
  if (!sync->status.ok()) {
    options_->freeze->Trip(sync->status);
    return;
  }
  STEPWELL_DCHECK(sync->commit >= durable_mark_ && sync->commit <= slot_.durable_commit,
                  "a slot was synced that names no commit of its time");
  durable_mark_ = sync->commit;
  if (std::exchange(sync_again_, false) && !options_->freeze->frozen()) MarkDurable();
  // Reclaim may erase now what that commit ended; on a full disk it does so at once.
  if (sync->killed) deaths_durable_();
}

void SlotMarks::FinishSync() {
  while (sync_ != nullptr && !thread_->panicked()) options_->disk->Poll(/*wait=*/true);
}

bool SlotMarks::DeathsAwaitSync() const {
  return sync_ != nullptr && (sync_->killed || killed_unmarked_);
}

Status SlotMarks::NotWritten() const {
  STEPWELL_RETURN_IF_ERROR(options_->freeze->Check());
  return ResourceExhaustedError(
      "the disk is full: STEPWELL cannot be written, and nothing is erased that it names; remove "
      "other files");
}

Status SlotMarks::CheckWritten() {
  if (behind_ && !options_->freeze->frozen()) MarkDurable();
  if (behind_) return NotWritten();
  return options_->freeze->Check();
}

}  // namespace stepwell::db
