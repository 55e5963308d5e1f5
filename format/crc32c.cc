// SPDX-License-Identifier: Apache-2.0
#include "format/crc32c.h"

#include <isa-l/crc.h>

#include <algorithm>

namespace stepwell::format {
namespace {

// ISA-L takes an int length.
constexpr size_t kStepBytesMax = size_t{1} << 30;

}  // namespace

uint32_t Crc32c(ConstBytes bytes) { return ExtendCrc32c(0, bytes); }

uint32_t ExtendCrc32c(uint32_t crc, ConstBytes bytes) {
  uint32_t state = ~crc;
  while (!bytes.empty()) {
    const size_t step = std::min(bytes.size(), kStepBytesMax);
    // ISA-L's signature is not const-correct; it only reads.
    auto* data = const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(bytes.data()));
    state = crc32_iscsi(data, static_cast<int>(step), state);
    bytes = bytes.subspan(step);
  }
  return ~state;
}

}  // namespace stepwell::format
