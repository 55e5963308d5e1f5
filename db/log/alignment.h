// SPDX-License-Identifier: Apache-2.0
// Where frames and payloads begin within a segment.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stepwell::db {

// Frames begin at multiples of it, and space is given back by whole ones: a block of the disk.
inline constexpr uint64_t kGrainBytes = 4096;

inline constexpr size_t kLargePayloadBytes = size_t{64} << 10;  // from here on: kLargeAlignment
inline constexpr size_t kLargeAlignment = 4096;
inline constexpr size_t kSmallAlignment = 64;
constexpr size_t PayloadAlignment(size_t payload_bytes) {
  return payload_bytes >= kLargePayloadBytes ? kLargeAlignment : kSmallAlignment;
}

}  // namespace stepwell::db
