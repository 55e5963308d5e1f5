// SPDX-License-Identifier: Apache-2.0
#include "api/python/host_copies.h"

#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string>
#include <utility>

#include "api/python/events.h"
#include "api/python/gil.h"
#include "api/python/leaves.h"
#include "api/python/numpy_api.h"

namespace stepwell::python {
namespace {

namespace nb = nanobind;

nb::list NumbersOf(std::span<const uint32_t> boxes) {
  nb::list numbers;
  for (const uint32_t box : boxes) numbers.append(box);
  return numbers;
}

// The memory of an ndarray. An array of another shape than the shard said it has would be read
// beyond its end.
db::FarSource::Copy CopyOf(const nb::object& object, const format::Shape& shape) {
  if (!PyArray_Check(object.ptr())) throw nb::type_error("a copy must be a NumPy array");
  auto* array = reinterpret_cast<PyArrayObject*>(object.ptr());
  const auto rank = static_cast<size_t>(PyArray_NDIM(array));
  const npy_intp* const dims = PyArray_DIMS(array);
  const npy_intp* const strides = PyArray_STRIDES(array);
  const auto is_extent = [](npy_intp dim, uint64_t extent) {
    return static_cast<uint64_t>(dim) == extent;
  };
  if (!std::equal(dims, dims + rank, shape.begin(), shape.end(), is_extent)) {
    throw nb::value_error("a copy has another shape than its shard");
  }
  return {static_cast<const std::byte*>(PyArray_DATA(array)), {strides, strides + rank}};
}

// Its class, and what it says; a class of the caller's, which a signal's handler may raise, may
// fail to say it, or say what is no UTF-8.
std::string TextOfError(const nb::python_error& error) {
  try {
    return StrCat(TextOf(nb::str(error.type().attr("__name__")).ptr()), ": ",
                  TextOf(nb::str(error.value()).ptr()));
  } catch (const nb::python_error&) {
    return "an error without a text";
  }
}

}  // namespace

HostCopies::~HostCopies() {
  if (copies_.is_valid()) EventQueue::Get().Drop(copies_.release().ptr());
}

db::ShardInput HostCopies::Add(nb::handle shard) {
  db::ShardInput box;
  box.far = static_cast<uint32_t>(shapes_.size());
  if (!copies_.is_valid()) copies_ = make_();
  copies_.attr("add")(shard);
  box.shape = nb::cast<format::Shape>(shard.attr("shape"));
  shapes_.push_back(box.shape);
  return box;
}

template <typename Call>
Status HostCopies::InPython(const Call& call) {
  const GilHeld acquire;
  try {
    call();
    return OkStatus();
  } catch (nb::python_error& error) {
    const std::string text = StrCat("cannot be copied from its device: ", TextOfError(error));
    if (keeps_error_) error_.emplace(std::move(error));
    // The caller gets the exception itself; kCancelled keeps it out of the log.
    return {keeps_error_ ? StatusCode::kCancelled : StatusCode::kUnknown, text};
  }
}

Status HostCopies::Start(std::span<const uint32_t> boxes) {
  return InPython([&] { copies_.attr("start")(NumbersOf(boxes)); });
}

Status HostCopies::Wait(std::span<const uint32_t> boxes, std::vector<Copy>* copies) {
  return InPython([&] {
    for (const uint32_t box : boxes) {
      copies->push_back(CopyOf(copies_.attr("wait")(box), shapes_.at(box)));
    }
  });
}

Status HostCopies::Release(std::span<const uint32_t> boxes) {
  return InPython([&] { copies_.attr("release")(NumbersOf(boxes)); });
}

}  // namespace stepwell::python
