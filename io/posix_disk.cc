// SPDX-License-Identifier: Apache-2.0
#include "io/posix_disk.h"

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
    ++in_flight_;
    {
      std::lock_guard lock(mutex_);
      queue_.push_back(op);
    }
    work_.notify_one();
  }

  size_t Poll(bool wait) override {
    std::deque<Op*> finished;
    {
      std::unique_lock lock(mutex_);
      if (wait) {
        news_.wait(lock, [this] { return woken_ || !finished_.empty(); });
        woken_ = false;
      }
      finished.swap(finished_);
    }
    for (Op* op : finished) {
      --in_flight_;
      op->OnComplete();
    }
    return finished.size();
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
  std::deque<Op*> finished_;          // guarded by mutex_
  bool woken_ = false;                // guarded by mutex_
  bool stopping_ = false;             // guarded by mutex_
  size_t in_flight_ = 0;              // the Disk's thread only
  std::vector<std::thread> threads_;  // constant after Start()
};

}  // namespace

Result<std::unique_ptr<Disk>> MakePosixDisk() {
  auto disk = std::make_unique<PosixDisk>();
  STEPWELL_RETURN_IF_ERROR(disk->Start());
  return std::unique_ptr<Disk>(std::move(disk));
}

}  // namespace stepwell::io
