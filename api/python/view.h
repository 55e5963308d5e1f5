// SPDX-License-Identifier: Apache-2.0
// Views of a store as Orbax checkpoints, for stepwell/_interop/orbax_view.py.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>
#include <vector>

#include <sys/types.h>

#include "db/view/view.h"

namespace stepwell::python {

class View {
 public:
  explicit View(std::shared_ptr<db::OrbaxView> view);
  ~View();
  View(const View&) = delete;
  View& operator=(const View&) = delete;

  std::string path() const { return view_->path(); }
  std::string PathOf(uint64_t step) const { return view_->PathOf(step); }
  // False after `timeout_s`, which is short: the caller looks for Ctrl-C in between.
  bool Wait(double timeout_s);
  void Close(bool keep);
  db::ViewStats Stats() const { return view_->Stats(); }

 private:
  std::shared_ptr<db::OrbaxView> view_;
  const pid_t pid_;
};

std::unique_ptr<View> OpenView(db::StoreReader* store, const std::string& path,
                               const ExportOptions& checkpoint, bool beside, double poll_s);

}  // namespace stepwell::python
