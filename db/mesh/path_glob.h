// SPDX-License-Identifier: Apache-2.0
// Paths with wildcards, as the Python package has them: components joined with "/"; * and ? stand
// for characters of one component, ** alone for any number of components; a backslash takes one of
// / * ? [ \ literally, and an unescaped [ is reserved. Components match by spelling.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "format/key.h"
#include "io/result.h"

namespace stepwell::db {

class PathGlob {
 public:
  // kInvalidArgument for malformed text. "" takes everything.
  static Result<PathGlob> Parse(std::string_view text);

  // Whether it takes this place or one above it.
  bool Takes(const std::vector<std::string>& components) const;

 private:
  struct Character {
    char c;
    bool wild;  // an unescaped * or ?
  };
  using Pattern = std::vector<Character>;
  static bool IsDeep(const Pattern& pattern);
  static bool Matches(const Pattern& pattern, std::string_view text);

  std::vector<Pattern> patterns_;
};

// How each component of a leaf's path is spelled.
std::vector<std::string> Spellings(const format::KeyPath& path);

}  // namespace stepwell::db
