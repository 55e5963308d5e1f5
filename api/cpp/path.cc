// SPDX-License-Identifier: Apache-2.0
#include <stepwell/path.h>

#include "format/path.h"

namespace stepwell {
Result<KeyPath> Path::ToComponents() const {
  if (components_) return *components_;
  return format::ParseKeys(text_);
}

std::string Path::ToText() const {
  std::string below = components_ ? PathToText(*components_) : text_;
  if (!item_ || *item_ == "state") return below;
  const std::string item = PathToText({PathComponent::Key(*item_)});
  return below.empty() ? item : StrCat(item, "/", below);
}

}  // namespace stepwell
