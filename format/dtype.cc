// SPDX-License-Identifier: Apache-2.0
#include "format/dtype.h"

#include <array>

namespace stepwell {
namespace {

constexpr std::array<DTypeInfo, 28> kDTypes = {{
    {DType::kBool, "bool", 1, 0, true},
    {DType::kInt2, "int2", 1, 2, true},
    {DType::kInt4, "int4", 1, 4, true},
    {DType::kInt8, "int8", 1, 0, true},
    {DType::kInt16, "int16", 2, 0, true},
    {DType::kInt32, "int32", 4, 0, true},
    {DType::kInt64, "int64", 8, 0, true},
    {DType::kUInt2, "uint2", 1, 2, false},
    {DType::kUInt4, "uint4", 1, 4, false},
    {DType::kUInt8, "uint8", 1, 0, true},
    {DType::kUInt16, "uint16", 2, 0, true},
    {DType::kUInt32, "uint32", 4, 0, true},
    {DType::kUInt64, "uint64", 8, 0, true},
    {DType::kFloat16, "float16", 2, 0, true},
    {DType::kFloat32, "float32", 4, 0, true},
    {DType::kFloat64, "float64", 8, 0, true},
    {DType::kBFloat16, "bfloat16", 2, 0, true},
    {DType::kComplex64, "complex64", 8, 0, true},
    {DType::kComplex128, "complex128", 16, 0, true},
    {DType::kFloat8E3M4, "float8_e3m4", 1, 0, true},
    {DType::kFloat8E4M3, "float8_e4m3", 1, 0, false},
    {DType::kFloat8E4M3B11FNUZ, "float8_e4m3b11fnuz", 1, 0, true},
    {DType::kFloat8E4M3FN, "float8_e4m3fn", 1, 0, true},
    {DType::kFloat8E4M3FNUZ, "float8_e4m3fnuz", 1, 0, true},
    {DType::kFloat8E5M2, "float8_e5m2", 1, 0, true},
    {DType::kFloat8E5M2FNUZ, "float8_e5m2fnuz", 1, 0, true},
    {DType::kFloat8E8M0FNU, "float8_e8m0fnu", 1, 0, true},
    {DType::kFloat4E2M1FN, "float4_e2m1fn", 1, 4, true},
}};

// FindDType(number) indexes the table.
constexpr bool NumbersAreDense() {
  for (size_t i = 0; i < kDTypes.size(); ++i) {
    if (static_cast<size_t>(kDTypes[i].dtype) != i + 1) return false;
  }
  return true;
}
static_assert(NumbersAreDense());

}  // namespace

std::span<const DTypeInfo> AllDTypes() { return kDTypes; }

const DTypeInfo* FindDType(DType dtype) {
  const auto number = static_cast<size_t>(dtype);
  if (number == 0 || number > kDTypes.size()) return nullptr;
  return &kDTypes[number - 1];
}

const DTypeInfo* FindDType(std::string_view name) {
  for (const DTypeInfo& info : kDTypes) {
    if (info.name == name) return &info;
  }
  return nullptr;
}

}  // namespace stepwell
