// SPDX-License-Identifier: Apache-2.0
// Disk on io_uring.
#pragma once

#include <memory>

#include "io/disk.h"

namespace stepwell::io {

// The error has the reason of the kernel's refusal (and its errno).
Result<std::unique_ptr<Disk>> MakeUringDisk(unsigned depth);

}  // namespace stepwell::io
