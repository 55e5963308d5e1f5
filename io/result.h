// SPDX-License-Identifier: Apache-2.0
// The engine's name for a header that is installed; and STEPWELL_CHECK, which goes with it.
//
// STEPWELL_CHECK: prints and aborts. It would take the training process along, so it must not
// report anything: bad input, bytes from a disk and failed I/O are Statuses, and so is a broken
// invariant wherever a Status can be returned (kInternal). It stands where going on would read or
// write memory that is not ours, and only the code around the call decides whether it can happen:
// - a Result's value that is not there (result.h);
// - a block that is given back twice, a pool that could never give one (buffer.cc);
// - arguments of the copying loops of chunks that do not fit each other (chunk_copy.cc); callers
//   have them from CheckLeaf and CheckChunk, which refuse every record that does not fit;
// - a buffer that is too small for its frame (frame.cc; CheckFrameSize refuses long payloads);
// - names of types and codecs that their callers' switches have just ruled out (zarr_encode.cc,
//   export_convert.cc).
#pragma once

#include <string_view>

#include <stepwell/result.h>

namespace stepwell::internal {
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              std::string_view message);
}  // namespace stepwell::internal

#define STEPWELL_CHECK(condition, message)                                          \
  do {                                                                              \
    if (!(condition)) [[unlikely]] {                                                \
      ::stepwell::internal::CheckFailed(__FILE__, __LINE__, #condition, (message)); \
    }                                                                               \
  } while (false)
