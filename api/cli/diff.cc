// SPDX-License-Identifier: Apache-2.0
#include "api/cli/diff.h"

#include <algorithm>
#include <map>
#include <memory>

#include "api/cli/array_read.h"
#include "api/cli/slice.h"
#include "io/bytes.h"

namespace stepwell::cli {
namespace {

using format::LeafKind;
using format::LeafRecord;

// Nodes matter where they are all there is: an empty container.
bool Counts(const LeafRecord& record) {
  return record.kind != LeafKind::kNode || record.child_count == 0;
}

std::vector<std::string> StructureChanges(const LeafRecord& a, const LeafRecord& b) {
  std::vector<std::string> changes;
  if (a.kind != b.kind) return {"type"};
  if (a.kind == LeafKind::kNode) {
    if (a.container != b.container || a.type_name != b.type_name) changes.push_back("container");
    return changes;
  }
  if (a.value_type != b.value_type || a.prng_impl != b.prng_impl) changes.push_back("type");
  if (a.kind == LeafKind::kArray) {
    if (a.dtype != b.dtype) changes.push_back("dtype");
    if (a.shape != b.shape) changes.push_back("shape");
  }
  return changes;
}

bool SamePlace(const format::ChunkRecord& a, const format::ChunkRecord& b) {
  return a.directory == b.directory && a.process == b.process && a.segment == b.segment &&
         a.offset_bytes == b.offset_bytes && a.stored_bytes == b.stored_bytes && a.crc == b.crc;
}

bool SameEncoding(const LeafRecord& a, const LeafRecord& b) {
  return a.codec == b.codec && a.chunk_shape == b.chunk_shape && a.chunks.size() == b.chunks.size();
}

bool AllSamePlace(const LeafRecord& a, const LeafRecord& b) {
  return SameEncoding(a, b) &&
         std::equal(a.chunks.begin(), a.chunks.end(), b.chunks.begin(), SamePlace);
}

// Reads pieces of both steps, many small leaves at once, and hands them to their comparisons.
class PieceReader {
 public:
  PieceReader(db::StepReader* a, db::StepReader* b) : reader_a_(a), reader_b_(b) {}

  // A box of an array that both have. `same`: known to be the same, so A's bytes do for both.
  Status Add(const DiffPair& pair, ArrayComparison* comparison, const Ranges& slab, bool same) {
    const LeafRecord& record = pair.a->record;
    format::Box box;
    uint64_t bytes = format::FindDType(record.dtype)->item_bytes;
    for (const AxisRange& range : slab) {
      box.start.push_back(range.start);
      box.stop.push_back(range.start + range.count);
      bytes *= range.count;
    }
    Piece piece{comparison, std::vector<std::byte>(bytes), {}};
    if (!same) piece.bytes_b.resize(bytes);
    requests_a_.push_back({&record, box, piece.bytes_a.data(), {}});
    if (!same) requests_b_.push_back({&pair.b->record, box, piece.bytes_b.data(), {}});
    pieces_.push_back(std::move(piece));
    held_bytes_ += bytes;
    return held_bytes_ >= kSlabBytesMax ? Flush() : OkStatus();
  }

  Status Flush() {
    STEPWELL_RETURN_IF_ERROR(reader_a_->Load(requests_a_).status());
    if (!requests_b_.empty()) STEPWELL_RETURN_IF_ERROR(reader_b_->Load(requests_b_).status());
    for (const Piece& piece : pieces_) {
      if (piece.bytes_b.empty()) {
        piece.comparison->AddSame(piece.bytes_a);
      } else {
        piece.comparison->Add(piece.bytes_a, piece.bytes_b);
      }
    }
    pieces_.clear();
    requests_a_.clear();
    requests_b_.clear();
    held_bytes_ = 0;
    return OkStatus();
  }

