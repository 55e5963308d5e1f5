// SPDX-License-Identifier: Apache-2.0
// A step that was opened, for stepwell/_load/source.py and _distributed/.
#pragma once

#include <nanobind/nanobind.h>
#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/python/tree.h"
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

  // Of the whole step, made once.
  nanobind::object WholeTree();
  // What `path` names from `above` on (components, the item first; [] from where paths start), in a
  // tree that has the records on the way there alone. `whole`: and all below. None: what it names
  // is found, or missed, in the whole tree only.
  std::optional<Selection> Select(nanobind::handle path, const nanobind::list& above, bool whole);
  // What `path` names, in plain containers, NumPy arrays and Python values; for a glob by path.
  // None, with `keys`: there are typed PRNG keys, which do not come as NumPy arrays then.
  std::optional<Loaded> Load(nanobind::handle path, bool keys);
  // The different ones of all leaves, as Orbax spells them.
  std::vector<std::string> Shardings();
  // For an export of the whole step, elsewhere.
  nanobind::bytes Records(const nanobind::bytes& subtree_key);

 private:
  std::shared_ptr<db::StepReader> reader_;
  nanobind::object tree_;
  const pid_t pid_;
};

}  // namespace stepwell::python
