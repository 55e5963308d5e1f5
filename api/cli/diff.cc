// SPDX-License-Identifier: Apache-2.0
#include "api/cli/diff.h"

#include <algorithm>
#include <bit>
#include <compare>
#include <map>
#include <memory>
#include <utility>

#include "api/cli/array_read.h"
#include "api/cli/slice.h"

namespace stepwell::cli {
namespace {

// Nodes matter where they are all there is: an empty container.
bool Counts(const LeafInfo& info) { return info.type != LeafType::kNode || info.children == 0; }

bool SameClass(const LeafInfo& a, const LeafInfo& b) {
  return (a.type == b.type) || (IsValue(a) && IsValue(b));
}

std::vector<std::string> StructureChanges(const LeafInfo& a, const LeafInfo& b) {
  if (!SameClass(a, b)) return {"type"};
  if (a.type == LeafType::kNode) {
    if (a.kind == b.kind && a.type_name == b.type_name) return {};
    return {"container"};
  }
  std::vector<std::string> changes;
  if (a.kind != b.kind || a.prng_impl != b.prng_impl) changes.push_back("type");
  if (a.type == LeafType::kArray) {
    if (a.dtype != b.dtype) changes.push_back("dtype");
    if (a.shape != b.shape) changes.push_back("shape");
  }
  return changes;
}

Slice SliceOf(const Ranges& box) {
  Slice slice;
  for (const AxisRange& range : box) {
    slice.start.push_back(range.start);
    slice.stop.push_back(range.start + range.count);
  }
  return slice;
}

// Reads pieces of both steps, many small leaves at once, and hands them to their comparisons.
class PieceReader {
 public:
  PieceReader(const Step& a, const Step& b) : step_a_(a), step_b_(b) {}

  // A box of an array that both have.
  Status Add(const DiffPair& pair, ArrayComparison* comparison, const Ranges& box) {
    uint64_t bytes = FindDType(pair.a->info.dtype)->item_bytes;
    for (const AxisRange& range : box) bytes *= range.count;
    Piece piece{comparison, std::vector<std::byte>(bytes), std::vector<std::byte>(bytes)};
    const auto add = [&](const LeafInfo& leaf, std::vector<std::byte>* to,
                         std::vector<ReadRequest>* requests) {
      requests->push_back({.path = leaf.path,
                           .dtype = leaf.dtype,
                           .slice = SliceOf(box),
                           .out = to->data(),
                           .out_bytes = to->size()});
    };
    add(pair.a->info, &piece.bytes_a, &requests_a_);
    add(pair.b->info, &piece.bytes_b, &requests_b_);
    pieces_.push_back(std::move(piece));
    held_bytes_ += bytes;
    return held_bytes_ >= kBoxBytesMax ? Flush() : OkStatus();
  }

