// SPDX-License-Identifier: Apache-2.0
#include "api/python/events.h"

#include <pthread.h>

#include <thread>

namespace stepwell::python {
namespace {

EventQueue* g_queue = new EventQueue;

void ReplaceQueueInChild() { g_queue = new EventQueue; }

}  // namespace

EventQueue& EventQueue::Get() { return *g_queue; }

void EventQueue::InstallForkHandler() {
  static const int kInstalled = pthread_atfork(nullptr, nullptr, ReplaceQueueInChild);
  (void)kInstalled;
}

void EventQueue::Drop(PyObject* object) {
  bool was_empty;
  {
    std::lock_guard lock(mutex_);
    was_empty = EmptyLocked();
    events_.drops.push_back(object);
  }
  Notify(was_empty);
}

void EventQueue::Log(LogLevel level, std::string_view text) {
  if (static_cast<int>(level) < level_.load(std::memory_order_relaxed)) return;
  bool was_empty;
  {
    std::lock_guard lock(mutex_);
    was_empty = EmptyLocked();
    events_.logs.emplace_back(level, std::string(text));
  }
  Notify(was_empty);
}

void EventQueue::Complete(uint64_t token) {
  bool was_empty;
  {
    std::lock_guard lock(mutex_);
    was_empty = EmptyLocked();
    events_.completions.push_back(token);
  }
  Notify(was_empty);
}

void EventQueue::Notify(bool was_empty) {
  if (was_empty) changed_.notify_one();
}

void EventQueue::Wake() {
  {
    std::lock_guard lock(mutex_);
    woken_ = true;
  }
  changed_.notify_one();
}

EventQueue::Events EventQueue::Take(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, timeout, [this] { return woken_ || !EmptyLocked(); });
  if (!woken_ && !EmptyLocked() && events_.completions.empty()) {
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    lock.lock();
  }
  woken_ = false;
  return std::exchange(events_, Events{});
}

std::shared_ptr<const void> HoldForEngine(PyObject* object) {
  return {static_cast<const void*>(object), [](const void* held) {
            EventQueue::Get().Drop(static_cast<PyObject*>(const_cast<void*>(held)));
          }};
}

}  // namespace stepwell::python
