// SPDX-License-Identifier: Apache-2.0
// Sizes and tables for people.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace stepwell {

std::string HumanBytes(uint64_t bytes);  // "512 B", "1.4 MiB"

// Columns padded to their widest cell, two blanks between; no blanks at line ends. `right` says
// which columns are numbers, set right; those after its last are. Widths count UTF-8 characters.
std::string Table(const std::vector<std::vector<std::string>>& rows,
                  const std::vector<bool>& right);

}  // namespace stepwell
