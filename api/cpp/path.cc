// SPDX-License-Identifier: Apache-2.0
#include <stepwell/path.h>

#include "io/bytes.h"

namespace stepwell {
namespace {

constexpr std::string_view kSpecial = "/*?[\\";

Result<KeyPath> Parse(std::string_view text) {
  KeyPath path;
  if (text.empty()) return path;
  path.push_back(PathComponent::Key(""));
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '/') {
      path.push_back(PathComponent::Key(""));
    } else if (c == '\\') {
      if (++i == text.size() || kSpecial.find(text[i]) == std::string_view::npos) {
        return InvalidArgumentError(
            StrCat("path \"", text, "\": a backslash stands before one of / * ? [ \\"));
      }
      path.back().name += text[i];
    } else if (kSpecial.find(c) != std::string_view::npos) {
      return InvalidArgumentError(
          StrCat("path \"", text, "\": patterns are not known here; write \\", c, " for the ", c));
    } else {
      path.back().name += c;
    }
  }
  return path;
}

}  // namespace

Result<KeyPath> Path::Components() const {
  if (components_) return *components_;
  return Parse(text_);
}

std::string Path::ToText() const {
  std::string below = components_ ? PathToText(*components_) : text_;
  if (!item_ || *item_ == "state") return below;
  const std::string item = PathToText({PathComponent::Key(*item_)});
  return below.empty() ? item : StrCat(item, "/", below);
}

}  // namespace stepwell
