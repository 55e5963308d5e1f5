// SPDX-License-Identifier: Apache-2.0
// Numbers, times and texts for people; io/table.h has sizes and tables.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "format/grid.h"
#include "io/table.h"  // IWYU pragma: export

namespace stepwell::cli {

std::string HumanCount(uint64_t count);  // "1,234,567"
// "1.25x"; "-" when nothing is stored.
std::string Ratio(uint64_t logical_bytes, uint64_t stored_bytes);
std::string LocalTime(int64_t time_ns);             // "2026-11-21 14:03:59"
std::string UtcTime(int64_t time_ns);               // "2026-11-21T13:03:59.123456789Z"
std::string ShapeText(const format::Shape& shape);  // "[32, 64]"; "[]" for rank 0
// "1 leaf", "2 leaves".
std::string Plural(uint64_t count, const std::string& one, const std::string& many);

// Control characters as \n, \t, \x1b: text from a store must not steer a terminal.
std::string Printable(const std::string& text);

// How many single-character edits lead from `a` to `b`.
size_t EditDistance(const std::string& a, const std::string& b);

}  // namespace stepwell::cli
