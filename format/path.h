// SPDX-License-Identifier: Apache-2.0
// The path language: how text, or a list of components, names places in the tree of a step. C++, C,
// the program and Python all use it. api/docs/pages/first-steps.md shows it to users, and
// tests/api/paths.json has the cases that all interfaces share.
//
//   params/enc/kernel   components joined with "/"; each matches a place with that spelling: the
//                       key "0", the attribute `0`, the int key 0 and the index 0 are all "0",
//                       the key "True" and the literal True are both "True"
//   params/*/k?rnel     * and ? stand for any characters and for one character of a component
//   params/**/kernel    ** alone stands for any number of components
//   a\/b                a backslash takes one of / * ? [ \ literally; a bare [ is reserved
//   {Key, Index, …}     components: nothing is special; of several places spelled alike, a number
//                       picks the int key or index, a name the key or attribute
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "format/key.h"
#include "io/result.h"

namespace stepwell::format {

// A number in decimal, a name as it is.
std::string Spelling(const PathComponent& component);
std::vector<std::string> Spellings(const KeyPath& path);
// Every component with this spelling: key and attribute, and int key and index of a number, or the
// literal of what is neither that nor a name.
KeyPath ComponentsSpelled(const std::string& spelling);

// One component of a pattern.
struct PatternComponent {
  enum class Kind : uint8_t { kLiteral, kGlob, kAnyDepth };
  Kind kind = Kind::kLiteral;
  std::string text;                    // without backslashes; kAnyDepth: unused
  std::vector<bool> wild{};            // kGlob: which characters of `text` are wildcards
  std::optional<PathComponent> typed;  // kLiteral that was given as a component

  // Not for kAnyDepth, which is not limited to one component.
  bool Matches(std::string_view spelling) const;
  // Returns the text that each wildcard matches; * matches as much as it can. None without a match.
  std::optional<std::vector<std::string>> Capture(std::string_view spelling) const;
};

// The names that the wildcards of a pattern stand for, in order: of ** any number, of others one.
using TakenNames = std::vector<std::vector<std::string>>;

// A place that a pattern names, or one below it.
struct PatternMatch {
  TakenNames taken;
  size_t length = 0;  // how many of the names the pattern is
};

class PathPattern {
 public:
  // The empty path: the place where paths start, and all below it.
  PathPattern() = default;
  // kInvalidArgument for malformed text.
  static Result<PathPattern> Parse(std::string_view text);
  static PathPattern Of(const KeyPath& components);

  const std::vector<PatternComponent>& components() const { return components_; }
  bool empty() const { return components_.empty(); }
  // Returns true if the pattern can name several places: it has a wildcard.
  bool is_glob() const;
  // The text that was given; for components, a text that means the same.
  const std::string& text() const { return text_; }
  // Returns true if the pattern was parsed from text in which nothing is escaped.
  bool is_plain_text() const;

  // Returns true if the pattern names the place with these spellings, or one above it.
  bool Takes(std::span<const std::string> spellings) const;

  // The wildcards in order, with "/" for **. What one pattern takes fills another with the same.
  std::string wildcards() const;
  // Like Takes, with what the wildcards stand for; ** matches as few names as it can.
  std::optional<PatternMatch> Match(std::span<const std::string> spellings) const;
  // The names of the place where each wildcard stands for what was taken. `taken` has an entry for
  // each of wildcards(), of one name unless it is for **.
  std::vector<std::string> Fill(const TakenNames& taken) const;

 private:
  std::vector<PatternComponent> components_;
  std::string text_;
};

// The components of text that names one place, as mapping keys: for saving. kInvalidArgument for
// malformed text and for wildcards.
Result<KeyPath> ParseKeys(std::string_view text);

}  // namespace stepwell::format
