// SPDX-License-Identifier: Apache-2.0
// The part of `like` that is just as a stored tree has it, for stepwell/_load/like.py: most of a
// state, as a rule. One pass here spares a look at each leaf in Python.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "api/python/tree.h"

namespace stepwell::python {

// Plain dicts, lists and tuples whose children are those of the stored nodes, each found under its
// very key; in them ndarrays of the stored shapes and dtypes, and others, which Python looks at.
class Matched {
 public:
  // Returns null unless `like` itself is such a container.
  static std::unique_ptr<Matched> Make(const Tree& tree, nanobind::handle like, Place number);

  // Records of the ndarrays, in the order of `like`.
  const std::vector<size_t>& leaves() const { return leaves_; }
  // Tuples (what stands in `like`, number of its record), in the order of `like`.
  const nanobind::list& others() const { return others_; }
  // Builds containers like those of `like` with other values in the places of leaves and others.
  nanobind::object Build(const nanobind::list& leaves, const nanobind::list& others) const;

 private:
  enum class Kind : uint8_t { kLeaf, kOther, kDict, kList, kTuple };
  // A container is followed by what is in it.
  struct Part {
    Kind kind;
    size_t count = 0;             // of children
    nanobind::object original{};  // a dict, which has the keys
  };
  class Builder;

  Matched() = default;
  // Adds a container. Returns false, and adds nothing, where the stored children differ.
  bool AddContainer(const Tree& tree, PyObject* like, size_t number);
  void Add(const Tree& tree, PyObject* like, size_t number);

  std::vector<Part> parts_;
  std::vector<size_t> leaves_;
  nanobind::list others_;
};

}  // namespace stepwell::python
