// SPDX-License-Identifier: Apache-2.0
// The write tests of <stepwell/doctor.h>.
#pragma once

#include <cstdint>
#include <string>

#include <stepwell/doctor.h>

#include "io/disk.h"
#include "io/result.h"

namespace stepwell {

// Writes blocks one after another, as many in flight as the engine has, into space that is
// reserved first, for `seconds` or `bytes_max`; then flushes. The file is empty afterwards.
Result<WriteSpeed> MeasureWrites(io::File* file, double seconds, uint64_t bytes_max);
// The same pattern by fio, in a directory of its own that is removed afterwards. kNotFound when
// fio is not installed.
Result<WriteSpeed> MeasureWritesByFio(const std::string& directory, bool direct, double seconds,
                                      uint64_t bytes_max);

}  // namespace stepwell
