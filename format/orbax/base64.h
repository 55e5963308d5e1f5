// SPDX-License-Identifier: Apache-2.0
// URL-safe base64 with padding, which Orbax makes of leaves' names in _sharding.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace stepwell::format::orbax {

std::string EncodeBase64(std::string_view bytes);
// Nothing when it is not what EncodeBase64 gives for some bytes.
std::optional<std::string> DecodeBase64(std::string_view text);

}  // namespace stepwell::format::orbax
