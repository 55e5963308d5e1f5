// SPDX-License-Identifier: Apache-2.0
// Transfer: how far one Op has come. The only place that knows short transfers, EINTR, the end of
// a file and which failures freeze; io_uring, the posix threads and the blocking File calls all
// feed their system calls' results to it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "io/disk.h"

namespace stepwell::io {

class Transfer {
 public:
  Transfer() = default;
  explicit Transfer(Op* op);

  Op* op() const { return op_; }
  // Ends the op when nothing is to be asked of the kernel: no bytes, or a write or sync after the
  // freeze. Call before each system call; true when the op is over.
  bool EndBeforeCall();
  // The next call's arguments (not for kSync): at most IOV_MAX vectors.
  std::span<const iovec> vectors() const;
  uint64_t offset_bytes() const { return op_->offset_bytes + done_bytes_; }
  // Takes a call's result, bytes or -errno. True when the op is over: its status and
  // transferred_bytes are set, and the freeze is tripped if that is due.
  bool Step(int64_t result);
  // Ends the op with an error of the disk, which no call of its own met.
  void Abandon(const Status& error);

 private:
  bool End(Status status);  // true
  bool Fail(int os_error);
  bool StepRead(uint64_t moved);
  bool StepWrite(uint64_t moved);
  void Continue(uint64_t done_bytes);

  Op* op_ = nullptr;
  uint64_t total_bytes_ = 0;
  uint64_t done_bytes_ = 0;
  std::vector<iovec> rest_;  // the rest of op_->vectors, once some of it is done
};

// Runs `op` to its end with blocking system calls on `op->file->descriptor()`; a read of a file
// that has none by File::ReadAt.
void RunBlocking(Op* op);

}  // namespace stepwell::io
