// SPDX-License-Identifier: Apache-2.0
// The difference between two steps, from their records: each has the hash of every chunk's decoded
// bytes. Chunks are read only where the records cannot tell, or where elements are to be counted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "db/read/step_tree.h"
#include "db/store.h"
#include "format/grid.h"
#include "format/records.h"

namespace stepwell::db {

// The numbers of one leaf's records in the two steps.
struct LeafPair {
  size_t before = 0;
  size_t after = 0;
};

struct MatchedLeaves {
  std::vector<LeafPair> pairs;  // ascending by `after`
  std::vector<size_t> removed;
  std::vector<size_t> added;
};

// Pairs leaves of two steps, each given in key order: those with equal keys, and of the others
// those whose paths are spelled alike, as where a dict takes the place of a namedtuple.
MatchedLeaves MatchLeaves(const StepTree& before, std::span<const size_t> leaves_before,
                          const StepTree& after, std::span<const size_t> leaves_after);

struct ComparedStep {
  StepReader* reader = nullptr;
  std::span<const format::LeafRecord> records;
};

// A leaf whose content, dtype, shape or kind differs. The kind is array, PRNG key of some
// implementation, or the type of a Python value: an array that was NumPy's and is JAX's is the
// same.
struct LeafChange {
  LeafPair leaf;
  uint64_t chunk_count = 0;     // of the leaf after; 0 of a value in the records themselves
  uint64_t changed_chunks = 0;  // of these; all of them where dtype, shape or kind differs
  uint64_t changed_bytes = 0;   // decoded, without the padding of chunks at the array's edge
  std::optional<uint64_t> changed_elements;  // where it was asked for, and both are such an array
};

// A box of a leaf, or a whole value, that only its bytes can tell of.
struct AskedBox {
  size_t change = 0;  // in LeafChanges::changes
  format::Box box;    // of a value: without axes
};

struct LeafChanges {
  std::vector<LeafChange> changes;  // in the order of the pairs
  LoadStats stats;                  // all zero: nothing was read
  // The boxes that were not read, without CompareOptions::may_read. Their leaves are among the
  // changes, and count only what the records tell.
  std::vector<AskedBox> asked;
};

struct CompareOptions {
  bool count_elements = false;
  bool may_read = true;
};

// Returns the pairs that differ. Chunks on the same grid are compared by their hashes. Another
// grid, or a hash that is not known, makes it read the chunks and compare their content. With
// `count_elements` it reads the chunks whose hashes differ, too, and a chunk counts as changed only
// if one of its elements is: elements are compared bit for bit. kDataLoss as StepReader::Load.
Result<LeafChanges> CompareLeaves(const ComparedStep& before, const ComparedStep& after,
                                  std::span<const LeafPair> pairs, const CompareOptions& options);

// Returns true if two leaves are values of one type, or arrays of one dtype and shape, or keys of
// one implementation.
bool AreSameKind(const format::LeafRecord& before, const format::LeafRecord& after);

// The boxes of an array that have chunk grids of their own, ascending by origin: one that is stored
// whole is one.
std::vector<format::PieceRecord> GridsOf(const format::LeafRecord& leaf);
// Returns true if chunk i of each grid has the same elements as chunk i of its counterpart.
bool AreSameGrids(const std::vector<format::PieceRecord>& a,
                  const std::vector<format::PieceRecord>& b);

// The boxes of the chunks that differ between two arrays of one dtype and shape; none where the
// records cannot tell. kDataLoss: a record contradicts itself.
Result<std::optional<std::vector<format::Box>>> ChangedBoxes(const format::LeafRecord& before,
                                                             const format::LeafRecord& after);

}  // namespace stepwell::db
