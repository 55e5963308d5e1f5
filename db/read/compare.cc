// SPDX-License-Identifier: Apache-2.0
#include "db/read/compare.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "db/read/restore_plan.h"
#include "format/dtype.h"
#include "format/piece.h"

namespace stepwell::db {
namespace {

using format::Box;
using format::ChunkRecord;
using format::LeafKind;
using format::LeafRecord;
using format::PieceRecord;

// Decoded bytes of one side that are read and compared at one time.
constexpr uint64_t kBatchBytes = uint64_t{32} << 20;

enum class Verdict : uint8_t { kSame, kDiffers, kUnknown };

Verdict CompareChunks(const ChunkRecord& before, const ChunkRecord& after) {
  if (!before.hash.known() || !after.hash.known()) return Verdict::kUnknown;
  return before.hash == after.hash && before.logical_bytes == after.logical_bytes
             ? Verdict::kSame
             : Verdict::kDiffers;
}

// The box of the array that chunk `index` of a grid has.
Box BoxOfChunk(const PieceRecord& grid, uint64_t index) {
  Box box{format::ChunkOrigin(index, grid.shape, grid.chunk_shape), {}};
  box.stop.resize(box.start.size());
  for (size_t axis = 0; axis < box.start.size(); ++axis) {
    const uint64_t extent = std::min(grid.chunk_shape[axis], grid.shape[axis] - box.start[axis]);
    box.start[axis] += grid.origin[axis];
    box.stop[axis] = box.start[axis] + extent;
  }
  return box;
}

uint64_t ItemBytes(const LeafRecord& leaf) { return format::FindDType(leaf.dtype)->item_bytes; }

uint64_t SizeBytes(const LeafRecord& leaf, const Box& box) {
  return format::ChunkBytes(format::Extents(box), ItemBytes(leaf));
}

// Calls `visit(box, verdict)` for each chunk of two arrays on the same grids.
template <typename Visit>
Status ForEachChunk(const LeafRecord& before, const LeafRecord& after,
                    const std::vector<PieceRecord>& grids_before,
                    const std::vector<PieceRecord>& grids_after, Visit visit) {
  for (size_t i = 0; i < grids_after.size(); ++i) {
    const PieceRecord& grid = grids_after[i];
    const uint64_t count = format::ChunkCount(grid.shape, grid.chunk_shape);
    for (uint64_t k = 0; k < count; ++k) {
      const Verdict verdict = CompareChunks(before.chunks[grids_before[i].first_chunk + k],
                                            after.chunks[grid.first_chunk + k]);
      if (verdict == Verdict::kSame) continue;
      STEPWELL_RETURN_IF_ERROR(visit(BoxOfChunk(grid, k), verdict));
    }
  }
  return OkStatus();
}

template <typename Element>
uint64_t CountDifferent(const std::byte* before, const std::byte* after, uint64_t count) {
  uint64_t different = 0;
  for (uint64_t i = 0; i < count; ++i) {
    Element one;
    Element other;
    std::memcpy(&one, before + i * sizeof one, sizeof one);
    std::memcpy(&other, after + i * sizeof other, sizeof other);
    different += one != other ? 1 : 0;
  }
  return different;
}

// Compares elements bit for bit.
uint64_t CountDifferent(const std::byte* before, const std::byte* after, uint64_t count,
                        uint64_t item_bytes) {
  switch (item_bytes) {
    case 1:
      return CountDifferent<uint8_t>(before, after, count);
    case 2:
      return CountDifferent<uint16_t>(before, after, count);
    case 4:
      return CountDifferent<uint32_t>(before, after, count);
    case 8:
      return CountDifferent<uint64_t>(before, after, count);
    default:
      break;
  }
  uint64_t different = 0;
  for (uint64_t i = 0; i < count; ++i, before += item_bytes, after += item_bytes) {
    different += std::memcmp(before, after, item_bytes) != 0 ? 1 : 0;
  }
  return different;
}

class Comparer {
 public:
  Comparer(const ComparedStep& before, const ComparedStep& after, const CompareOptions& options)
      : before_(before), after_(after), options_(options) {}

