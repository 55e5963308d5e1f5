// SPDX-License-Identifier: Apache-2.0
// Numbers, times and texts for people; <stepwell/text.h> has sizes and tables.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>

#include <stepwell/text.h>  // IWYU pragma: export

namespace stepwell::cli {

std::string HumanCount(uint64_t count);  // "1,234,567"
// "1.25x"; "-" when nothing is stored.
std::string Ratio(uint64_t logical_bytes, uint64_t stored_bytes);
using Time = std::chrono::system_clock::time_point;
std::string LocalTime(Time time);                        // "2026-11-21 14:03:59"
std::string UtcTime(Time time);                          // "2026-11-21T13:03:59.123456789Z"
std::string ShapeText(std::span<const uint64_t> shape);  // "[32, 64]"; "[]" for rank 0
// "1 leaf", "2 leaves".
std::string Plural(uint64_t count, const std::string& one, const std::string& many);

// Control characters as \n, \t, \x1b: text from a store must not steer a terminal.
std::string Printable(const std::string& text);

}  // namespace stepwell::cli
