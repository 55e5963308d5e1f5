// SPDX-License-Identifier: Apache-2.0
// Disk on a few blocking threads: where io_uring is forbidden or missing, and the reference that
// the io_uring one is compared with.
#pragma once

#include <memory>

#include "io/disk.h"

namespace stepwell::io {

// An error when the system has not even one thread to give.
Result<std::unique_ptr<Disk>> MakePosixDisk();

}  // namespace stepwell::io
