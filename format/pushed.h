// SPDX-License-Identifier: Apache-2.0
// Objects of a pushed run (FORMAT.md, "Pushed runs"): the list of a step, which names all that the
// step consists of, and the marker of a push that is under way.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "format/records.h"
#include "io/bytes.h"
#include "io/result.h"

namespace stepwell::format {

using Sha256 = std::array<uint8_t, 32>;

// An object with payloads. Two pushes never give one the same name, so that nobody who saw an
// object without an owner can remove one that has got an owner since.
struct DataObject {
  Sha256 sha256{};
  uint64_t salt = 0;
  uint64_t size_bytes = 0;

  auto operator<=>(const DataObject&) const = default;
};
// Its name below data/: the SHA-256 and the salt, in hexadecimal.
std::string DataObjectName(const DataObject& object);

struct PushedHead {
  std::optional<StepRecord> step;  // without extents; none: this is a marker
  std::vector<DataObject> objects;

  bool operator==(const PushedHead&) const = default;
};

// The list of a step. In its records the `segment` of a payload is an index of `objects`.
struct PushedStep : PushedHead {
  std::vector<LeafRecord> leaves;  // ascending by key, each with all its chunks
  // The hash of what each base decodes to: of all bases of all chunks, in their order.
  std::vector<Hash128> base_hashes;

  bool operator==(const PushedStep&) const = default;
};

inline constexpr size_t kPushedHeaderBytes = 72;
inline constexpr uint32_t kPushedVersion = 1;
// Of the head and of the leaves: a reader has both in memory. (100 bytes a chunk: ten million.)
inline constexpr uint64_t kPushedPartBytesMax = uint64_t{1} << 30;

struct PushedHeader {
  uint64_t head_bytes = 0;
  uint64_t leaves_bytes = 0;  // 0: a marker
  Hash128 head_hash;
  Hash128 leaves_hash;  // of a marker zero

  uint64_t size_bytes() const { return kPushedHeaderBytes + head_bytes + leaves_bytes; }
  bool operator==(const PushedHeader&) const = default;
};

std::string EncodePushMarker(std::span<const DataObject> objects);
std::string EncodePushedStep(const PushedStep& step);

// Decoders accept any bytes. kDataLoss: what is damaged or contradicts itself; kUnimplemented: of a
// newer version. From the first kPushedHeaderBytes, the rest may follow:
Result<PushedHeader> DecodePushedHeader(ConstBytes bytes);
// From the header and the head, the leaves may follow; of a list or a marker:
Result<PushedHead> DecodePushedHead(ConstBytes bytes);
// From all of a list. Each payload lies in its object, every hash is known, and no leaf is partial.
Result<PushedStep> DecodePushedStep(ConstBytes bytes);

}  // namespace stepwell::format
