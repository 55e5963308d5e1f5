// SPDX-License-Identifier: Apache-2.0
// The records of a step for Python, and loading into NumPy arrays.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "db/read/step_tree.h"
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
  Py_ssize_t parent = -1;      // number of the container that it is in; -1: it is an item
  nanobind::object component;  // the last of its path; None for an item's root
  nanobind::str item;
  size_t depth = 0;
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
  ShapeTuple shard_shape;        // () also: there was one shard
  nanobind::str variable_types;  // of the NNX Variables around it, outermost first; "": none
};

// A step's leaf records; pins the step while it lives.
class LeafTable {
 public:
  // `is_part`: `records` are of db::FindAlong, not all of the step.
  LeafTable(std::shared_ptr<db::StepReader> reader, std::vector<format::LeafRecord> records,
            bool is_part = false);
  // From what EncodedRecords of several tables gave: all but what reads.
  LeafTable(uint64_t step, const nanobind::dict& encoded);
  ~LeafTable();
  LeafTable(const LeafTable&) = delete;
  LeafTable& operator=(const LeafTable&) = delete;

  size_t size() const { return records_.size(); }
  // In key order, as are all lists here.
  std::vector<Record> Records() const;
  // By key, without their chunks, as format/records.h encodes them.
  nanobind::dict EncodedRecords() const;
  // (objects, stats): arrays as ndarrays, values as bytes, in the order of `boxes`. Each chunk is
  // read once, however many boxes want it.
  nanobind::tuple ReadBoxes(const std::vector<Wanted>& boxes);
  // (object, stats): record `index`, with all that is below a node in containers as they were
  // stored: dict, list and tuple, everything else as a dict; none: a dict of the items.
  // `decode_value`: (value type, bytes) -> object.
  nanobind::tuple Load(std::optional<size_t> index, nanobind::callable decode_value);
  // The leaves at and below record `index` (none: of the whole table), in key order.
  std::vector<size_t> LeavesBelow(std::optional<size_t> index) const;
  // What Load gives, from the values of those leaves.
  nanobind::object Build(std::optional<size_t> index, nanobind::list values) const;
  // A part need not have the records above its leaves.
  std::vector<nanobind::bytes> Keys() const;
  // Of arrays, by index, that several processes have pieces of: those that are here, in a part that
  // is read by itself.
  std::map<size_t, std::vector<format::PieceRecord>> Pieces() const;
  // The different shardings of the arrays, as Orbax spells them.
  std::vector<std::string> Shardings() const;
  // Whether there are typed PRNG keys among the leaves.
  bool HasKeys() const;
  // What a path names from record `below` on (-1: the step; None: where paths start): (number, [])
  // of one record, -1 being the step, or of a glob (None, leaves).
  nanobind::tuple Resolve(nanobind::handle path, std::optional<int64_t> below);

 private:
  const format::LeafRecord& RecordAt(size_t index) const;
  nanobind::list ReadRecords(const std::vector<Wanted>& boxes, db::LoadStats* stats);
  // One past the last record at or below `index`.
  size_t EndOf(std::optional<size_t> index) const;

  std::shared_ptr<db::StepReader> reader_;  // null: of encoded records
  uint64_t step_ = 0;
  bool only_state_ = false;
  bool is_part_ = false;
  std::optional<db::StepTree> tree_;  // of records_, once a path was resolved
  std::vector<format::LeafRecord> records_;
  const int pid_;
};

// What of the module is declared here; imports NumPy's C API, and raises when it cannot be used.
void BindRecords(nanobind::module_& m);

}  // namespace stepwell::python
