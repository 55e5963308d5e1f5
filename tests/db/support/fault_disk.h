// SPDX-License-Identifier: Apache-2.0
// A Disk over the machine's, on which writes and flushes fail as devices do it: with an error
// although their bytes landed, or with nothing done.
#pragma once

#include <cerrno>
#include <functional>
#include <memory>
#include <utility>

#include "db/environment.h"
#include "format/frame.h"
#include "io/disk.h"

namespace stepwell::db {

enum class DiskFault {
  kNone,
  kAfter,   // done, then EIO
  kBefore,  // EIO, nothing done
};
// Asked for each write and flush, on the Disk's thread.
using ChooseFault = std::function<DiskFault(const io::Op&)>;

// Returns true for a write of a frame, and false for one of chunks.
inline bool IsFrameWrite(const io::Op& op) {
  if (op.kind != io::Op::Kind::kWrite || op.vectors.empty()) return false;
  const iovec& vector = op.vectors.front();
  if (vector.iov_len < format::kFrameHeaderBytes) return false;
  const ConstBytes head(static_cast<const std::byte*>(vector.iov_base), format::kFrameHeaderBytes);
  return format::DecodeFrameHeader(head).ok();
}

class FaultDisk final : public io::Disk {
 public:
  FaultDisk(std::unique_ptr<io::Disk> disk, ChooseFault choose)
      : disk_(std::move(disk)), choose_(std::move(choose)) {}

  void Submit(io::Op* op) override {
    const DiskFault fault = op->kind == io::Op::Kind::kRead ? DiskFault::kNone : choose_(*op);
    if (fault == DiskFault::kNone) return disk_->Submit(op);
    auto* proxy = new Proxy;
    proxy->wanted = op;
    proxy->file = op->file;
    if (fault == DiskFault::kAfter) {
      proxy->kind = op->kind;
      proxy->offset_bytes = op->offset_bytes;
      proxy->vectors = op->vectors;
    }
    disk_->Submit(proxy);  // kBefore: a read of nothing
  }
  size_t Poll(bool wait) override { return disk_->Poll(wait); }
  void Wake() override { disk_->Wake(); }
  size_t in_flight() const override { return disk_->in_flight(); }
  size_t depth() const override { return disk_->depth(); }
  void RegisterFile(io::File* file) override { disk_->RegisterFile(file); }
  void UnregisterFile(io::File* file) override { disk_->UnregisterFile(file); }
  std::string Describe() const override { return disk_->Describe(); }

 private:
  struct Proxy final : io::Op {
    io::Op* wanted = nullptr;
    void OnComplete() override {
      const std::unique_ptr<Proxy> self(this);
      wanted->transferred_bytes = transferred_bytes;
      wanted->status = ErrnoStatus(EIO, wanted->file->path());
      wanted->file->freeze()->Trip(wanted->status);
      wanted->OnComplete();
    }
  };

  const std::unique_ptr<io::Disk> disk_;
  const ChooseFault choose_;
};

// The machine, with such disks.
inline Result<Environment> FaultEnvironment(const StoreOptions& options, ChooseFault choose) {
  STEPWELL_ASSIGN_OR_RETURN(Environment environment, MakeEnvironment(options));
  environment.make_disk = [make = environment.make_disk,
                           choose = std::move(choose)]() -> Result<std::unique_ptr<io::Disk>> {
    STEPWELL_ASSIGN_OR_RETURN(auto disk, make());
    return std::unique_ptr<io::Disk>(std::make_unique<FaultDisk>(std::move(disk), choose));
  };
  return environment;
}

}  // namespace stepwell::db
