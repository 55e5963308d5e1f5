// SPDX-License-Identifier: Apache-2.0
#include "io/transfer.h"

#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace stepwell::io {
namespace {

uint64_t TotalBytes(std::span<const iovec> vectors) {
  uint64_t total = 0;
  for (const iovec& vector : vectors) total += vector.iov_len;
  return total;
}

// What has no descriptor reads by itself, and is only read.
void ReadByItself(Op* op) {
  op->transferred_bytes = 0;
  for (const iovec& vector : op->vectors) {
    const Result<size_t> count =
        op->file->ReadAt(op->offset_bytes + op->transferred_bytes,
                         {static_cast<std::byte*>(vector.iov_base), vector.iov_len});
    op->status = count.status();
    if (!count.ok()) return;
    op->transferred_bytes += *count;
    if (*count < vector.iov_len) return;
  }
}

}  // namespace

Transfer::Transfer(Op* op) : op_(op), total_bytes_(TotalBytes(op->vectors)) {}

bool Transfer::EndBeforeCall() {
  if (op_->kind != Op::Kind::kRead && op_->file->freeze()->frozen()) {
    return End(op_->file->freeze()->Check());
  }
  if (op_->kind == Op::Kind::kSync ? op_->file->skips_syncs() : done_bytes_ == total_bytes_) {
    return End(OkStatus());
  }
  return false;
}

std::span<const iovec> Transfer::vectors() const {
  const std::span<const iovec> all = done_bytes_ == 0 ? op_->vectors : std::span(rest_);
  return all.first(std::min<size_t>(all.size(), IOV_MAX));
}

bool Transfer::Step(int64_t result) {
  if (result < 0) return Fail(static_cast<int>(-result));
  switch (op_->kind) {
    case Op::Kind::kRead:
      return StepRead(static_cast<uint64_t>(result));
    case Op::Kind::kWrite:
      return StepWrite(static_cast<uint64_t>(result));
    case Op::Kind::kSync:
      return End(OkStatus());
  }
  return true;
}

bool Transfer::End(Status status) {
  op_->transferred_bytes = done_bytes_;
  op_->status = std::move(status);
  return true;
}

void Transfer::Abandon(const Status& error) {
  if (op_->kind != Op::Kind::kRead) op_->file->freeze()->Trip(error);
  End(error);
}

bool Transfer::Fail(int os_error) {
  // ECANCELED: io_uring gives up queued work of a thread that ends; it was never begun.
  if (os_error == EINTR || os_error == EAGAIN || os_error == ECANCELED) return false;
  const std::string& path = op_->file->path();
  if (op_->kind == Op::Kind::kRead) {
    return End(ErrnoStatus(os_error, StrCat("read ", path, " at byte ", offset_bytes())));
  }
  const bool is_write = op_->kind == Op::Kind::kWrite;
  Status error = ErrnoStatus(os_error, StrCat(is_write ? "write " : "sync ", path));
  // A full disk is met cleanly by a write (nothing acknowledged is lost), never by a sync.
  if (!is_write || error.code() != StatusCode::kResourceExhausted) {
    op_->file->freeze()->Trip(error);
  }
  return End(std::move(error));
}

bool Transfer::StepRead(uint64_t moved) {
  const uint64_t done = done_bytes_ + moved;
  // Direct reads can only go on where the device allows it, and they stop elsewhere only at the
  // end of the file.
  const bool can_continue = (op_->offset_bytes + done) % op_->file->alignment().offset_bytes == 0;
  if (moved != 0 && done < total_bytes_ && can_continue) {
    Continue(done);
    return false;
  }
  done_bytes_ = done;
  return End(OkStatus());
}

bool Transfer::StepWrite(uint64_t moved) {
  if (done_bytes_ + moved >= total_bytes_) {
    done_bytes_ = total_bytes_;
    return End(OkStatus());
  }
  // A direct write goes on at the last aligned place: some bytes are written twice, the same ones.
  const uint64_t offset = op_->offset_bytes;
  const uint64_t end = AlignDown(offset + done_bytes_ + moved, op_->file->alignment().offset_bytes);
  if (end <= offset + done_bytes_) {
    Status error(StatusCode::kIoError, StrCat("write ", op_->file->path(), ": only ", moved, " of ",
                                              total_bytes_ - done_bytes_, " bytes were taken"));
    op_->file->freeze()->Trip(error);
    return End(std::move(error));
  }
  Continue(end - offset);
  return false;
}

void Transfer::Continue(uint64_t done_bytes) {
  done_bytes_ = done_bytes;
  rest_.clear();
  for (const iovec& vector : op_->vectors) {
    const size_t skip = static_cast<size_t>(std::min<uint64_t>(done_bytes, vector.iov_len));
    done_bytes -= skip;
    if (skip == vector.iov_len) continue;
    rest_.push_back({static_cast<std::byte*>(vector.iov_base) + skip, vector.iov_len - skip});
  }
}

void RunBlocking(Op* op) {
  const int descriptor = op->file->descriptor();
  if (descriptor < 0 && op->kind == Op::Kind::kRead) return ReadByItself(op);
  Transfer transfer(op);
  while (!transfer.EndBeforeCall()) {
    ssize_t result = 0;
    if (op->kind == Op::Kind::kSync) {
      result = fdatasync(descriptor);
    } else {
      const std::span<const iovec> vectors = transfer.vectors();
      const auto count = static_cast<int>(vectors.size());
      const auto offset = static_cast<off_t>(transfer.offset_bytes());
      result = op->kind == Op::Kind::kRead ? preadv(descriptor, vectors.data(), count, offset)
                                           : pwritev(descriptor, vectors.data(), count, offset);
    }
    if (transfer.Step(result < 0 ? -errno : result)) return;
  }
}

}  // namespace stepwell::io
