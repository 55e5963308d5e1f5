// SPDX-License-Identifier: Apache-2.0
// Arrays and values, as they are given to a store and as they come back.
#pragma once

#include <complex>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <stepwell/dtype.h>
#include <stepwell/export.h>
#include <stepwell/result.h>

namespace stepwell {

namespace internal {
STEPWELL_API Status WrongDType(DType stored, DType wanted);
}  // namespace internal

// The dtype of a C++ type. Types without one of their own (bfloat16, int4, the float8 family) are
// named by hand, with bytes as memory.
template <typename T>
constexpr DType DTypeOf() {
  if constexpr (std::is_same_v<T, bool>) {
    return DType::kBool;
  } else if constexpr (std::is_integral_v<T>) {
    constexpr DType kSigned[] = {DType::kInt8, DType::kInt16, DType::kInt32, DType::kInt64};
    constexpr DType kUnsigned[] = {DType::kUInt8, DType::kUInt16, DType::kUInt32, DType::kUInt64};
    constexpr size_t kLog2 = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
    return std::is_signed_v<T> ? kSigned[kLog2] : kUnsigned[kLog2];
  } else if constexpr (std::is_same_v<T, float>) {
    return DType::kFloat32;
  } else if constexpr (std::is_same_v<T, double>) {
    return DType::kFloat64;
  } else if constexpr (std::is_same_v<T, std::complex<float>>) {
    return DType::kComplex64;
  } else {
    static_assert(std::is_same_v<T, std::complex<double>>, "no dtype is known for this type");
    return DType::kComplex128;
  }
}

// A box of an array, in memory of its own.
struct ArrayShard {
  std::vector<uint64_t> origin;  // of its element (0, 0, …), in the array
  std::vector<uint64_t> shape;
  const void* data = nullptr;
  std::vector<int64_t> strides_bytes{};  // any sign; {}: C order of the box
};

// Memory to be saved. Nothing is copied when a view is made.
struct ArrayView {
  const void* data = nullptr;  // element (0, 0, …); may be null when there are no elements
  DType dtype = DType::kInvalid;
  std::vector<uint64_t> shape{};         // {}: one element, no axes
  std::vector<int64_t> strides_bytes{};  // any sign; {}: C order
  // Set: the bytes do not change while this is held, so that Save does not copy them; the hold is
  // released in the background, on a thread of the store, at the latest when the save is done.
  // Null: Save copies the bytes before it returns.
  std::shared_ptr<const void> hold{};
  std::vector<uint64_t> shard_shape{};  // chunks keep shards' borders; {}: the whole array is one
  // Boxes that do not overlap and together are the array: it is saved from them (`data` and its
  // strides are unused, `hold` is for all of them) and never is in memory as a whole.
  std::vector<ArrayShard> shards{};
  // For loading other slices later: a shard larger than this (4,096 to 4,194,304 bytes) is
  // cut along these axes, the first of them first ({}: all), in as few chunks as that makes. 0:
  // chunks of about 1 MiB, or with axes of up to 4 MiB.
  uint64_t chunk_bytes_max = 0;
  std::vector<uint32_t> chunk_axes{};

  template <typename T>
  // NOLINTNEXTLINE(performance-unnecessary-value-param): it is moved from
  static ArrayView Of(const T* data, std::vector<uint64_t> shape) {
    return {.data = data, .dtype = DTypeOf<T>(), .shape = std::move(shape)};
  }
  // From a vector that no longer changes.
  template <typename T>
  static ArrayView Of(std::shared_ptr<const std::vector<T>> data, std::vector<uint64_t> shape) {
    ArrayView view = Of(data->data(), std::move(shape));
    view.hold = std::move(data);
    return view;
  }
};

// An array in memory of its own: C order, 64-byte aligned. Copies share the memory.
struct Array {
  DType dtype = DType::kInvalid;
  std::vector<uint64_t> shape;
  uint64_t size_bytes = 0;
  std::shared_ptr<std::byte[]> data;

  // The elements, valid while this or a copy lives. kInvalidArgument for another dtype.
  template <typename T>
  Result<std::span<const T>> As() const {
    if (dtype != DTypeOf<T>()) return internal::WrongDType(dtype, DTypeOf<T>());
    return std::span<const T>(reinterpret_cast<const T*>(data.get()), size_bytes / sizeof(T));
  }
};

// An integer beyond 64 bits, as decimal text.
struct BigInt {
  std::string decimal;
  bool operator==(const BigInt&) const = default;
};
using Bytes = std::vector<std::byte>;

using ValueVariant = std::variant<std::monostate, bool, int64_t, double, std::complex<double>,
                                  std::string, Bytes, BigInt>;

// A leaf that is not an array, as a Python value: None, bool, int, float, complex, str
// (UTF-8), bytes, and int beyond 64 bits. std::get, std::visit and std::holds_alternative work.
class Value : public ValueVariant {
 public:
  Value() = default;
  template <std::integral T>
  Value(T number) {  // NOLINT(google-explicit-constructor)
    if constexpr (std::is_same_v<T, bool>) {
      emplace<bool>(number);
    } else if (std::is_signed_v<T> || static_cast<uint64_t>(number) <= uint64_t{INT64_MAX}) {
      emplace<int64_t>(static_cast<int64_t>(number));
    } else {
      emplace<BigInt>(BigInt{std::to_string(number)});
    }
  }
  template <typename T>
  requires(!std::integral<std::remove_cvref_t<T>> &&
           !std::is_same_v<std::remove_cvref_t<T>, Value> &&
           std::is_constructible_v<ValueVariant, T>)
      // NOLINTNEXTLINE(google-explicit-constructor,bugprone-forwarding-reference-overload)
      Value(T&& value)
      : ValueVariant(std::forward<T>(value)) {}
};

}  // namespace stepwell
