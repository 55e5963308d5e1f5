// SPDX-License-Identifier: Apache-2.0
#include "db/mesh/path_glob.h"

namespace stepwell::db {
namespace {

constexpr std::string_view kSpecial = "/*?[\\";

// The length of the UTF-8 character that begins at `at`; of what is none, one byte.
size_t CharacterBytes(std::string_view text, size_t at) {
  size_t end = at + 1;
  if ((static_cast<unsigned char>(text[at]) & 0xC0U) == 0xC0U) {
    while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) ++end;
  }
  return end - at;
}

}  // namespace

Result<PathGlob> PathGlob::Parse(std::string_view text) {
  const auto bad = [&](std::string_view what) {
    return InvalidArgumentError(StrCat("path \"", text, "\": ", what));
  };
  PathGlob glob;
  if (text.empty()) return glob;
  glob.patterns_.emplace_back();
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '/') {
      glob.patterns_.emplace_back();
    } else if (c == '[') {
      return bad("[ is reserved; write \\[ for the character");
    } else if (c == '\\') {
      if (++i == text.size() || kSpecial.find(text[i]) == std::string_view::npos) {
        return bad("a backslash stands before one of / * ? [ \\");
      }
      glob.patterns_.back().push_back({text[i], false});
    } else {
      glob.patterns_.back().push_back({c, c == '*' || c == '?'});
    }
  }
  return glob;
}

bool PathGlob::IsDeep(const Pattern& pattern) {
  return pattern.size() == 2 && pattern[0].wild && pattern[0].c == '*' && pattern[1].wild &&
         pattern[1].c == '*';
}

// Goes back to the last * only: that is enough, and takes at most |pattern| * |text| steps.
bool PathGlob::Matches(const Pattern& pattern, std::string_view text) {
  size_t p = 0;
  size_t t = 0;
  size_t star = pattern.size();
  size_t star_text = 0;
  while (t < text.size()) {
    const bool here = p < pattern.size();
    if (here && pattern[p].wild && pattern[p].c == '*') {
      star = p++;
      star_text = t;
    } else if (here && pattern[p].wild) {  // ?
      ++p;
      t += CharacterBytes(text, t);
    } else if (here && pattern[p].c == text[t]) {
      ++p;
      ++t;
    } else if (star < pattern.size()) {
      p = star + 1;
      star_text += CharacterBytes(text, star_text);
      t = star_text;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p].wild && pattern[p].c == '*') ++p;
  return p == pattern.size();
}

bool PathGlob::Takes(const std::vector<std::string>& components) const {
  // reached[i]: the patterns up to here can end after i components.
  std::vector<bool> reached(components.size() + 1, false);
  reached[0] = true;
  for (const Pattern& pattern : patterns_) {
    std::vector<bool> next(components.size() + 1, false);
    const bool deep = IsDeep(pattern);
    for (size_t i = 0; i <= components.size(); ++i) {
      if (deep) {
        next[i] = reached[i] || (i > 0 && next[i - 1]);
      } else if (i > 0 && reached[i - 1]) {
        next[i] = Matches(pattern, components[i - 1]);
      }
    }
    reached = std::move(next);
  }
  for (const bool end : reached) {
    if (end) return true;
  }
  return false;
}

std::vector<std::string> Spellings(const format::KeyPath& path) {
  std::vector<std::string> components;
  components.reserve(path.size());
  for (const format::PathComponent& component : path) {
    const bool number = component.type == format::PathComponent::Type::kIntKey ||
                        component.type == format::PathComponent::Type::kIndex;
    components.push_back(number ? std::to_string(component.number) : component.name);
  }
  return components;
}

}  // namespace stepwell::db
