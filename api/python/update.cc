// SPDX-License-Identifier: Apache-2.0
// Arrays brought from one step to another, for stepwell/_update.py.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <utility>
#include <vector>

#include "api/python/array_memory.h"
#include "api/python/bindings.h"
#include "api/python/errors.h"
#include "api/python/tree.h"
#include "db/read/update.h"

namespace stepwell::python {
namespace {

namespace nb = nanobind;

db::MemoryBox MemoryOf(nb::handle array, const format::LeafRecord& record, const Extents& start,
                       const Extents& stop) {
  auto* const object = reinterpret_cast<PyArrayObject*>(array.ptr());
  const format::DTypeInfo* const dtype = format::FindDType(record.dtype);
  const format::Box box = BoxOf(record, start, stop);
  const bool fits = dtype != nullptr && PyArray_Check(array.ptr()) && PyArray_ISWRITEABLE(object) &&
                    PyArray_ISNOTSWAPPED(object) && PyArray_ITEMSIZE(object) == dtype->item_bytes &&
                    static_cast<size_t>(PyArray_NDIM(object)) == box.start.size();
  if (!fits) throw nb::value_error("not memory for this box");
  db::MemoryBox memory{box, static_cast<std::byte*>(PyArray_DATA(object)), {}};
  for (size_t axis = 0; axis < box.start.size(); ++axis) {
    const auto extent = static_cast<uint64_t>(PyArray_DIM(object, static_cast<int>(axis)));
    if (extent != box.stop[axis] - box.start[axis]) {
      throw nb::value_error("memory of another shape");
    }
    memory.strides_bytes.push_back(PyArray_STRIDE(object, static_cast<int>(axis)));
  }
  return memory;
}

// Keeps the trees and the arrays.
class Update {
 public:
  // `leaves`: the number of each leaf in the two trees, and boxes of it: an array, where it begins
  // and where it ends.
  Update(nb::object before, nb::object after, nb::list leaves)
      : before_(std::move(before)), after_(std::move(after)), leaves_(std::move(leaves)) {
    const auto& one = nb::cast<const Tree&>(before_);
    const auto& other = nb::cast<const Tree&>(after_);
    if (one.reader() == nullptr || other.reader() == nullptr) {
      throw nb::value_error("a tree without its records' chunks");
    }
    std::vector<db::LeafMemory> memory;
    for (nb::handle each : leaves_) {
      const auto [numbers, boxes] = nb::cast<std::pair<std::pair<Place, Place>, nb::list>>(each);
      db::LeafMemory& leaf = memory.emplace_back();
      leaf.leaf = {one.At(numbers.first), other.At(numbers.second)};
      for (nb::handle box : boxes) {
        leaf.boxes.push_back(MemoryOf(box[0], other.leaf_records()[leaf.leaf.after],
                                      nb::cast<Extents>(box[1]), nb::cast<Extents>(box[2])));
      }
    }
    update_ = Call([&] {
      return db::StepUpdate::Read({one.reader().get(), one.leaf_records()},
                                  {other.reader().get(), other.leaf_records()}, memory);
    });
  }

  void Apply() {
    Call([&] { return update_->Apply(); });
  }
  db::LoadStats Stats() const { return update_->stats(); }

 private:
  const nb::object before_;
  const nb::object after_;
  const nb::list leaves_;
  std::unique_ptr<db::StepUpdate> update_;
};

}  // namespace

void BindUpdate(nb::module_& m) {
  using nb::arg;
  nb::class_<Update>(m, "Update")
      .def(nb::init<nb::object, nb::object, nb::list>(), arg("before"), arg("after"), arg("leaves"),
           nb::sig("def __init__(self, before: StepTree, after: StepTree, "
                   "leaves: list[tuple[tuple[int, int], list[tuple[typing.Any, "
                   "collections.abc.Sequence[int], collections.abc.Sequence[int]]]]]) -> None"))
      .def("apply", &Update::Apply)
      .def_prop_ro("stats", &Update::Stats);
}

}  // namespace stepwell::python
