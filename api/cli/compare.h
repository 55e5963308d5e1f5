// SPDX-License-Identifier: Apache-2.0
// How much two arrays of the same type differ, piece by piece. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <stepwell/dtype.h>

namespace stepwell::cli {

using ConstBytes = std::span<const std::byte>;

// Elements with the same bytes, and two NaNs, differ by nothing. A NaN in one array alone makes the
// maxima and the norm of the difference NaN, as in NumPy. Complex numbers differ by their distance.
class ArrayComparison {
 public:
  explicit ArrayComparison(DType dtype);

  // The next elements of both arrays.
  void Add(ConstBytes a, ConstBytes b);

  uint64_t changed_bytes() const { return changed_bytes_; }
  uint64_t changed_elements() const { return changed_elements_; }
  uint64_t nan_mismatches() const { return nan_mismatches_; }  // NaN in one array, not the other
  double max_absolute() const { return max_absolute_; }
  // Of |a - b| / max(|a|, |b|): 0 to 2, infinite where an infinity is involved.
  double max_relative() const { return max_relative_; }
  double norm_a() const;
  double norm_b() const;
  double norm_difference() const;

 private:
  template <typename Element>
  void AddElements(ConstBytes a, ConstBytes b, const Element& element);
  void AddDistance(double distance, double larger);

  DType dtype_;
  std::vector<float> values_;  // of every bit pattern, for types of one or two bytes
  uint64_t changed_bytes_ = 0;
  uint64_t changed_elements_ = 0;
  uint64_t nan_mismatches_ = 0;
  double max_absolute_ = 0;
  double max_relative_ = 0;
  long double squares_a_ = 0;
  long double squares_b_ = 0;
  long double squares_difference_ = 0;
};

}  // namespace stepwell::cli
