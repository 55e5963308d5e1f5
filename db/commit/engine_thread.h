// SPDX-License-Identifier: Apache-2.0
// The engine thread's inbox: other threads post tasks, or end its work by a panic.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "io/disk.h"
#include "io/guard.h"
#include "io/mutex.h"

namespace stepwell::db {

class EngineThread {
 public:
  // `disk` wakes the engine thread; `freeze` is tripped by a panic.
  EngineThread(io::Disk* disk, std::shared_ptr<io::Freeze> freeze)
      : freeze_(std::move(freeze)), disk_(disk) {}

  // ---- any thread --------------------------------------------------------------------------
  // Throws where there is no memory, as does all that is not said to work without.
  void Post(std::function<void()> task);
  // An exception lost some of the engine's work, so what remains to be done is unknown. The store
  // freezes; what is on its way to the disk ends there, then every change and every call that waits
  // for the engine ends with an error. Works without memory.
  void Panic(const Status& why) noexcept;
  bool panicked() const { return panicked_.load(); }

  // ---- engine thread -----------------------------------------------------------------------
  // Runs what was posted; false: nothing was.
  bool RunPosted();
  // Runs `work`. The engine has no operation to blame for an exception (there is no memory): the
  // store freezes, as after a failed write, and the training goes on.
  template <typename Work>
  void PanicOnThrow(Work work) {
    const Status status = io::Guarded("go on in the engine", [&] {
      work();
      return OkStatus();
    });
    if (!status.ok()) Panic(status);
  }
  // The disk is about to go: what is still posted wakes no thread.
  void LeaveDisk();

 private:
  const std::shared_ptr<io::Freeze> freeze_;
  std::atomic<bool> panicked_{false};
  io::Mutex mutex_;
  io::Disk* disk_ STEPWELL_GUARDED_BY(mutex_);
  std::vector<std::function<void()>> posted_ STEPWELL_GUARDED_BY(mutex_);
};

}  // namespace stepwell::db
