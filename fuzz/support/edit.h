// SPDX-License-Identifier: Apache-2.0
// Damage to the files of a store, described by an input.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fuzz/support/input.h"
#include "io/disk.h"

namespace stepwell::fuzz {

enum class EditKind : uint8_t {
  kOverwrite,       // bytes anywhere
  kOverwriteBlock,  // bytes near the start of a block, where headers are
  kFlip,            // one bit
  kTruncate,
  kExtend,
  kRemove,
  kSwapBlocks,  // also between files
  kZeroBlocks,
  kDuplicate,  // a copy under another name: a segment of another number, or any other file's name
  kRename,     // the same, and the old name is gone
  kSlot,       // one number of a slot, with its checksum made right
  kForge,      // bytes of a frame, with every checksum and place that depends on it made right
  kCount,
};

// Describes an edit.
struct EditResult {
  // Anything may be found, as after a save of something else.
  bool forged = false;
  // An older state of the store may be found. That takes a slot with other marks, or damage both of
  // STEPWELL and of the log: a frame of which no slot and no later frame speaks cannot be told from
  // one that was never finished (db/DESIGN.md, "Limits").
  bool may_roll_back() const { return slot_forged || (slots_damaged && log_damaged); }
  bool slot_forged = false;
  bool slots_damaged = false;
  bool log_damaged = false;
  uint64_t input_bytes = 0;  // of all files but BALLAST, before or after, whichever is more
};

// Applies edits until `input` is empty, 16 at most. The files are those below `store_path`; errors
// of single edits (a file that is not there) are left alone.
EditResult ApplyEdits(io::FileSystem* files, const std::string& store_path, Input* input);

// For seeds: one edit as ApplyEdits takes it.
std::string EncodeEdit(EditKind kind, uint8_t file, uint32_t where, std::string_view bytes);

}  // namespace stepwell::fuzz
