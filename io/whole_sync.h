// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "io/disk.h"

namespace stepwell::io {

// TakeWholeSync of the machine's own file systems, by syncfs.
std::unique_ptr<WholeSync> TakeLocalWholeSync(const std::string& path);

}  // namespace stepwell::io
