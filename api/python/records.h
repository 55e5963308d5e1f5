// SPDX-License-Identifier: Apache-2.0
// The records of a step for Python.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "db/store.h"

namespace stepwell::python {

using Extents = std::vector<uint64_t>;
using ShapeTuple = nanobind::typed<nanobind::tuple, uint64_t, nanobind::ellipsis>;

// A leaf, or the box start <= i < stop of an array.
struct Wanted {
  size_t leaf = 0;
  std::optional<Extents> start{};  // with stop, or neither: all of the leaf
  std::optional<Extents> stop{};
  int numa_node = -1;  // in whose memory; -1: any
};

// A leaf record as Python looks at it.
struct Record {
  format::LeafKind kind{};
  format::ValueType value_type{};
  format::ContainerKind container{};
  nanobind::str type_name;
  nanobind::object dtype;  // np.dtype of an array, else None
  ShapeTuple shape;
  bool weak_type = false;
  nanobind::str prng_impl;
  nanobind::str sharding;
  ShapeTuple chunk_shape;
  uint64_t logical_bytes = 0;
  ShapeTuple shard_shape;  // () also: there was one shard
  std::optional<format::LeafStatistics> statistics{};
  nanobind::str variable_types;  // of the NNX Variables around it, outermost first; "": none
};
Record RecordOf(const format::LeafRecord& record);

// The np.dtype of an array, borrowed. CorruptionError for an element type that is not known.
PyObject* DTypeOf(const format::LeafRecord& record);
// A component as a dict has it, and as (type, value).
nanobind::object KeyObject(const format::PathComponent& component);
nanobind::object ComponentObject(const format::PathComponent& component);
// Decodes a value of Python, such as an int or a str, from its stored bytes (loading.cc).
nanobind::object ValueObject(format::ValueType type, nanobind::bytes data);

}  // namespace stepwell::python
