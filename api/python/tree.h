// SPDX-License-Identifier: Apache-2.0
// A step's stored tree for Python: what paths name in it (db/read/step_tree.h), and loading into
// NumPy arrays.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "api/python/records.h"
#include "db/read/step_tree.h"
#include "db/store.h"

namespace stepwell::python {

// A place in a tree: the number of a record in key order, or kStep, above the items.
using Place = int64_t;
inline constexpr Place kStep = -1;

// The result of resolving a path: one place, or for a glob the leaves that it matches.
struct Selection {
  nanobind::object tree;
  std::optional<Place> number;
  std::vector<size_t> leaves;
};

// The result of a load: arrays as ndarrays, values as bytes or as the objects made from them.
struct Loaded {
  nanobind::object value;
  db::LoadStats stats;
};

// Raises ValueError where start and stop do not bound a box of the array.
format::Box BoxOf(const format::LeafRecord& record, const Extents& start, const Extents& stop);
// The size of a box of the array in memory.
uint64_t BoxBytes(const format::LeafRecord& record, const format::Box& box);

// A step's leaf records; pins the step while it lives.
class Tree {
 public:
  // `is_part`: `records` are of db::FindAlong, not all of the step.
  Tree(std::shared_ptr<db::StepReader> reader, std::vector<format::LeafRecord> records,
       bool is_part = false);
  // From what EncodedRecords of several trees gave: all but what reads.
  Tree(uint64_t step, const nanobind::dict& encoded);
  // Rearranged makes such a tree. The original keeps the reader.
  Tree(const Tree& of, std::vector<format::LeafRecord> records, std::vector<size_t> origins,
       bool only_state);
  ~Tree();
  Tree(const Tree&) = delete;
  Tree& operator=(const Tree&) = delete;

  // ---- the tree ----

  const db::StepTree& tree() const;
  // Null: of a tree that does not read.
  const std::shared_ptr<db::StepReader>& reader() const { return reader_; }
  const std::vector<format::LeafRecord>& leaf_records() const { return records_; }
  // A list of Record, made once.
  nanobind::list Records();
  // Of these one alone, made once.
  nanobind::object RecordAt(size_t number);
  // By record: its number in the tree that this one was made of; None: of no other.
  std::optional<std::vector<Place>> Origins() const;
  // Some items only (None: all), and leaves below `top` at other places: db::Rearrange. `moves`
  // have the fields of db::Move.
  std::unique_ptr<Tree> Rearranged(const std::optional<std::vector<std::string>>& items,
                                   const std::vector<size_t>& taken, const nanobind::list& moves,
                                   Place top) const;
  // Finds the place that `path` leads to from `above` on; none if there is nothing.
  std::optional<Place> Find(const format::KeyPath& path) const;
  std::vector<Place> FindChildren(Place number, nanobind::handle component) const;
  nanobind::dict Children(Place number) const;
  // The value of an NNX Variable at `number`. Orbax has a level `value` for it, so what was
  // imported has that, too; what was saved from NNX has not. `has_value`: the value itself is a
  // container with `value` in it, and nothing else.
  Place ValueOf(Place number, bool has_value) const;
  std::vector<size_t> LeavesBelow(Place number) const;
  // By path, from `above` on or as short as it may be. AmbiguousPathError: two have one text.
  nanobind::dict ByText(const std::vector<size_t>& leaves, std::optional<Place> above) const;
  // Describes the stored value in words: "float32[3, 4]", "str", "dict of 3".
  std::string Describe(Place number) const;
  // From record `below` on; none: from where paths start. `self`: this. With `misses`, none where
  // there is nothing, which else is PathNotFoundError.
  std::optional<Selection> Resolve(nanobind::handle self, const format::PathPattern& path,
                                   std::optional<Place> below, bool misses = false) const;
  size_t At(Place number) const;
  // Records from the first one at `number` to behind the last one below it.
  std::pair<size_t, size_t> RangeOf(Place number) const;

  // ---- the records ----

  // By key, without their chunks, as format/records.h encodes them.
  nanobind::dict EncodedRecords() const;
  // The pieces of arrays, by number, that several processes saved. In a part that is read by itself
  // these are the pieces that it has.
  std::map<size_t, std::vector<format::PieceRecord>> Pieces() const;
  // The different shardings of the arrays, as Orbax spells them.
  std::vector<std::string> Shardings() const;
  // Returns true if there are typed PRNG keys among the leaves.
  bool HasKeys() const;

  // ---- reading ----

  // A list, in the order of `boxes`. Each chunk is read once, however many boxes want it.
  Loaded ReadBoxes(const std::vector<Wanted>& boxes);
  // With all that is below a node in containers as they were stored: dict, list and tuple,
  // everything else as a dict; of the step a dict of the items.
  Loaded Load(Place number);
  // Leaves as Load gives them, by path.
  Loaded LoadLeaves(const std::vector<size_t>& leaves);
  // Builds the result of Load from the values of the leaves there.
  nanobind::object Build(Place number, const nanobind::list& values) const;

 private:
  nanobind::list ReadValues(const std::vector<size_t>& leaves, db::LoadStats* stats);

  std::shared_ptr<db::StepReader> reader_;  // null: of encoded records
  uint64_t step_ = 0;
  bool only_state_ = false;
  bool is_part_ = false;
  std::vector<format::LeafRecord> records_;
  std::vector<size_t> origins_;               // empty: of no other tree
  mutable std::optional<db::StepTree> tree_;  // made from records_ at the first use
  std::vector<nanobind::object> made_;        // each a Record; null, or not there: not yet
  nanobind::list all_made_;                   // of Record; null: not yet
  const int pid_;
};

}  // namespace stepwell::python
