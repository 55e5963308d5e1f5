// SPDX-License-Identifier: Apache-2.0
// Memory for the NumPy arrays that a load fills.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "api/python/numpy_api.h"

namespace stepwell::python {

// Hands out memory for a load's arrays, each with the object that owns it. It is aligned so that
// jax takes it without a copy, and comes from a NUMA node where that is asked for and possible.
class ArrayMemory {
 public:
  // Announces the sizes of arrays that will be allocated. The class sizes the buffers of small
  // arrays by it.
  void Expect(uint64_t size_bytes, int numa_node);
  // Returns an array of zeros. Borrows `descriptor`. The caller holds the GIL.
  nanobind::object NewArray(PyArray_Descr* descriptor, const std::vector<uint64_t>& shape,
                            int numa_node);

 private:
  // A buffer that small arrays share.
  struct Arena {
    nanobind::object owner;
    std::byte* data = nullptr;
    size_t size_bytes = 0;
    size_t used_bytes = 0;
    size_t expected_bytes = 0;  // bytes of small arrays still to come
  };
  std::byte* TakeSmall(size_t size_bytes, int numa_node, nanobind::object* owner);

  std::map<int, Arena> arenas_;  // by NUMA node
};

// `size_bytes` of zeros on a NUMA node, as an array of bytes.
nanobind::object MemoryNear(size_t size_bytes, int numa_node);

}  // namespace stepwell::python
