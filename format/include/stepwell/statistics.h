// SPDX-License-Identifier: Apache-2.0
// The elements of an array in a few numbers, taken while it was saved.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace stepwell {

// The precision of LeafStatistics::changed. The numbers are on disk.
enum class ChangedCount : uint8_t {
  kUnknown = 0,  // there was nothing to compare with
  kAtMost = 1,   // the elements of all chunks of which an element changed
  kExact = 2,
};

// Elements that are not finite count in `nonfinite` and in nothing else. A complex number is one
// element, finite if both its parts are; range and sum are those of its parts, and its square is
// that of its magnitude. Integers beyond 2^53 are rounded. Of floats of at most 32 bits the norm is
// right to one in a million, and so is the sum, in proportion to the sum of the magnitudes.
struct LeafStatistics {
  uint64_t elements = 0;
  uint64_t nonfinite = 0;  // NaN or infinite
  double min = 0;          // 0 where no element is finite
  double max = 0;
  double sum = 0;
  double sum_of_squares = 0;  // infinite for float64 beyond about 1e154
  // Elements whose bytes differ from those that the base had: the newest commit when the save
  // began.
  uint64_t changed = 0;
  ChangedCount changed_count = ChangedCount::kUnknown;

  bool has_range() const { return nonfinite < elements; }
  double norm() const { return std::sqrt(sum_of_squares); }                        // L2
  double mean() const { return sum / static_cast<double>(elements - nonfinite); }  // has_range()

  // Adds those of other elements of the same array.
  void Add(const LeafStatistics& other) {
    if (other.elements == 0) return;
    if (elements == 0) {
      *this = other;
      return;
    }
    if (other.has_range()) {
      min = has_range() ? std::min(min, other.min) : other.min;
      max = has_range() ? std::max(max, other.max) : other.max;
    }
    elements += other.elements;
    nonfinite += other.nonfinite;
    sum += other.sum;
    sum_of_squares += other.sum_of_squares;
    changed += other.changed;
    changed_count = std::min(changed_count, other.changed_count);
    if (changed_count == ChangedCount::kUnknown) changed = 0;
  }
  bool operator==(const LeafStatistics&) const = default;
};

}  // namespace stepwell
