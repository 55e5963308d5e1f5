// SPDX-License-Identifier: Apache-2.0
// Waits for changes of a directory: a store's, for stepwell/_follow.py, or that of a run's steps.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>

#include "io/directory_watch.h"

namespace stepwell::python {

class Watch {
 public:
  // As io::DirectoryWatch::Open.
  Watch(const std::string& directory, const std::string& name);

  // Returns true if something has changed or Wake() was called, false after `timeout_s`. Without
  // the GIL; Ctrl-C raises.
  bool Wait(double timeout_s);
  void Wake() { watch_->Wake(); }
  // The reason why changes are not told; "": they are.
  std::string WhyNot() const { return watch_->status().ok() ? "" : watch_->status().message(); }

 private:
  const std::unique_ptr<io::DirectoryWatch> watch_;
};

}  // namespace stepwell::python
