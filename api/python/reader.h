// SPDX-License-Identifier: Apache-2.0
// A step that was opened, for stepwell/_load/source.py and _distributed/.
#pragma once

#include <nanobind/nanobind.h>
#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/python/records.h"
#include "db/store.h"

namespace stepwell::python {

class Reader {
 public:
  explicit Reader(std::shared_ptr<db::StepReader> reader);
  ~Reader();
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  const format::StepRecord& record() const { return reader_->step(); }
  const std::shared_ptr<db::StepReader>& reader() const { return reader_; }

  std::unique_ptr<LeafTable> Leaves(const std::optional<std::string>& item);
  // What `path` can lead to from `above` on (components, the item first; [] from the top): a part
  // of the step's records. None: all of them have to be read.
  std::unique_ptr<LeafTable> LookUp(nanobind::handle path, const nanobind::list& above, bool below);
  // The different ones of all leaves, as Orbax spells them.
  std::vector<std::string> Shardings();
  // For an export of the whole step, elsewhere.
  nanobind::bytes Records(const nanobind::bytes& subtree_key);

 private:
  std::shared_ptr<db::StepReader> reader_;
  const pid_t pid_;
};

void BindReader(nanobind::module_& m);

}  // namespace stepwell::python
