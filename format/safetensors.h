// SPDX-License-Identifier: Apache-2.0
// The header of a .safetensors file: 8 bytes of length, JSON, then the tensors' bytes without gaps.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "format/dtype.h"
#include "format/grid.h"
#include "io/result.h"

namespace stepwell::format {

// The format's word for an element type ("BF16"); empty: it has none.
std::string_view SafetensorsDType(DType dtype);

struct SafetensorsTensor {
  std::string name;  // UTF-8, not kSafetensorsMetadata; unique
  DType dtype = DType::kInvalid;
  Shape shape;
  uint64_t begin_bytes = 0;  // in the data, which begins behind the header
  uint64_t end_bytes = 0;
};
// The key that is not a tensor.
inline constexpr std::string_view kSafetensorsMetadata = "__metadata__";
// Readers refuse longer ones.
inline constexpr uint64_t kSafetensorsHeaderBytesMax = 100'000'000;

// Length and JSON, padded so that the data begins at a multiple of 8 bytes. `tensors` lie in the
// order of their bytes; all texts are UTF-8. kInvalidArgument: too long for readers.
Result<std::string> EncodeSafetensorsHeader(
    std::span<const SafetensorsTensor> tensors,
    std::span<const std::pair<std::string, std::string>> metadata);

}  // namespace stepwell::format