  Status Compare(const LeafPair& pair) {
    const LeafRecord& before = before_.records[pair.before];
    const LeafRecord& after = after_.records[pair.after];
    STEPWELL_RETURN_IF_ERROR(Check(before_, before));
    STEPWELL_RETURN_IF_ERROR(Check(after_, after));
    Found found;
    found.change.leaf = pair;
    found.change.chunk_count = after.chunks.size();
    if (!AreSameKind(before, after)) {
      found.differs = true;
      found.change.changed_chunks = found.change.chunk_count;
      found.change.changed_bytes = after.chunks.empty() ? 0 : after.logical_bytes;
      found_.push_back(found);
      return OkStatus();
    }
    if (after.kind == LeafKind::kValue) return CompareValues(before, after, found);
    if (options_.count_elements) found.change.changed_elements = 0;
    found_.push_back(found);
    STEPWELL_RETURN_IF_ERROR(CompareArrays(before, after));
    if (!found_.back().differs && !found_.back().is_asked) found_.pop_back();
    return OkStatus();
  }

  Result<LeafChanges> Finish() {
    if (options_.may_read) STEPWELL_RETURN_IF_ERROR(ReadAsked());
    std::vector<size_t> places(found_.size());  // in the changes
    for (size_t i = 0; i < found_.size(); ++i) {
      places[i] = changes_.changes.size();
      const bool is_open = found_[i].is_asked && !options_.may_read;
      if (found_[i].differs || is_open) changes_.changes.push_back(found_[i].change);
    }
    for (Asked& asked : asked_) {
      changes_.asked.push_back({places[asked.found], std::move(asked.box)});
    }
    return std::move(changes_);
  }

 private:
  struct Found {
    LeafChange change;
    bool differs = false;   // known already
    bool is_asked = false;  // reading will tell
  };
  // A box of a leaf whose bytes are to be compared.
  struct Asked {
    size_t found = 0;
    Box box;
    uint64_t size_bytes = 0;
  };

  static Status Check(const ComparedStep& step, const LeafRecord& leaf) {
    Status status = CheckLeaf(leaf);
    return status.ok() ? status : step.reader->Explain(status);
  }

  Status CompareArrays(const LeafRecord& before, const LeafRecord& after) {
    const std::vector<PieceRecord> grids_before = GridsOf(before);
    const std::vector<PieceRecord> grids_after = GridsOf(after);
    if (AreSameGrids(grids_before, grids_after)) {
      return ForEachChunk(before, after, grids_before, grids_after,
                          [&](Box box, Verdict verdict) -> Status {
                            if (verdict == Verdict::kUnknown || options_.count_elements) {
                              return Ask(after, std::move(box));
                            }
                            AddChanged(&found_.back(), SizeBytes(after, box));
                            return OkStatus();
                          });
    }
    for (const PieceRecord& grid : grids_after) {
      const uint64_t count = format::ChunkCount(grid.shape, grid.chunk_shape);
      for (uint64_t i = 0; i < count; ++i) {
        STEPWELL_RETURN_IF_ERROR(Ask(after, BoxOfChunk(grid, i)));
      }
    }
    return OkStatus();
  }

  Status CompareValues(const LeafRecord& before, const LeafRecord& after, Found found) {
    bool same = before.logical_bytes == after.logical_bytes;
    if (same && before.chunks.empty() && after.chunks.empty()) {
      same = before.inline_value == after.inline_value;
    } else if (same) {
      bool is_known = before.chunks.size() == after.chunks.size();
      for (size_t i = 0; is_known && i < after.chunks.size(); ++i) {
        const Verdict verdict = CompareChunks(before.chunks[i], after.chunks[i]);
        is_known = verdict != Verdict::kUnknown &&
                   before.chunks[i].logical_bytes == after.chunks[i].logical_bytes;
        if (verdict == Verdict::kDiffers) {
          ++found.change.changed_chunks;
          found.change.changed_bytes += after.chunks[i].logical_bytes;
        }
      }
      same = found.change.changed_chunks == 0;
      if (!is_known && !options_.may_read) {
        found.is_asked = true;
        found.change.changed_chunks = found.change.changed_bytes = 0;
        found_.push_back(found);
        asked_.push_back({found_.size() - 1, {}, 0});
        return OkStatus();
      }
      if (!is_known) {
        STEPWELL_ASSIGN_OR_RETURN(same, HaveSameBytes(before, after));
        found.change.changed_chunks = 0;
      }
    }
    if (same) return OkStatus();
    if (found.change.changed_chunks == 0) {
      found.change.changed_chunks = found.change.chunk_count;
      found.change.changed_bytes = after.chunks.empty() ? 0 : after.logical_bytes;
    }
    found.differs = true;
    found_.push_back(std::move(found));
    return OkStatus();
  }

