// SPDX-License-Identifier: Apache-2.0
// Computes what deleting a step would free: the payloads that no other step needs.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>

#include "db/log/live_steps.h"
#include "db/log/segment_files.h"

namespace stepwell::db {

// Returns for each of `asked` that is in `live`, or for all of `live` if that is empty, the bytes
// of the payloads that no other step of `live` or `undecided` has, whether the step wrote them or
// refers to them. No value: the records of the step, or of one that needs the same segments, cannot
// be read.
//
// Reads the records of the steps that have payloads in a segment where an asked step has some: of
// those that own nothing there and refer to the same, one; none where that one speaks for the asked
// step and others. Memory: about 50 bytes for each payload in these segments.
std::map<uint64_t, std::optional<uint64_t>> FreesBytes(SegmentFiles& files,
                                                       const LiveSteps::List& live,
                                                       const LiveSteps::List& undecided,
                                                       std::span<const uint64_t> asked);

}  // namespace stepwell::db
