// SPDX-License-Identifier: Apache-2.0
#include "io/for_each.h"

#include <algorithm>
#include <atomic>
#include <memory>

#include "io/guard.h"
#include "io/mutex.h"

namespace stepwell::io {
namespace {

// Shared by the threads of a ForEach. A task that starts late finds nothing to do, and touches
// nothing of the caller's.
struct Loop {
  Loop(size_t loop_count, const std::function<void(size_t, size_t)>* loop_work)
      : count(loop_count), work(loop_work) {}

  bool Enter() {
    const MutexLock lock(&mutex);
    if (over) return false;
    ++inside;
    return true;
  }
  void Leave() {
    const MutexLock lock(&mutex);
    --inside;
    left.NotifyAll();
  }
  void WorkOn(size_t thread) {
    for (size_t i = next++; i < count; i = next++) (*work)(i, thread);
  }
  void WaitForOthers() {
    const MutexLock lock(&mutex);
    over = true;
    while (inside > 0) left.Wait(&mutex);
  }

  const size_t count;
  const std::function<void(size_t, size_t)>* const work;
  std::atomic<size_t> next{0};
  Mutex mutex;
  CondVar left;
  size_t inside STEPWELL_GUARDED_BY(mutex) = 0;  // tasks that work
  bool over STEPWELL_GUARDED_BY(mutex) = false;
};

}  // namespace

void ForEach(Executor* executor, size_t count, const std::function<void(size_t, size_t)>& work) {
  const auto loop = std::make_shared<Loop>(count, &work);
  const size_t others = count == 0 ? 0 : std::min(executor->parallelism(), count - 1);
  for (size_t thread = 1; thread <= others; ++thread) {
    const auto task = [loop, thread] {
      if (!loop->Enter()) return;
      loop->WorkOn(thread);
      loop->Leave();
    };
    // Without memory for a task this thread does the work.
    Quietly([&] { executor->Run(task); });
  }
  loop->WorkOn(0);
  loop->WaitForOthers();
}

}  // namespace stepwell::io
