// SPDX-License-Identifier: Apache-2.0
// NumPy's .npy format, version 1.0: a header, then the elements in C order.
#pragma once

#include <span>
#include <string>

#include "format/dtype.h"

namespace stepwell::format {

// "<f4"; empty: NumPy itself has no such type (those of ml_dtypes).
std::string NpyDescr(DType dtype);
// All that comes before the elements.
std::string EncodeNpyHeader(const std::string& descr, std::span<const uint64_t> shape);

}  // namespace stepwell::format