 private:
  struct Piece {
    ArrayComparison* comparison;
    std::vector<std::byte> bytes_a;
    std::vector<std::byte> bytes_b;  // empty: the same
  };
  db::StepReader* const reader_a_;
  db::StepReader* const reader_b_;
  std::vector<Piece> pieces_;
  std::vector<db::LoadRequest> requests_a_;
  std::vector<db::LoadRequest> requests_b_;
  uint64_t held_bytes_ = 0;
};

bool SlabSamePlace(const DiffPair& pair, const Ranges& slab) {
  const LeafRecord& a = pair.a->record;
  const LeafRecord& b = pair.b->record;
  if (!SameEncoding(a, b)) return false;
  format::Box box;
  for (const AxisRange& range : slab) {
    box.start.push_back(range.start);
    box.stop.push_back(range.start + range.count);
  }
  const std::vector<uint64_t> chunks = format::ChunksInBox(box, a.shape, a.chunk_shape);
  return std::all_of(chunks.begin(), chunks.end(), [&](uint64_t chunk) {
    return chunk < a.chunks.size() && SamePlace(a.chunks[chunk], b.chunks[chunk]);
  });
}

Status CompareArrays(DiffPair* pair, bool same_log, PieceReader* pieces) {
  STEPWELL_ASSIGN_OR_RETURN(const format::DTypeInfo* info, DTypeOf(pair->a->record));
  STEPWELL_RETURN_IF_ERROR(DTypeOf(pair->b->record).status());
  pair->data.emplace(info->dtype);
  Slabs slabs(WholeRanges(pair->a->record.shape), pair->a->record.chunk_shape, info->item_bytes,
              kSlabBytesMax);
  while (const std::optional<Ranges> slab = slabs.Next()) {
    const bool same = same_log && SlabSamePlace(*pair, *slab);
    STEPWELL_RETURN_IF_ERROR(pieces->Add(*pair, &*pair->data, *slab, same));
  }
  return OkStatus();
}

Status CompareValues(const DiffSide& a, const DiffSide& b, DiffPair* pair) {
  STEPWELL_ASSIGN_OR_RETURN(const std::string value_a, ReadValue(a.reader, pair->a->record));
  STEPWELL_ASSIGN_OR_RETURN(const std::string value_b, ReadValue(b.reader, pair->b->record));
  pair->value_changed = value_a != value_b;
  return OkStatus();
}

// Whether bytes of the two are to be compared.
bool Comparable(const DiffPair& pair) {
  const LeafRecord& a = pair.a->record;
  const LeafRecord& b = pair.b->record;
  if (a.kind != b.kind || a.kind == LeafKind::kNode) return false;
  return a.kind == LeafKind::kValue || (a.dtype == b.dtype && a.shape == b.shape);
}

}  // namespace

bool Diff::Same() const {
  return added.empty() && removed.empty() &&
         std::all_of(pairs.begin(), pairs.end(),
                     [](const DiffPair& pair) { return pair.changes.empty(); });
}

Diff CompareStructure(const DiffSide& a, const DiffSide& b) {
  std::map<std::string_view, const Entry*> by_key;
  std::map<std::string_view, const Entry*> by_text;
  for (const Entry& entry : b.entries) {
    by_key[entry.record.key] = &entry;
    by_text[entry.text] = &entry;
  }
  Diff diff;
  std::vector<const Entry*> left;
  const auto pair_up = [&](const Entry& entry, const Entry& other) {
    by_key.erase(other.record.key);
    diff.pairs.push_back(
        {&entry, &other, StructureChanges(entry.record, other.record), std::nullopt, false});
  };
  for (const Entry& entry : a.entries) {
    const auto found = by_key.find(entry.record.key);
    if (found == by_key.end()) {
      left.push_back(&entry);
    } else {
      pair_up(entry, *found->second);
    }
  }
  for (const Entry* entry : left) {
    const auto found = by_text.find(entry->text);
    if (found != by_text.end() && by_key.contains(found->second->record.key)) {
      pair_up(*entry, *found->second);
    } else if (Counts(entry->record)) {
      diff.removed.push_back(entry);
    }
  }
  for (const auto& [key, entry] : by_key) {
    if (Counts(entry->record)) diff.added.push_back(entry);
  }
  std::stable_sort(diff.pairs.begin(), diff.pairs.end(), [](const DiffPair& x, const DiffPair& y) {
    return x.a->record.key < y.a->record.key;
  });
  return diff;
}

Status CompareData(const DiffSide& a, const DiffSide& b, bool same_log,
                   const std::function<void(uint64_t, uint64_t)>& progress, Diff* diff) {
  uint64_t total = 0;
  for (const DiffPair& pair : diff->pairs) {
    if (Comparable(pair)) total += LogicalBytes(pair.a->record);
  }
  uint64_t done = 0;
  PieceReader pieces(a.reader, b.reader);
  for (DiffPair& pair : diff->pairs) {
    if (!Comparable(pair)) continue;
    const LeafRecord& record = pair.a->record;
    const bool same_place =
        same_log && !record.chunks.empty() && AllSamePlace(record, pair.b->record);
    if (!same_place) {
      STEPWELL_RETURN_IF_ERROR(record.kind == LeafKind::kArray
                                   ? CompareArrays(&pair, same_log, &pieces)
                                   : CompareValues(a, b, &pair));
    }
    done += LogicalBytes(record);
    progress(done, total);
  }
  STEPWELL_RETURN_IF_ERROR(pieces.Flush());
  for (DiffPair& pair : diff->pairs) {
    if (pair.value_changed || (pair.data && pair.data->changed_bytes() > 0)) {
      pair.changes.push_back("data");
    }
  }
  return OkStatus();
}

}  // namespace stepwell::cli