  Result<bool> HaveSameBytes(const LeafRecord& before, const LeafRecord& after) {
    std::vector<std::byte> bytes[2];
    const std::pair<StepReader*, const LeafRecord*> sides[] = {{before_.reader, &before},
                                                               {after_.reader, &after}};
    for (size_t i = 0; i < 2; ++i) {
      const auto& [reader, leaf] = sides[i];
      bytes[i].resize(leaf->logical_bytes);
      const LoadRequest request{leaf, {}, bytes[i].data(), {}};
      STEPWELL_ASSIGN_OR_RETURN(const LoadStats stats, reader->Load({&request, 1}));
      changes_.stats += stats;
    }
    return bytes[0] == bytes[1];
  }

  static void AddChanged(Found* found, uint64_t size_bytes) {
    found->differs = true;
    ++found->change.changed_chunks;
    found->change.changed_bytes += size_bytes;
  }

  // Asks about a box of the leaf that was found last.
  Status Ask(const LeafRecord& leaf, Box box) {
    found_.back().is_asked = true;
    const uint64_t size_bytes = SizeBytes(leaf, box);
    asked_.push_back({found_.size() - 1, std::move(box), size_bytes});
    asked_bytes_ += size_bytes;
    return asked_bytes_ < kBatchBytes || !options_.may_read ? OkStatus() : ReadAsked();
  }

  Status ReadAsked() {
    if (asked_.empty()) return OkStatus();
    STEPWELL_RETURN_IF_ERROR(Read(before_, &LeafPair::before, &bytes_before_));
    STEPWELL_RETURN_IF_ERROR(Read(after_, &LeafPair::after, &bytes_after_));
    uint64_t offset = 0;
    for (const Asked& asked : asked_) {
      Found& found = found_[asked.found];
      const uint64_t item_bytes = ItemBytes(after_.records[found.change.leaf.after]);
      const uint64_t different =
          CountDifferent(bytes_before_.data() + offset, bytes_after_.data() + offset,
                         asked.size_bytes / item_bytes, item_bytes);
      if (different != 0) AddChanged(&found, asked.size_bytes);
      if (options_.count_elements) *found.change.changed_elements += different;
      offset += asked.size_bytes;
    }
    asked_.clear();
    asked_bytes_ = 0;
    return OkStatus();
  }

  Status Read(const ComparedStep& step, size_t LeafPair::*number, std::vector<std::byte>* bytes) {
    bytes->resize(asked_bytes_);
    std::vector<LoadRequest> requests;
    requests.reserve(asked_.size());
    uint64_t offset = 0;
    for (const Asked& asked : asked_) {
      const LeafPair& pair = found_[asked.found].change.leaf;
      requests.push_back({&step.records[pair.*number], asked.box, bytes->data() + offset, {}});
      offset += asked.size_bytes;
    }
    STEPWELL_ASSIGN_OR_RETURN(const LoadStats stats, step.reader->Load(requests));
    changes_.stats += stats;
    return OkStatus();
  }

