// SPDX-License-Identifier: Apache-2.0
// The metrics of a step, which are a text.
#pragma once

#include <string>
#include <string_view>

#include <stepwell/export.h>

namespace stepwell {

// Metrics or metadata as strict JSON. Python writes NaN, Infinity and -Infinity as numbers, which
// JSON parsers refuse; here they are the strings "NaN", "Infinity" and "-Infinity".
STEPWELL_API std::string StrictJson(std::string_view python_json);

}  // namespace stepwell
