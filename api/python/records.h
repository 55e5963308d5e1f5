// SPDX-License-Identifier: Apache-2.0
// The records of a step for Python, and loading into NumPy arrays.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "db/read/step_tree.h"
#include "db/store.h"

namespace stepwell::python {

using Extents = std::vector<uint64_t>;
// A leaf, or the box start <= i < stop of an array, in memory of a NUMA node (-1: any).
using BoxWanted = std::tuple<size_t, std::optional<Extents>, std::optional<Extents>, int>;

// A step's leaf records; pins the step while it lives.
class LeafTable {
 public:
  // `is_part`: `records` are of db::FindAlong, not all of the step.
  LeafTable(std::shared_ptr<db::StepReader> reader, std::vector<format::LeafRecord> records,
            bool is_part = false);
  // For Resolve alone: [(item, [component, …], whether it is a node)] in key order.
  LeafTable(uint64_t step, bool only_state, const nanobind::list& places);
  ~LeafTable();
  LeafTable(const LeafTable&) = delete;
  LeafTable& operator=(const LeafTable&) = delete;

  size_t size() const { return records_.size(); }
  // One tuple a record, in key order; fields: stepwell/_pytree/records.py.
  nanobind::list Rows() const;
  // (objects, stats): arrays as ndarrays, values as bytes, in the order of `boxes`: (index, start,
  // stop, numa_node) each, start and stop None for all of a leaf. Each chunk is read once, however
  // many boxes want it.
  nanobind::tuple ReadBoxes(const std::vector<BoxWanted>& boxes);
  // (object, stats): record `index`, with all that is below a node in containers as they were
  // stored: dict, list and tuple, everything else as a dict; none: a dict of the items.
  // `decode_value`: (value type, bytes) -> object.
  nanobind::tuple Load(std::optional<size_t> index, nanobind::callable decode_value);
  // The leaves at and below record `index` (none: of the whole table), in key order.
  std::vector<size_t> LeavesBelow(std::optional<size_t> index) const;
  // What Load gives, from the values of those leaves.
  nanobind::object Build(std::optional<size_t> index, nanobind::list values) const;
  // [(key, item, [component, …])] of all records; keys sort as the records do. A part need not have
  // the records above its leaves.
  nanobind::list Paths() const;
  // {index: [(origin, shape), …]} of arrays that several processes have pieces of: those that are
  // here, in a part that is read by itself.
  nanobind::dict Pieces() const;
  // The different shardings of the arrays, as Orbax spells them.
  std::vector<std::string> Shardings() const;
  // What a path names from record `below` on (-1: the step; None: where paths start): (number, [])
  // of one record, -1 being the step, or of a glob (None, leaves).
  nanobind::tuple Resolve(nanobind::handle path, std::optional<int64_t> below);

 private:
  const format::LeafRecord& Record(size_t index) const;
  nanobind::list ReadRecords(const std::vector<BoxWanted>& boxes, db::LoadStats* stats);
  // One past the last record at or below `index`.
  size_t EndOf(std::optional<size_t> index) const;

  std::shared_ptr<db::StepReader> reader_;  // null: for Resolve alone
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
