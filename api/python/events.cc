// SPDX-License-Identifier: Apache-2.0
#include "api/python/events.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <pthread.h>

#include <thread>
#include <utility>

#include "api/python/bindings.h"
#include "api/python/gil.h"

namespace stepwell::python {
namespace {

namespace nb = nanobind;

EventQueue* g_queue = new EventQueue;

void ReplaceQueueInChild() { g_queue = new EventQueue; }

// Drops the references that the engine has let go.
EventQueue::Events TakeEvents(double timeout_s) {
  EventQueue::Events events;
  {
    GilReleased release;
    events =
        EventQueue::Get().Take(std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1e3)));
  }
  for (PyObject* object : events.drops) Py_DECREF(object);
  return events;
}

}  // namespace

EventQueue& EventQueue::Get() { return *g_queue; }

void EventQueue::InstallForkHandler() {
  static const int kInstalled = pthread_atfork(nullptr, nullptr, ReplaceQueueInChild);
  (void)kInstalled;
}

void EventQueue::Drop(PyObject* object) {
  bool was_empty;
  {
    const io::MutexLock lock(&mutex_);
    was_empty = EmptyLocked();
    events_.drops.push_back(object);
  }
  Notify(was_empty);
}

void EventQueue::Log(LogLevel level, std::string_view text) {
  if (static_cast<int>(level) < level_.load(std::memory_order_relaxed)) return;
  bool was_empty;
  {
    const io::MutexLock lock(&mutex_);
    was_empty = EmptyLocked();
    events_.logs.push_back({level, std::string(text)});
  }
  Notify(was_empty);
}

void EventQueue::Complete(uint64_t token) {
  bool was_empty;
  {
    const io::MutexLock lock(&mutex_);
    was_empty = EmptyLocked();
    events_.completions.push_back(token);
  }
  Notify(was_empty);
}

void EventQueue::Notify(bool was_empty) {
  if (was_empty) changed_.NotifyOne();
}

void EventQueue::Wake() {
  {
    const io::MutexLock lock(&mutex_);
    woken_ = true;
  }
  changed_.NotifyOne();
}

EventQueue::Events EventQueue::Take(std::chrono::milliseconds timeout) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  const io::MutexLock lock(&mutex_);
  while (!woken_ && EmptyLocked() && changed_.WaitUntil(&mutex_, end)) {
  }
  if (!woken_ && !EmptyLocked() && events_.completions.empty()) {
    const io::MutexUnlock unlocked(&mutex_);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  woken_ = false;
  return std::exchange(events_, Events{});
}

std::shared_ptr<const void> HoldForEngine(PyObject* object) {
  return {static_cast<const void*>(object), [](const void* held) {
            EventQueue::Get().Drop(static_cast<PyObject*>(const_cast<void*>(held)));
          }};
}

void BindEvents(nb::module_& m) {
  using nb::arg;
  nb::enum_<LogLevel>(m, "LogLevel")
      .value("DEBUG", LogLevel::kDebug)
      .value("INFO", LogLevel::kInfo)
      .value("WARNING", LogLevel::kWarning)
      .value("ERROR", LogLevel::kError);
  using LogLine = EventQueue::LogLine;
  nb::class_<LogLine>(m, "LogLine")
      .def_ro("level", &LogLine::level)
      .def_prop_ro("text", [](const LogLine& line) {
        return nb::steal<nb::str>(PyUnicode_DecodeUTF8(
            line.text.data(), static_cast<Py_ssize_t>(line.text.size()), "backslashreplace"));
      });
  using Events = EventQueue::Events;
  nb::class_<Events>(m, "Events")
      .def_ro("logs", &Events::logs)
      // Tokens that handles were to notify of.
      .def_ro("completions", &Events::completions);
  m.def("take_events", &TakeEvents, arg("timeout"));
  m.def(
      "set_log_level", [](std::optional<LogLevel> level) { EventQueue::Get().SetLevel(level); },
      arg("level").none());
  m.def("wake_events", [] { EventQueue::Get().Wake(); });
}

}  // namespace stepwell::python
