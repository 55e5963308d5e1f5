// SPDX-License-Identifier: Apache-2.0
#include "api/python/array_memory.h"

#include <algorithm>
#include <array>
#include <memory>
#include <new>
#include <utility>

#include "api/python/errors.h"
#include "format/grid.h"
#include "io/buffer.h"

namespace stepwell::python {
namespace {

namespace nb = nanobind;

// Small arrays share buffers of at most this size, so that they do not take a page each; a larger
// array has its own memory, given back as soon as it dies. A full one is one huge page, which costs
// one page fault instead of 512.
constexpr size_t kArenaBytes = size_t{2} << 20;
constexpr size_t kArenaLeafBytesMax = size_t{64} << 10;
constexpr size_t kArrayAlignment = 64;  // jax takes host memory of this alignment without a copy

struct Owned {
  std::byte* data = nullptr;
  nb::object owner;
};

Owned NewBuffer(size_t size_bytes, int numa_node) {
  // A node is preferred for a whole mapping: pages of the heap would keep it for what comes later.
  if (numa_node >= 0) size_bytes = std::max(size_bytes, io::AlignedBuffer::kMappedBytesMin);
  auto buffer = std::make_unique<io::AlignedBuffer>(size_bytes);
  if (!*buffer) throw std::bad_alloc();
  if (numa_node >= 0) {
    io::PreferNumaNode(buffer->bytes(), numa_node)
        .IgnoreError("farther memory is slower, not wrong");
  }
  std::byte* const data = buffer->data();
  nb::capsule owner(buffer.get(),
                    [](void* p) noexcept { delete static_cast<io::AlignedBuffer*>(p); });
  static_cast<void>(buffer.release());  // the capsule's now
  return {data, std::move(owner)};
}

}  // namespace

void ArrayMemory::Expect(uint64_t size_bytes, int numa_node) {
  if (size_bytes <= kArenaLeafBytesMax) {
    arenas_[numa_node].expected_bytes += static_cast<size_t>(AlignUp(size_bytes, kArrayAlignment));
  }
}

std::byte* ArrayMemory::TakeSmall(size_t size_bytes, int numa_node, nb::object* owner) {
  const auto used_bytes = static_cast<size_t>(AlignUp(size_bytes, kArrayAlignment));
  Arena& arena = arenas_[numa_node];
  if (!arena.owner.is_valid() || arena.used_bytes + used_bytes > arena.size_bytes) {
    // Half a huge page or more: the whole one, which takes less time.
    arena.size_bytes = arena.expected_bytes >= kArenaBytes / 2
                           ? kArenaBytes
                           : std::max(arena.expected_bytes, used_bytes);
    Owned memory = NewBuffer(arena.size_bytes, numa_node);
    arena.data = memory.data;
    arena.owner = std::move(memory.owner);
    arena.used_bytes = 0;
  }
  std::byte* const data = arena.data + arena.used_bytes;
  arena.used_bytes += used_bytes;
  arena.expected_bytes -= std::min(arena.expected_bytes, used_bytes);
  *owner = arena.owner;
  return data;
}

nb::object ArrayMemory::NewArray(PyArray_Descr* descriptor, const std::vector<uint64_t>& shape,
                                 int numa_node) {
  const auto item_bytes = static_cast<size_t>(PyDataType_ELSIZE(descriptor));
  const uint64_t count = ValueOrThrow(format::ElementCount(shape, item_bytes));
  const size_t size_bytes = static_cast<size_t>(count) * item_bytes;
  if (shape.size() > NPY_MAXDIMS) {
    throw nb::value_error("more axes than NumPy's arrays can have");
  }
  std::array<npy_intp, NPY_MAXDIMS> dims{};
  for (size_t i = 0; i < shape.size(); ++i) dims[i] = static_cast<npy_intp>(shape[i]);

  std::byte* data = nullptr;
  nb::object owner;
  if (size_bytes > kArenaLeafBytesMax) {
    Owned memory = NewBuffer(size_bytes, numa_node);
    data = memory.data;
    owner = std::move(memory.owner);
  } else if (size_bytes > 0) {
    data = TakeSmall(size_bytes, numa_node, &owner);
  }
  Py_INCREF(descriptor);  // PyArray_NewFromDescr takes it over
  nb::object array = nb::steal(
      PyArray_NewFromDescr(&PyArray_Type, descriptor, static_cast<int>(shape.size()), dims.data(),
                           nullptr, data, data == nullptr ? 0 : NPY_ARRAY_CARRAY, nullptr));
  if (!array.is_valid()) nb::raise_python_error();
  if (owner.is_valid() && PyArray_SetBaseObject(reinterpret_cast<PyArrayObject*>(array.ptr()),
                                                owner.release().ptr()) < 0) {
    nb::raise_python_error();
  }
  return array;
}

nb::object MemoryNear(size_t size_bytes, int numa_node) {
  PyArray_Descr* const bytes = PyArray_DescrFromType(NPY_UINT8);  // a new reference
  const nb::object held = nb::steal(reinterpret_cast<PyObject*>(bytes));
  return ArrayMemory().NewArray(bytes, {size_bytes}, numa_node);
}

}  // namespace stepwell::python
