// SPDX-License-Identifier: Apache-2.0
#include "io/open_disk.h"

#include <bit>
#include <cstdlib>

#include "io/executor.h"
#include "io/mutex.h"
#include "io/transfer.h"

namespace stepwell::io {
namespace {

// Enough to keep one device busy with large blocks, few enough not to disturb the training.
constexpr size_t kThreadCount = 4;

class PosixDisk final : public Disk {
 public:
  explicit PosixDisk(std::unique_ptr<Executor> threads) : threads_(std::move(threads)) {}

  void Submit(Op* op) override {
    {
      const MutexLock lock(&mutex_);
      // Room for all that may finish: only Submit allocates.
      const size_t room = std::bit_ceil(in_flight_ + 1);
      finished_.reserve(room);
      completing_.reserve(room);
    }
    threads_->Run([this, op]() noexcept {
      RunBlocking(op);
      const MutexLock lock(&mutex_);
      finished_.push_back(op);
      news_.NotifyOne();
    });
    ++in_flight_;
  }

  size_t Poll(bool wait) override {
    // Some are left when a completion has thrown.
    if (completed_ == completing_.size()) {
      completing_.clear();
      completed_ = 0;
      const MutexLock lock(&mutex_);
      if (wait) {
        while (!woken_ && finished_.empty()) news_.Wait(&mutex_);
        woken_ = false;
      }
      completing_.swap(finished_);
    }
    size_t count = 0;
    while (completed_ < completing_.size()) {
      Op* op = completing_[completed_++];
      --in_flight_;
      ++count;
      op->OnComplete();
    }
    return count;
  }

  void Wake() override {
    // Notifies under the lock: once it is free, the Disk may be gone.
    const MutexLock lock(&mutex_);
    woken_ = true;
    news_.NotifyOne();
  }

  size_t in_flight() const override { return in_flight_; }
  size_t depth() const override { return 2 * threads_->parallelism(); }
  std::string Describe() const override { return "posix"; }

 private:
  Mutex mutex_;
  CondVar news_;
  std::vector<Op*> finished_ STEPWELL_GUARDED_BY(mutex_);
  bool woken_ STEPWELL_GUARDED_BY(mutex_) = false;
  size_t in_flight_ = 0;                     // the Disk's thread only, as the next two
  std::vector<Op*> completing_;              // by Poll, of which
  size_t completed_ = 0;                     // so many are
  const std::unique_ptr<Executor> threads_;  // goes first: ends what was submitted
};

Result<DiskKind> Resolve(DiskKind kind) {
  const char* text = std::getenv("STEPWELL_DISK");
  if (kind != DiskKind::kAuto || text == nullptr) return kind;
  const std::string_view value = text;
  if (value.empty()) return DiskKind::kAuto;
  if (value == "uring") return DiskKind::kUring;
  if (value == "posix") return DiskKind::kPosix;
  return InvalidArgumentError(StrCat("STEPWELL_DISK is '", value, "'; use 'uring' or 'posix'"));
}

}  // namespace

Result<std::unique_ptr<Disk>> MakePosixDisk() { return MakeBlockingDisk(kThreadCount); }

Result<std::unique_ptr<Disk>> MakeBlockingDisk(size_t thread_count) {
  STEPWELL_ASSIGN_OR_RETURN(auto threads, MakeThreadPool(thread_count, "stepwell-io"));
  return std::unique_ptr<Disk>(std::make_unique<PosixDisk>(std::move(threads)));
}

Result<std::unique_ptr<Disk>> MakeInlineDisk() {
  return std::unique_ptr<Disk>(std::make_unique<PosixDisk>(std::make_unique<InlineExecutor>()));
}

Result<std::unique_ptr<Disk>> OpenDisk(const DiskOptions& options) {
  STEPWELL_ASSIGN_OR_RETURN(const DiskKind kind, Resolve(options.kind));
  if (kind == DiskKind::kPosix) return MakePosixDisk();
  Result<std::unique_ptr<Disk>> uring = MakeUringDisk(options.depth);
  if (uring.ok()) return uring;
  const Status& error = uring.status();
  if (kind == DiskKind::kUring) {
    return Status(StatusCode::kUnimplemented,
                  StrCat("io_uring was asked for but cannot be used: ", error.message()),
                  error.os_error());
  }
  Log(options.log, LogLevel::kInfo,
      StrCat("io_uring is not available here (", error.message(), "); using posix I/O"));
  return MakePosixDisk();
}

}  // namespace stepwell::io
