// SPDX-License-Identifier: Apache-2.0
// Values that the user gave as JSON: custom metadata, metrics, items of their own. Here they are
// text as Python's json.dumps writes it, so NaN, Infinity and -Infinity pass.
#pragma once

#include <string>
#include <string_view>

#include "io/result.h"

namespace stepwell::format::orbax {

// The same value as json.dumps spells it, members in their order: what the files `metadata`,
// `data.json` and `metrics` hold. kDataLoss, kUnimplemented: see ParseJson in json.h; among them a
// key twice in one object and integers beyond 64 bits.
Result<std::string> NormalJson(std::string_view file, std::string_view text);
// The same of an object.
Result<std::string> NormalJsonObject(std::string_view file, std::string_view text);

}  // namespace stepwell::format::orbax
