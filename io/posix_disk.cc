// SPDX-License-Identifier: Apache-2.0
#include "io/posix_disk.h"

#include <bit>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "io/thread.h"
#include "io/transfer.h"

namespace stepwell::io {
namespace {

// Enough to keep one device busy with large blocks, few enough not to disturb the training.
constexpr size_t kThreadCount = 4;

class PosixDisk final : public Disk {
 public:
  ~PosixDisk() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  Status Start() {
    threads_.reserve(kThreadCount);
    for (size_t i = 0; i < kThreadCount; ++i) {
      auto thread = StartThread("stepwell-io", [this] { Work(); });
      if (thread.ok()) {
        threads_.push_back(std::move(thread).value());
      } else if (threads_.empty()) {
        return thread.status();
      } else {
        break;  // fewer will do
      }
    }
    return OkStatus();
  }

  void Submit(Op* op) override {
    {
      std::lock_guard lock(mutex_);
      // Room for all that may finish: only Submit allocates.
      const size_t room = std::bit_ceil(in_flight_ + 1);
      finished_.reserve(room);
      completing_.reserve(room);
      queue_.push_back(op);
    }
    ++in_flight_;
    work_.notify_one();
  }

  size_t Poll(bool wait) override {
    // Some are left when a completion has thrown.
    if (completed_ == completing_.size()) {
      completing_.clear();
      completed_ = 0;
      std::unique_lock lock(mutex_);
      if (wait) {
        news_.wait(lock, [this] { return woken_ || !finished_.empty(); });
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
    std::lock_guard lock(mutex_);
    woken_ = true;
    news_.notify_one();
  }

  size_t in_flight() const override { return in_flight_; }
  size_t depth() const override { return 2 * threads_.size(); }
  std::string Describe() const override { return "posix"; }

 private:
  void Work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      work_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;  // stopping, and all that was submitted is done
      Op* op = queue_.front();
      queue_.pop_front();
      lock.unlock();
      RunBlocking(op);
      lock.lock();
      finished_.push_back(op);
      news_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable news_;
  std::deque<Op*> queue_;             // guarded by mutex_
  std::vector<Op*> finished_;         // guarded by mutex_
  bool woken_ = false;                // guarded by mutex_
  bool stopping_ = false;             // guarded by mutex_
  size_t in_flight_ = 0;              // the Disk's thread only, as the next two
  std::vector<Op*> completing_;       // by Poll, of which
  size_t completed_ = 0;              // so many are
  std::vector<std::thread> threads_;  // constant after Start()
};

}  // namespace

Result<std::unique_ptr<Disk>> MakePosixDisk() {
  auto disk = std::make_unique<PosixDisk>();
  STEPWELL_RETURN_IF_ERROR(disk->Start());
  return std::unique_ptr<Disk>(std::move(disk));
}

}  // namespace stepwell::io
