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

  // Returns the tree of the whole step, made once.
  nanobind::object WholeTree();
  // Resolves `path` from `above` on (components, the item first; [] from where paths start), in a
  // tree of only the records on the way there. With `whole` the tree also has all records below.
  // None: only the whole tree can tell what the path names.
  std::optional<Selection> Select(nanobind::handle path, const nanobind::list& above, bool whole);
  // Loads what `path` names into plain containers, NumPy arrays and Python values; a glob gives
  // them by path. With `keys` the result is None if there are typed PRNG keys, because those do not
  // load as NumPy arrays.
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
