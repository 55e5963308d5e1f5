// SPDX-License-Identifier: Apache-2.0
// What zarr_encode.cc and zarr_decode.cc share.
#pragma once

#include <cstdint>
#include <string>

#include "format/dtype.h"

namespace stepwell::format::orbax::internal {

enum class DTypeClass : uint8_t { kBool, kInteger, kFloat, kComplex };
DTypeClass ClassOf(DType dtype);

// zarr v2's name of a type: NumPy's "<f4", or as in v3 where NumPy has none.
std::string V2DTypeName(const DTypeInfo& dtype);

}  // namespace stepwell::format::orbax::internal
