// SPDX-License-Identifier: Apache-2.0
#include "api/python/watch.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <chrono>

#include "api/python/bindings.h"
#include "api/python/errors.h"
#include "api/python/gil.h"
#include "api/python/interrupt.h"

namespace stepwell::python {

namespace nb = nanobind;

Watch::Watch(const std::string& directory, const std::string& name)
    : watch_(Call([&] { return io::DirectoryWatch::Open(directory, name); })) {}

bool Watch::Wait(double timeout_s) {
  using Clock = std::chrono::steady_clock;
  constexpr double kForever = 1e9;
  const auto timeout = std::chrono::duration<double>(std::clamp(timeout_s, 0.0, kForever));
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(timeout);
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
    bool told = false;
    {
      const GilReleased release;
      told = watch_->Wait(std::clamp(left, std::chrono::milliseconds{0}, kInterruptSlice));
    }
    if (PyErr_CheckSignals() != 0) nb::raise_python_error();
    if (told || Clock::now() >= end) return told;
  }
}

void BindWatch(nb::module_& m) {
  using nb::arg;
  nb::class_<Watch>(m, "Watch", nb::is_weak_referenceable())
      .def(nb::init<const std::string&, const std::string&>(), arg("directory"), arg("name") = "")
      .def("wait", &Watch::Wait, arg("timeout_s"))
      .def("wake", &Watch::Wake)
      .def_prop_ro("why_not", &Watch::WhyNot);
}

}  // namespace stepwell::python
