// SPDX-License-Identifier: Apache-2.0
// Numbers and Python values as text and as JSON.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include <stepwell/array.h>

namespace stepwell::cli {

// A number, or "NaN", "Infinity", "-Infinity", which JSON has no numbers for.
nlohmann::json NumberJson(double value);
std::string NumberText(double value, int digits);

// A Python value that is not an array.
std::string ValueText(const Value& value);
// Integers beyond 64 bits are text; bytes are {"base64": …}; None is null.
nlohmann::json ValueJson(const Value& value);

}  // namespace stepwell::cli
