// SPDX-License-Identifier: Apache-2.0
// How fast a file takes a store's pattern of writes: through our own I/O layer, and through fio.
#pragma once

#include <cstdint>
#include <string>

#include "io/disk.h"
#include "io/result.h"

namespace stepwell::cli {

struct WriteSpeed {
  uint64_t bytes = 0;
  double seconds = 0;
  uint64_t block_bytes = 0;
  uint64_t depth = 0;
  std::string through;  // "io_uring, registered buffers", "fio-3.33"

  double BytesPerSecond() const { return seconds > 0 ? static_cast<double>(bytes) / seconds : 0; }
};

// Writes blocks one after another, as many in flight as the engine has, into space that is
// reserved first, for `seconds` or `bytes_max`; then flushes. The file is empty afterwards.
Result<WriteSpeed> MeasureWrites(io::File* file, double seconds, uint64_t bytes_max);
// The same pattern by fio, in a directory of its own that is removed afterwards. kNotFound when
// fio is not installed.
Result<WriteSpeed> MeasureWritesByFio(const std::string& directory, bool direct, double seconds,
                                      uint64_t bytes_max);

}  // namespace stepwell::cli
