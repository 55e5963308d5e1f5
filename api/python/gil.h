// SPDX-License-Identifier: Apache-2.0
// The GIL, let go and taken again. nanobind's guards do the same, but abort the process when a
// daemon thread is in one while the interpreter ends: until Python 3.14 the interpreter ends a
// thread that asks for the GIL then, with an exception of the C library (pthread_exit), which their
// destructors do not let through.
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <exception>

namespace stepwell::python {

// For a thread that the interpreter does not let in any more. What it holds stays as it is until
// the process ends, as it does from Python 3.14 on: to release it needs the GIL.
[[noreturn]] inline void SleepUntilProcessEnds() {
  for (;;) pause();
}

// Lets the GIL go as long as it lives.
class GilReleased {
 public:
  GilReleased() : state_(PyEval_SaveThread()) {}
  ~GilReleased() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      SleepUntilProcessEnds();
    }
  }
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;

 private:
  PyThreadState* const state_;
};

// Holds the GIL as long as it lives, on any thread.
class GilHeld {
 public:
  GilHeld() : state_(Take()) {}
  ~GilHeld() { PyGILState_Release(state_); }
  GilHeld(const GilHeld&) = delete;
  GilHeld& operator=(const GilHeld&) = delete;

 private:
  static PyGILState_STATE Take() {
    try {
      return PyGILState_Ensure();
    } catch (...) {
      SleepUntilProcessEnds();
    }
  }

  const PyGILState_STATE state_;
};

// At the beginning of a `catch (...)` around calls of Python: what was caught may be the end of the
// thread, which is no exception of C++.
inline void SleepIfThreadEnds() {
  if (std::current_exception() == nullptr) SleepUntilProcessEnds();
}

// The same for a thread that asks for the GIL in Python code that C++ has called: its end comes to
// nanobind's calls, which would abort the process over an exception that is none of C++.
inline void LetThreadsSleepInCalls() {
  nanobind::register_exception_translator([](const std::exception_ptr& error, void*) {
    if (error == nullptr) SleepUntilProcessEnds();
    std::rethrow_exception(error);
  });
}

}  // namespace stepwell::python