  const ComparedStep before_;
  const ComparedStep after_;
  const CompareOptions options_;
  std::vector<Found> found_;
  std::vector<Asked> asked_;
  uint64_t asked_bytes_ = 0;
  std::vector<std::byte> bytes_before_;
  std::vector<std::byte> bytes_after_;
  LeafChanges changes_;
};

}  // namespace

bool AreSameKind(const LeafRecord& before, const LeafRecord& after) {
  if (before.kind != after.kind) return false;
  if (before.kind == LeafKind::kValue) return before.value_type == after.value_type;
  return before.prng_impl == after.prng_impl && before.dtype == after.dtype &&
         before.shape == after.shape;
}

std::vector<PieceRecord> GridsOf(const LeafRecord& leaf) {
  std::vector<PieceRecord> grids = leaf.pieces;
  if (!leaf.partial && grids.empty()) {
    grids.push_back({format::Shape(leaf.shape.size(), 0), leaf.shape, leaf.chunk_shape, 0});
  }
  std::ranges::sort(grids, {}, &PieceRecord::origin);
  return grids;
}

bool AreSameGrids(const std::vector<PieceRecord>& a, const std::vector<PieceRecord>& b) {
  return std::ranges::equal(a, b, [](const PieceRecord& one, const PieceRecord& other) {
    return one.origin == other.origin && one.shape == other.shape &&
           one.chunk_shape == other.chunk_shape;
  });
}

MatchedLeaves MatchLeaves(const StepTree& before, std::span<const size_t> leaves_before,
                          const StepTree& after, std::span<const size_t> leaves_after) {
  MatchedLeaves matched;
  size_t i = 0;
  size_t k = 0;
  while (i < leaves_before.size() || k < leaves_after.size()) {
    const std::string* one =
        i < leaves_before.size() ? &before.records()[leaves_before[i]].key : nullptr;
    const std::string* other =
        k < leaves_after.size() ? &after.records()[leaves_after[k]].key : nullptr;
    if (one != nullptr && other != nullptr && *one == *other) {
      matched.pairs.push_back({leaves_before[i++], leaves_after[k++]});
    } else if (other == nullptr || (one != nullptr && *one < *other)) {
      matched.removed.push_back(leaves_before[i++]);
    } else {
      matched.added.push_back(leaves_after[k++]);
    }
  }
  if (matched.removed.empty() || matched.added.empty()) return matched;
  std::map<std::string, size_t> by_text;
  for (const size_t number : matched.removed) by_text.emplace(before.Text(number), number);
  std::map<size_t, size_t> respelled;  // by the number before
  std::erase_if(matched.added, [&](size_t number) {
    const auto found = by_text.find(after.Text(number));
    if (found == by_text.end()) return false;
    respelled.emplace(found->second, number);
    by_text.erase(found);
    return true;
  });
  std::erase_if(matched.removed, [&](size_t number) { return respelled.contains(number); });
  for (const auto& [one, other] : respelled) matched.pairs.push_back({one, other});
  std::ranges::sort(matched.pairs, {}, &LeafPair::after);
  return matched;
}

Result<LeafChanges> CompareLeaves(const ComparedStep& before, const ComparedStep& after,
                                  std::span<const LeafPair> pairs, const CompareOptions& options) {
  Comparer comparer(before, after, options);
  for (const LeafPair& pair : pairs) STEPWELL_RETURN_IF_ERROR(comparer.Compare(pair));
  return comparer.Finish();
}

Result<std::optional<std::vector<Box>>> ChangedBoxes(const LeafRecord& before,
                                                     const LeafRecord& after) {
  STEPWELL_RETURN_IF_ERROR(CheckLeaf(before));
  STEPWELL_RETURN_IF_ERROR(CheckLeaf(after));
  std::optional<std::vector<Box>> boxes;
  if (before.kind != LeafKind::kArray || after.kind != LeafKind::kArray ||
      before.dtype != after.dtype || before.shape != after.shape) {
    return boxes;
  }
  const std::vector<PieceRecord> grids_before = GridsOf(before);
  const std::vector<PieceRecord> grids_after = GridsOf(after);
  if (!AreSameGrids(grids_before, grids_after)) return boxes;
  boxes.emplace();
  bool is_known = true;
  STEPWELL_RETURN_IF_ERROR(ForEachChunk(before, after, grids_before, grids_after,
                                        [&](Box box, Verdict verdict) -> Status {
                                          is_known &= verdict == Verdict::kDiffers;
                                          boxes->push_back(std::move(box));
                                          return OkStatus();
                                        }));
  if (!is_known) boxes.reset();
  return boxes;
}

}  // namespace stepwell::db
