// SPDX-License-Identifier: Apache-2.0
// The plain part of a tree that is saved, as rows: most of a state, and one pass here spares a look
// at each leaf in Python.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/python/leaves.h"

namespace stepwell::python {

// Walks dicts whose keys are str, lists and tuples, of no subclass; in them it knows ndarrays, and
// jax arrays whose memory can be viewed. Of all else `add_other` of its subclass in Python adds the
// rows (Flattener in stepwell/_pytree/tree.py), which may come back here for what is below.
class PlainFlattener {
 public:
  // `numbers`: the format's number of each dtype. `depth_max`: components of a path.
  PlainFlattener(nanobind::dict numbers, size_t depth_max);

  // Adds the rows of `node` at `path`, a tuple of components; whether there were any. `self`: the
  // Python object that this is. `node` may change meanwhile, on other threads.
  bool Walk(nanobind::handle self, nanobind::handle node, const nanobind::tuple& path,
            bool in_equinox);

  nanobind::list rows;   // of Row
  nanobind::set meshes;  // numbers of rows: of arrays on meshes of this process alone
  nanobind::object jax_type = nanobind::none();  // the class of plain jax arrays, once one was met

 private:
  // The place of a container.
  struct Place {
    nanobind::handle self;
    nanobind::tuple path;  // of components
    std::string key;       // `path` as format::EncodePath gives it
    bool in_equinox;
  };

  bool AddPlain(nanobind::handle self, PyObject* node, const std::string& key);
  bool AddArray(PyObject* array, const std::string& key);
  bool AddJax(nanobind::handle self, PyObject* array, const std::string& key);
  bool AddBelow(const Place& place, PyObject* node);
  void AddDict(const Place& place, PyObject* dict);
  void AddSequence(const Place& place, format::ContainerKind kind, PyObject* children);
  bool AddChild(const Place& place, const std::string& key, PyObject* child,
                format::PathComponent::Type type, nanobind::handle value);
  int NumberOf(PyObject* dtype);
  Row& NewRow(const std::string& key, RowTag tag);

  const nanobind::dict numbers_;
  const size_t depth_max_;
  const nanobind::handle row_type_;
  std::vector<std::pair<nanobind::object, int>> dtypes_;  // those met, and their numbers
};

}  // namespace stepwell::python
