// SPDX-License-Identifier: Apache-2.0
#include "api/cli/compare.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <type_traits>

namespace stepwell::cli {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// What the loop asks of an element type: its value in memory, its magnitude (squared in `Square`,
// whose range holds the squares), and how far two values are apart.
template <typename T>
struct Plain {
  using Stored = T;
  using Square = std::conditional_t<std::is_same_v<T, double>, long double, double>;
  bool IsNan(T value) const {
    if constexpr (std::is_floating_point_v<T>) return std::isnan(value);
    return (void)value, false;
  }
  double Magnitude(T value) const { return std::fabs(static_cast<double>(value)); }
  double Distance(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      // Exact before it is rounded once: 2^63 and 2^63 + 1 are different doubles only so.
      using Unsigned = std::make_unsigned_t<T>;
      return static_cast<double>(a > b ? static_cast<Unsigned>(a) - static_cast<Unsigned>(b)
                                       : static_cast<Unsigned>(b) - static_cast<Unsigned>(a));
    } else {
      return std::fabs(static_cast<double>(a) - static_cast<double>(b));
    }
  }
};

template <typename T>
struct Complex {
  using Stored = std::complex<T>;
  using Square = std::conditional_t<std::is_same_v<T, double>, long double, double>;
  bool IsNan(Stored value) const { return std::isnan(value.real()) || std::isnan(value.imag()); }
  double Magnitude(Stored value) const {
    return std::hypot(static_cast<double>(value.real()), static_cast<double>(value.imag()));
  }
  double Distance(Stored a, Stored b) const {
    return std::hypot(Plain<T>().Distance(a.real(), b.real()),
                      Plain<T>().Distance(a.imag(), b.imag()));
  }
};

// Types of one or two bytes: the pattern is an index.
template <typename Pattern>
struct Tabulated {
  using Stored = Pattern;
  using Square = double;
  const float* values;
  bool IsNan(Pattern pattern) const { return std::isnan(values[pattern]); }
  double Magnitude(Pattern pattern) const {
    return std::fabs(static_cast<double>(values[pattern]));
  }
  double Distance(Pattern a, Pattern b) const {
    return std::fabs(static_cast<double>(values[a]) - static_cast<double>(values[b]));
  }
};

uint64_t CountChangedBytes(ConstBytes a, ConstBytes b) {
  uint64_t count = 0;
  for (size_t i = 0; i < a.size(); ++i) count += a[i] != b[i] ? 1 : 0;
  return count;
}

// As a running maximum, but a NaN stays.
void RaiseTo(double value, double* maximum) {
  if (std::isnan(value) || value > *maximum) *maximum = value;
}

}  // namespace

ArrayComparison::ArrayComparison(DType dtype) : dtype_(dtype) {
  const size_t item_bytes = FindDType(dtype)->item_bytes;
  if (item_bytes > 2) return;
  values_.resize(size_t{1} << (8 * item_bytes));
  for (size_t pattern = 0; pattern < values_.size(); ++pattern) {
    const auto bits = static_cast<uint16_t>(pattern);  // little-endian, as stored
    values_[pattern] = static_cast<float>(DecodeNumber(dtype, &bits));
  }
}

void ArrayComparison::AddDistance(double distance, double larger) {
  RaiseTo(distance, &max_absolute_);
  RaiseTo(std::isinf(distance) ? distance : distance / larger, &max_relative_);
}

template <typename Element>
void ArrayComparison::AddElements(ConstBytes a, ConstBytes b, const Element& element) {
  using Stored = typename Element::Stored;
  // Sums of short runs, added up: the rounding error does not grow with the array.
  constexpr size_t kRun = 4096;
  const size_t count = a.size() / sizeof(Stored);
  for (size_t first = 0; first < count; first += kRun) {
    const size_t run = std::min(kRun, count - first);
    const std::byte* at_a = a.data() + first * sizeof(Stored);
    const std::byte* at_b = b.data() + first * sizeof(Stored);
    const bool same = std::memcmp(at_a, at_b, run * sizeof(Stored)) == 0;
    typename Element::Square squares_a = 0;
    typename Element::Square squares_b = 0;
    typename Element::Square squares_difference = 0;
    for (size_t i = 0; i < run; ++i) {
      Stored value_a;
      std::memcpy(&value_a, at_a + i * sizeof(Stored), sizeof(Stored));
      const typename Element::Square magnitude_a = element.Magnitude(value_a);
      squares_a += magnitude_a * magnitude_a;
      if (same) continue;
      Stored value_b;
      std::memcpy(&value_b, at_b + i * sizeof(Stored), sizeof(Stored));
      const typename Element::Square magnitude_b = element.Magnitude(value_b);
      squares_b += magnitude_b * magnitude_b;
      // Bits, not values: NOLINTNEXTLINE(bugprone-suspicious-memory-comparison)
      if (std::memcmp(&value_a, &value_b, sizeof(Stored)) == 0) continue;
      ++changed_elements_;
      const bool nan_a = element.IsNan(value_a);
      const bool nan_b = element.IsNan(value_b);
      if (nan_a && nan_b) continue;
      if (nan_a != nan_b) {
        ++nan_mismatches_;
        squares_difference = kNan;
        AddDistance(kNan, 1);
        continue;
      }
      const typename Element::Square distance = element.Distance(value_a, value_b);
      squares_difference += distance * distance;
      if (distance == 0) continue;  // 0 and -0
      AddDistance(static_cast<double>(distance),
                  static_cast<double>(std::max(magnitude_a, magnitude_b)));
    }
    squares_a_ += squares_a;
    squares_b_ += same ? squares_a : squares_b;
    squares_difference_ += squares_difference;
  }
}

void ArrayComparison::Add(ConstBytes a, ConstBytes b) {
  changed_bytes_ += CountChangedBytes(a, b);
  switch (dtype_) {
    case DType::kInt32:
      return AddElements(a, b, Plain<int32_t>());
    case DType::kUInt32:
      return AddElements(a, b, Plain<uint32_t>());
    case DType::kInt64:
      return AddElements(a, b, Plain<int64_t>());
    case DType::kUInt64:
      return AddElements(a, b, Plain<uint64_t>());
    case DType::kFloat32:
      return AddElements(a, b, Plain<float>());
    case DType::kFloat64:
      return AddElements(a, b, Plain<double>());
    case DType::kComplex64:
      return AddElements(a, b, Complex<float>());
    case DType::kComplex128:
      return AddElements(a, b, Complex<double>());
    default:
      break;
  }
  if (values_.size() == 256) return AddElements(a, b, Tabulated<uint8_t>{values_.data()});
  AddElements(a, b, Tabulated<uint16_t>{values_.data()});
}

double ArrayComparison::norm_a() const { return static_cast<double>(std::sqrt(squares_a_)); }
double ArrayComparison::norm_b() const { return static_cast<double>(std::sqrt(squares_b_)); }
double ArrayComparison::norm_difference() const {
  return static_cast<double>(std::sqrt(squares_difference_));
}

}  // namespace stepwell::cli
