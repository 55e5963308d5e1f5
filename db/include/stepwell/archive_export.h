// SPDX-License-Identifier: Apache-2.0
// A step as one file of arrays by name: .safetensors or .npz.
#pragma once

#include <cstdint>
#include <functional>

#include <stepwell/orbax_export.h>

namespace stepwell {

enum class ArchiveFormat : uint8_t { kSafetensors, kNpz };

struct ArchiveOptions {
  ArchiveFormat format = ArchiveFormat::kSafetensors;
  // Decides about containers, Python's values and element types that the format lacks. kWiden:
  // element types become the next wider one of NumPy's, Python's numbers arrays of rank 0, PRNG
  // keys their data.
  OnUnsupported on_unsupported = OnUnsupported::kError;
  // The same as in ExportOptions.
  std::function<bool(uint64_t done_bytes, uint64_t total_bytes)> progress{};
};

}  // namespace stepwell
