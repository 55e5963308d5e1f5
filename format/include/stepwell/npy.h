// SPDX-License-Identifier: Apache-2.0
// NumPy's .npy format, version 1.0: a header, then the elements in C order.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <stepwell/dtype.h>
#include <stepwell/export.h>

namespace stepwell {

// "<f4"; empty: NumPy itself has no such type (those of ml_dtypes).
STEPWELL_API std::string NpyDescr(DType dtype);
// All that comes before the elements.
STEPWELL_API std::string EncodeNpyHeader(const std::string& descr, std::span<const uint64_t> shape);

}  // namespace stepwell
