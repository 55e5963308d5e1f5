// SPDX-License-Identifier: Apache-2.0
// 128-bit hashes of content: XXH3 (https://xxhash.com), seed 0. They prove that two chunks are
// equal where nobody makes collisions on purpose; a payload's CRC is compared, too, before bytes
// are referred to.
#pragma once

#include <cstdint>
#include <vector>

#include "format/records.h"
#include "io/bytes.h"

namespace stepwell::format {

// Never zero, which means "not known".
Hash128 HashOf(ConstBytes bytes);

// Hashes the places of payloads in one segment, given in any order, for SegmentExtent::places.
// Sorts `places` and drops repetitions.
struct PayloadPlace {
  uint64_t offset_bytes = 0;
  uint64_t stored_bytes = 0;
  auto operator<=>(const PayloadPlace&) const = default;
};
Hash128 PlacesHash(std::vector<PayloadPlace>* places);

}  // namespace stepwell::format
