// SPDX-License-Identifier: Apache-2.0
// Imports of Orbax checkpoints, for stepwell/_backend/orbax_source.py.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <vector>

#include "db/import/import.h"
#include "db/store.h"

namespace stepwell::python {

// A checkpoint that is to be imported. All need the GIL; Ctrl-C ends what reads.
class ImportPlan {
 public:
  ImportPlan(const std::string& path, std::vector<std::string> items);

  nanobind::bytes Identity() const;
  std::vector<std::string> Items() const { return plan_.ItemNames(); }
  // Reads a share and saves it as a step, or prepares it. Once. Cut short, nothing is saved.
  // `request`: of the step, without items.
  db::SaveHandle Save(db::StoreWriter* store, const db::SaveRequest& request,
                      const db::ImportShare& share);

 private:
  db::ImportPlan plan_;
};

}  // namespace stepwell::python