  Status Flush() {
    STEPWELL_RETURN_IF_ERROR(step_a_.Read(requests_a_).status());
    STEPWELL_RETURN_IF_ERROR(step_b_.Read(requests_b_).status());
    for (const Piece& piece : pieces_) {
      piece.comparison->Add(piece.bytes_a, piece.bytes_b);
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
    std::vector<std::byte> bytes_b;
  };
  const Step& step_a_;
  const Step& step_b_;
  std::vector<Piece> pieces_;
  std::vector<ReadRequest> requests_a_;
  std::vector<ReadRequest> requests_b_;
  uint64_t held_bytes_ = 0;
};

Status CompareArrays(DiffPair* pair, PieceReader* pieces) {
  const LeafInfo& info = pair->a->info;
  STEPWELL_ASSIGN_OR_RETURN(const DTypeInfo* dtype, ElementType(info));
  pair->data.emplace(info.dtype);
  SelectionBoxes boxes(WholeRanges(info.shape), info.chunk_shape, dtype->item_bytes, kBoxBytesMax);
  while (const std::optional<Ranges> box = boxes.Next()) {
    STEPWELL_RETURN_IF_ERROR(pieces->Add(*pair, &*pair->data, *box));
  }
  return OkStatus();
}

// Whether two values are stored as the same bytes: NaN is itself, and 0 is not -0.
struct SameBits {
  template <typename A, typename B>
  bool operator()(const A&, const B&) const {
    return false;
  }
  template <typename T>
  bool operator()(const T& a, const T& b) const {
    return a == b;
  }
  bool operator()(double a, double b) const {
    return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
  }
  bool operator()(std::complex<double> a, std::complex<double> b) const {
    return (*this)(a.real(), b.real()) && (*this)(a.imag(), b.imag());
  }
};

Status CompareValues(const DiffSide& a, const DiffSide& b, DiffPair* pair) {
  STEPWELL_ASSIGN_OR_RETURN(const Value value_a, a.step.ReadValue(pair->a->info.path));
  STEPWELL_ASSIGN_OR_RETURN(const Value value_b, b.step.ReadValue(pair->b->info.path));
  pair->value_changed = !std::visit(SameBits(), static_cast<const ValueVariant&>(value_a),
                                    static_cast<const ValueVariant&>(value_b));
  return OkStatus();
}

// Whether bytes of the two are to be compared.
bool Comparable(const DiffPair& pair) {
  const LeafInfo& a = pair.a->info;
  const LeafInfo& b = pair.b->info;
  if (!SameClass(a, b) || a.type == LeafType::kNode) return false;
  return IsValue(a) || (a.dtype == b.dtype && a.shape == b.shape);
}

// What tells an entry from all others of its step; sorts as steps do.
using EntryKey = std::pair<std::string, KeyPath>;
EntryKey KeyOf(const Entry& entry) {
  return {entry.item, entry.info.path.ToComponents().value()};  // exact, so there are some
}

}  // namespace

bool Diff::Same() const {
  return added.empty() && removed.empty() &&
         std::all_of(pairs.begin(), pairs.end(),
                     [](const DiffPair& pair) { return pair.changes.empty(); });
}

Diff CompareStructure(const DiffSide& a, const DiffSide& b) {
  std::map<EntryKey, const Entry*> by_key;
  std::map<std::string_view, const Entry*> by_text;
  for (const Entry& entry : b.entries) {
    by_key[KeyOf(entry)] = &entry;
    by_text[entry.text] = &entry;
  }
  Diff diff;
  std::vector<const Entry*> left;
  const auto pair_up = [&](const Entry& entry, const Entry& other) {
    by_key.erase(KeyOf(other));
    diff.pairs.push_back(
        {&entry, &other, StructureChanges(entry.info, other.info), std::nullopt, false});
  };
  for (const Entry& entry : a.entries) {
    const auto found = by_key.find(KeyOf(entry));
    if (found == by_key.end()) {
      left.push_back(&entry);
    } else {
      pair_up(entry, *found->second);
    }
  }
  for (const Entry* entry : left) {
    const auto found = by_text.find(entry->text);
    if (found != by_text.end() && by_key.contains(KeyOf(*found->second))) {
      pair_up(*entry, *found->second);
    } else if (Counts(entry->info)) {
      diff.removed.push_back(entry);
    }
  }
  for (const auto& [key, entry] : by_key) {
    if (Counts(entry->info)) diff.added.push_back(entry);
  }
  // In the order of A's entries, which lie one after the other.
  std::sort(diff.pairs.begin(), diff.pairs.end(),
            [](const DiffPair& x, const DiffPair& y) { return x.a < y.a; });
  return diff;
}

Status CompareData(const DiffSide& a, const DiffSide& b,
                   const std::function<void(uint64_t, uint64_t)>& progress, Diff* diff) {
  uint64_t total = 0;
  for (const DiffPair& pair : diff->pairs) {
    if (Comparable(pair)) total += pair.a->info.logical_bytes;
  }
  uint64_t done = 0;
  PieceReader pieces(a.step, b.step);
  for (DiffPair& pair : diff->pairs) {
    if (!Comparable(pair)) continue;
    STEPWELL_RETURN_IF_ERROR(IsValue(pair.a->info) ? CompareValues(a, b, &pair)
                                                   : CompareArrays(&pair, &pieces));
    done += pair.a->info.logical_bytes;
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
