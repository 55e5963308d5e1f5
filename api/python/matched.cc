// SPDX-License-Identifier: Apache-2.0
#include "api/python/matched.h"

#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "api/python/bindings.h"
#include "api/python/leaves.h"
#include "api/python/numpy_api.h"

namespace stepwell::python {
namespace {

namespace nb = nanobind;
using db::StepTree;
using format::LeafRecord;
using format::PathComponent;

// Returns none for keys of other types, for which Python has the rules.
std::optional<PathComponent> ComponentOfKey(PyObject* key) {
  if (PyUnicode_CheckExact(key)) return PathComponent::Key(TextOf(key));
  if (!PyLong_CheckExact(key)) return std::nullopt;
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(key, &overflow);
  if (overflow != 0) return std::nullopt;
  return PathComponent::IntKey(number);
}

// Finds children by their components. Asked for in key order, as those of a jax dict are, each is
// the next one.
class Children {
 public:
  Children(const StepTree& tree, size_t number)
      : tree_(tree), number_(number), children_(tree.Children(number)) {}

  size_t size() const { return children_.size(); }
  std::optional<size_t> Find(const PathComponent& component) {
    if (next_ < children_.size() && tree_.component(children_[next_]) == component) {
      return children_[next_++];
    }
    const std::optional<size_t> found = tree_.FindChild(number_, component);
    if (found) {
      next_ =
          static_cast<size_t>(std::ranges::lower_bound(children_, *found) - children_.begin()) + 1;
    }
    return found;
  }

 private:
  const StepTree& tree_;
  const size_t number_;
  const std::vector<size_t> children_;  // in key order
  size_t next_ = 0;
};

bool IsAsStored(PyArrayObject* array, const LeafRecord& record) {
  if (record.kind != format::LeafKind::kArray || record.value_type == format::ValueType::kPrngKey ||
      static_cast<size_t>(PyArray_NDIM(array)) != record.shape.size() ||
      reinterpret_cast<PyObject*>(PyArray_DESCR(array)) != DTypeOf(record)) {
    return false;
  }
  const npy_intp* dims = PyArray_DIMS(array);
  return std::ranges::equal(record.shape, std::span(dims, record.shape.size()), {},
                            [](uint64_t extent) { return static_cast<npy_intp>(extent); });
}

}  // namespace

std::unique_ptr<Matched> Matched::Make(const Tree& tree, nb::handle like, Place number) {
  std::unique_ptr<Matched> matched(new Matched);
  if (!matched->AddContainer(tree, like.ptr(), tree.At(number))) return nullptr;
  return matched;
}

bool Matched::AddContainer(const Tree& tree, PyObject* like, size_t number) {
  const StepTree& stored = tree.tree();
  const bool is_dict = PyDict_CheckExact(like);
  const bool is_list = PyList_CheckExact(like);
  if (!is_dict && !is_list && !PyTuple_CheckExact(like)) return false;
  if (!stored.IsNode(number)) return false;
  Children children(stored, number);
  // Copies: what it borrows from stays as it is, whatever happens to `like`.
  const nb::object original = nb::steal(is_dict ? PyDict_Copy(like) : PySequence_Tuple(like));
  if (!original.is_valid()) nb::raise_python_error();
  const auto count = static_cast<size_t>(PyObject_Size(original.ptr()));
  if (count != children.size()) return false;
  std::vector<std::pair<PyObject*, size_t>> found;
  found.reserve(count);
  const auto find = [&](const std::optional<PathComponent>& component, PyObject* child) {
    const std::optional<size_t> at = component ? children.Find(*component) : std::nullopt;
    if (at) found.emplace_back(child, *at);
    return at.has_value();
  };
  if (is_dict) {
    PyObject* key = nullptr;
    PyObject* child = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(original.ptr(), &at, &key, &child) != 0;) {
      if (!find(ComponentOfKey(key), child)) return false;
    }
  } else {
    for (size_t i = 0; i < count; ++i) {
      PyObject* child = PyTuple_GET_ITEM(original.ptr(), static_cast<Py_ssize_t>(i));
      if (!find(PathComponent::Index(static_cast<int64_t>(i)), child)) return false;
    }
  }
  parts_.push_back({is_dict   ? Kind::kDict
                    : is_list ? Kind::kList
                              : Kind::kTuple,
                    count, is_dict ? original : nb::object()});
  for (const auto& [child, at] : found) Add(tree, child, at);
  return true;
}

void Matched::Add(const Tree& tree, PyObject* like, size_t number) {
  if (PyArray_CheckExact(like)) {
    if (IsAsStored(reinterpret_cast<PyArrayObject*>(like), tree.leaf_records()[number])) {
      leaves_.push_back(number);
      parts_.push_back({.kind = Kind::kLeaf});
      return;
    }
  } else if (AddContainer(tree, like, number)) {
    return;
  }
  others_.append(nb::make_tuple(nb::handle(like), number));
  parts_.push_back({.kind = Kind::kOther});
}

class Matched::Builder {
 public:
  Builder(const std::vector<Part>& parts, const nb::list& leaves, const nb::list& others)
      : part_(parts.begin()), leaves_(leaves), others_(others) {}

  nb::object Next() {
    const Part& part = *part_++;
    switch (part.kind) {
      case Kind::kLeaf:
        return leaves_[leaf_++];
      case Kind::kOther:
        return others_[other_++];
      case Kind::kDict:
        return NextDict(part.original);
      default:
        break;
    }
    nb::list made;
    for (size_t i = 0; i < part.count; ++i) made.append(Next());
    return part.kind == Kind::kList ? nb::object(made) : nb::object(nb::tuple(made));
  }

 private:
  nb::object NextDict(const nb::object& original) {
    nb::dict made;
    PyObject* key = nullptr;
    PyObject* child = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(original.ptr(), &at, &key, &child) != 0;) {
      const nb::object value = Next();
      if (PyDict_SetItem(made.ptr(), key, value.ptr()) < 0) nb::raise_python_error();
    }
    return made;
  }

  std::vector<Part>::const_iterator part_;
  const nb::list& leaves_;
  const nb::list& others_;
  size_t leaf_ = 0;
  size_t other_ = 0;
};

nb::object Matched::Build(const nb::list& leaves, const nb::list& others) const {
  if (nb::len(leaves) != leaves_.size() || nb::len(others) != nb::len(others_)) {
    throw nb::value_error("not one value for each place");
  }
  return Builder(parts_, leaves, others).Next();
}

void BindMatched(nb::module_& m) {
  using nb::arg;
  nb::class_<Matched>(m, "Matched")
      .def_prop_ro("leaves", &Matched::leaves)
      .def_prop_ro("others", &Matched::others,
                   nb::for_getter(nb::sig("def others(self) -> list[tuple[typing.Any, int]]")))
      .def("build", &Matched::Build, arg("leaves"), arg("others"),
           nb::sig("def build(self, leaves: list[typing.Any], others: list[typing.Any]) -> "
                   "typing.Any"));
  m.def("match_exactly", &Matched::Make, arg("tree"), arg("like"), arg("number"),
        nb::sig(
            "def match_exactly(tree: StepTree, like: typing.Any, number: int) -> Matched | None"));
  m.def(
      "whole_leaves",
      [](const std::vector<size_t>& numbers) {
        std::vector<Wanted> wanted(numbers.size());
        for (size_t i = 0; i < numbers.size(); ++i) wanted[i].leaf = numbers[i];
        return wanted;
      },
      arg("numbers"));
}

}  // namespace stepwell::python
