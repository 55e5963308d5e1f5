// SPDX-License-Identifier: Apache-2.0
// Path: names a leaf or a subtree of a step.
//
// A path in text form is components joined by "/", as in the program and the Python package:
// "params/layer/kernel"; `\` takes the next character literally (before / * ? [ \ ). Text matches
// by spelling: "0" is the key "0", the index 0 or the attribute 0, whichever is there. Where
// several leaves are asked for, * and ? stand for characters of one component, ** for any number of
// components. Unless "state" is the step's only item, the first component is the item's name. In a
// KeyPath no character is special, and where several places are spelled alike, the types of the
// components decide.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <stepwell/export.h>
#include <stepwell/key_path.h>
#include <stepwell/result.h>

namespace stepwell {

// A value, without ties to a store. The call that takes the path reports bad text.
class STEPWELL_API Path {
 public:
  // The whole step.
  Path() = default;
  Path(const char* text) : text_(text) {}             // NOLINT(google-explicit-constructor)
  Path(std::string text) : text_(std::move(text)) {}  // NOLINT(google-explicit-constructor)
  Path(std::string_view text) : text_(text) {}        // NOLINT(google-explicit-constructor)
  // These components, in the item "state".
  Path(KeyPath components)  // NOLINT(google-explicit-constructor)
      : item_("state"), components_(std::move(components)) {}

  // `path` in the item of this name, whatever other items there are.
  static Path In(std::string item, Path path) {
    path.item_ = std::move(item);
    return path;
  }

  // If empty: taken from the text (reading), or "state" (saving).
  const std::optional<std::string>& item() const { return item_; }
  // The components that the caller gave; none for a path that was given as text.
  const std::optional<KeyPath>& components() const { return components_; }
  const std::string& text() const { return text_; }
  // The components as given, or parsed from the text as mapping keys. kInvalidArgument for
  // malformed text and for wildcards.
  Result<KeyPath> ToComponents() const;
  // For people; without the item's name if that is "state".
  std::string ToText() const;

 private:
  std::optional<std::string> item_;
  std::string text_;
  std::optional<KeyPath> components_;
};

}  // namespace stepwell
