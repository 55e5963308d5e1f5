// SPDX-License-Identifier: Apache-2.0
// Locates a leaf in its tree: a list of typed components, as JAX has them.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <stepwell/export.h>

namespace stepwell {

struct PathComponent {
  enum class Type : uint8_t {
    kIntKey = 1,  // {5: x}; any int64
    kIndex = 2,   // [x], (x,); number >= 0
    kKey = 3,     // {"a": x}; any bytes, also empty, NUL, "/" and invalid UTF-8 surrogates' bytes
    kAttribute = 4,  // node.a: namedtuple field, dataclass field, module attribute
    kLiteral = 5,    // {(1, "a"): x}, {True: x}: another key, as Python writes it: "(1, 'a')"
  };
  Type type = Type::kKey;
  int64_t number = 0;  // kIntKey, kIndex
  std::string name;    // of the others

  // {"a": x}, [x] or (x,), node.a, {5: x}, {True: x}
  static PathComponent Key(std::string name) { return {Type::kKey, 0, std::move(name)}; }
  static PathComponent Index(int64_t index) { return {Type::kIndex, index, {}}; }
  static PathComponent Attribute(std::string name) {
    return {Type::kAttribute, 0, std::move(name)};
  }
  static PathComponent IntKey(int64_t key) { return {Type::kIntKey, key, {}}; }
  static PathComponent Literal(std::string text) { return {Type::kLiteral, 0, std::move(text)}; }

  auto operator<=>(const PathComponent&) const = default;
};
using KeyPath = std::vector<PathComponent>;

// For people: components joined with "/", with `\` before each of / * ? [ \ . "" for the item
// itself.
STEPWELL_API std::string PathToText(const KeyPath& path);

}  // namespace stepwell
