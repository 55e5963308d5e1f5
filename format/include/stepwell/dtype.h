// SPDX-License-Identifier: Apache-2.0
// Every element type that JAX has. The numbers are on disk: never change or reuse one.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include <stepwell/export.h>

namespace stepwell {

enum class DType : uint16_t {
  kInvalid = 0,
  kBool = 1,
  kInt2 = 2,
  kInt4 = 3,
  kInt8 = 4,
  kInt16 = 5,
  kInt32 = 6,
  kInt64 = 7,
  kUInt2 = 8,
  kUInt4 = 9,
  kUInt8 = 10,
  kUInt16 = 11,
  kUInt32 = 12,
  kUInt64 = 13,
  kFloat16 = 14,
  kFloat32 = 15,
  kFloat64 = 16,
  kBFloat16 = 17,
  kComplex64 = 18,
  kComplex128 = 19,
  kFloat8E3M4 = 20,
  kFloat8E4M3 = 21,
  kFloat8E4M3B11FNUZ = 22,
  kFloat8E4M3FN = 23,
  kFloat8E4M3FNUZ = 24,
  kFloat8E5M2 = 25,
  kFloat8E5M2FNUZ = 26,
  kFloat8E8M0FNU = 27,
  kFloat4E2M1FN = 28,
};

struct DTypeInfo {
  DType dtype;
  std::string_view name;  // NumPy's, ml_dtypes' and zarr v3's: "float32", "bfloat16", "int4"
  uint8_t item_bytes;     // in memory and stored; 1 for the sub-byte types
  uint8_t value_bits;     // 2 or 4 for sub-byte types, whose stored high bits are zero; else 0
  bool tensorstore;       // TensorStore's zarr3 driver has it
};

// All of them, in the order of their numbers.
STEPWELL_API std::span<const DTypeInfo> AllDTypes();
// Null for an unknown number or name.
STEPWELL_API const DTypeInfo* FindDType(DType dtype);
STEPWELL_API const DTypeInfo* FindDType(std::string_view name);
// The value of an element in memory; NaN for complex numbers. Integers beyond 2^53 are rounded.
STEPWELL_API double DecodeNumber(DType dtype, const void* element);

}  // namespace stepwell
