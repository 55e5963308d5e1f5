// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/support/sim_data_plane.h"

#include <algorithm>
#include <iterator>

namespace stepwell::sim {
namespace {

ByteRange RangeOf(const io::Op& op, uint64_t length) { return {op.offset_bytes, length}; }

}  // namespace

SimDisk::~SimDisk() {
  while (!ops_.empty()) Poll(true);
}

int SimDisk::RegisterBuffer(MutableBytes buffer) {
  buffers_.push_back(buffer);
  return static_cast<int>(buffers_.size()) - 1;
}

Status SimDisk::CheckOp(const Pending& pending) const {
  const io::Op& op = *pending.op;
  if (op.kind == io::Op::Kind::kSync) return OkStatus();
  uint64_t offset = op.offset_bytes;
  for (const iovec& vector : op.vectors) {
    STEPWELL_RETURN_IF_ERROR(pending.file->CheckTransfer(offset, vector.iov_base, vector.iov_len,
                                                         op.kind == io::Op::Kind::kWrite));
    offset += vector.iov_len;
  }
  if (op.buffer_index < 0) return OkStatus();
  if (static_cast<size_t>(op.buffer_index) < buffers_.size() && op.vectors.size() == 1) {
    const MutableBytes buffer = buffers_[static_cast<size_t>(op.buffer_index)];
    const auto* begin = static_cast<const std::byte*>(op.vectors[0].iov_base);
    if (begin >= buffer.data() && begin + op.vectors[0].iov_len <= buffer.data() + buffer.size()) {
      return OkStatus();
    }
  }
  return InvalidArgumentError(StrCat(pending.file->path(), ": not within its registered buffer"));
}

void SimDisk::Submit(io::Op* op) {
  const std::lock_guard lock(world_->mutex_);
  Pending& added = ops_.emplace_back();
  added.op = op;
  added.file = static_cast<SimFile*>(op->file);
  STEPWELL_CHECK(added.file->world_ == world_, "an op's file belongs to another world");
  for (const iovec& vector : op->vectors) added.length += vector.iov_len;
  op->status = OkStatus();
  op->transferred_bytes = 0;
  const Inode* inode = added.file->inode_.get();
  if (op->kind == io::Op::Kind::kWrite) {
    added.write = {added.file->inode_, op->offset_bytes, {}};
    for (const iovec& vector : op->vectors) {
      added.write.data.append(static_cast<const char*>(vector.iov_base), vector.iov_len);
    }
    if (CheckOp(added).ok() && added.file->freeze()->Check().ok()) {
      added.listed = true;
      world_->in_flight_.push_back(&added.write);
    }
  }
  // Between a sync and the writes that are in flight with it, chance decides.
  for (Pending& other : ops_) {
    if (&other == &added || other.file->inode_.get() != inode) continue;
    const bool other_syncs = other.op->kind == io::Op::Kind::kSync;
    if (op->kind == io::Op::Kind::kSync && other.op->kind == io::Op::Kind::kWrite) {
      if (world_->prng_.Coin()) added.uncovered.push_back(RangeOf(*other.op, other.length));
    } else if (op->kind == io::Op::Kind::kWrite && other_syncs && !other.applied) {
      if (world_->prng_.Coin()) other.uncovered.push_back(RangeOf(*op, added.length));
    }
  }
  if (world_->prng_.OneIn(4)) Apply(&added);
}

size_t SimDisk::Poll(bool wait) {
  if (ops_.empty()) return 0;
  size_t count = 0;
  std::list<Pending> done;
  {
    const std::lock_guard lock(world_->mutex_);
    Prng& prng = world_->prng_;
    for (Pending& pending : ops_) {
      if (!pending.applied && prng.OneIn(4)) Apply(&pending);
    }
    // Mostly one or two at a time, sometimes all.
    count = prng.OneIn(8) ? ops_.size() : std::min<size_t>(ops_.size(), prng.Below(3));
    if (wait && count == 0) count = 1;
    for (size_t i = 0; i < count; ++i) {
      const auto it = std::next(ops_.begin(), static_cast<std::ptrdiff_t>(prng.Below(ops_.size())));
      if (!it->applied) Apply(&*it);
      done.splice(done.end(), ops_, it);
    }
  }
  for (const Pending& pending : done) {
    io::Op* op = pending.op;
    const bool full =
        op->kind == io::Op::Kind::kWrite && op->status.code() == StatusCode::kResourceExhausted;
    if (op->kind != io::Op::Kind::kRead && !op->status.ok() && !full) {
      pending.file->freeze()->Trip(op->status);
    }
    op->OnComplete();
  }
  return count;
}

void SimDisk::Apply(Pending* pending) {
  pending->applied = true;
  if (pending->listed) world_->in_flight_.remove(&pending->write);
  pending->listed = false;
  pending->op->status = Perform(pending);
}

Status SimDisk::Perform(Pending* pending) {
  io::Op* op = pending->op;
  SimFile* file = pending->file;
  if (op->kind != io::Op::Kind::kRead) STEPWELL_RETURN_IF_ERROR(file->freeze()->Check());
  STEPWELL_RETURN_IF_ERROR(CheckOp(*pending));
  if (op->kind == io::Op::Kind::kSync) {
    if (file->skips_syncs()) return OkStatus();
    return world_->SyncLocked(file->inode_.get(), pending->uncovered, file->path());
  }
  // The memory is the kernel's until completion: what counts is what it holds now.
  std::string bytes;
  if (op->kind == io::Op::Kind::kWrite) {
    for (const iovec& vector : op->vectors) {
      bytes.append(static_cast<const char*>(vector.iov_base), vector.iov_len);
    }
    STEPWELL_RETURN_IF_ERROR(
        world_->WriteLocked(file->inode_.get(), op->offset_bytes, AsBytes(bytes), file->path()));
    op->transferred_bytes = bytes.size();
    return OkStatus();
  }
  bytes.resize(pending->length);
  STEPWELL_RETURN_IF_ERROR(world_->ReadLocked(*file->inode_, op->offset_bytes,
                                              std::as_writable_bytes(std::span(bytes)),
                                              file->direct_, file->path(), &op->transferred_bytes));
  uint64_t copied = 0;
  for (const iovec& vector : op->vectors) {
    const uint64_t size = std::min<uint64_t>(vector.iov_len, op->transferred_bytes - copied);
    std::copy_n(bytes.data() + copied, size, static_cast<char*>(vector.iov_base));
    copied += size;
  }
  return OkStatus();
}

}  // namespace stepwell::sim
