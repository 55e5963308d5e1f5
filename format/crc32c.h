// SPDX-License-Identifier: Apache-2.0
// CRC-32C (Castagnoli) through ISA-L; lengths of any size.
#pragma once

#include <cstdint>

#include "io/bytes.h"

namespace stepwell::format {

uint32_t Crc32c(ConstBytes bytes);
// The CRC of (what gave `crc`) followed by `bytes`. ExtendCrc32c(0, b) == Crc32c(b).
uint32_t ExtendCrc32c(uint32_t crc, ConstBytes bytes);

}  // namespace stepwell::format
