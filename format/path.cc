// SPDX-License-Identifier: Apache-2.0
#include "format/path.h"

#include <algorithm>
#include <charconv>
#include <functional>

namespace stepwell::format {
namespace {

constexpr std::string_view kSpecial = "/*?[\\";

using Kind = PatternComponent::Kind;

// The length of the UTF-8 character that begins at `at`; of bytes that are not UTF-8, one.
size_t CharacterBytes(std::string_view text, size_t at) {
  size_t end = at + 1;
  if ((static_cast<unsigned char>(text[at]) & 0xC0U) == 0xC0U) {
    while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) ++end;
  }
  return end - at;
}

Status BadPath(std::string_view text, std::string_view what) {
  return InvalidArgumentError(StrCat("path \"", text, "\": ", what));
}

// Says what kind the last component is. Of several ** in a row one does.
void CloseComponent(std::vector<PatternComponent>* components) {
  PatternComponent& component = components->back();
  const auto& wild = component.wild;
  if (std::find(wild.begin(), wild.end(), true) == wild.end()) {
    component.wild.clear();
  } else if (component.text == "**" && wild[0] && wild[1]) {
    component.kind = Kind::kAnyDepth;
    if (components->size() > 1 && (components->end() - 2)->kind == Kind::kAnyDepth) {
      components->pop_back();
    }
  } else {
    component.kind = Kind::kGlob;
  }
}

// Names, which most components are, need no look for a literal: but for three, none is one.
bool MayBeLiteral(std::string_view spelling) {
  if (spelling == "True" || spelling == "False" || spelling == "None") return true;
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const auto is_of_name = [&](char c) {
    return is_digit(c) || c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           static_cast<unsigned char>(c) >= 0x80;
  };
  return !spelling.empty() &&
         (is_digit(spelling.front()) || !std::ranges::all_of(spelling, is_of_name));
}

}  // namespace

std::string Spelling(const PathComponent& component) {
  return IsNumber(component.type) ? std::to_string(component.number) : component.name;
}

std::vector<std::string> Spellings(const KeyPath& path) {
  std::vector<std::string> spellings;
  spellings.reserve(path.size());
  for (const PathComponent& component : path) spellings.push_back(Spelling(component));
  return spellings;
}

KeyPath ComponentsSpelled(const std::string& spelling) {
  KeyPath components = {PathComponent::Key(spelling), PathComponent::Attribute(spelling)};
  int64_t number = 0;
  const char* const end = spelling.data() + spelling.size();
  const auto parsed = std::from_chars(spelling.data(), end, number);
  if (parsed.ec != std::errc() || parsed.ptr != end || std::to_string(number) != spelling) {
    if (MayBeLiteral(spelling)) components.push_back(PathComponent::Literal(spelling));
    return components;
  }
  components.push_back(PathComponent::IntKey(number));
  if (number >= 0) components.push_back(PathComponent::Index(number));
  return components;
}

// Goes back to the last * only: that is enough, and takes at most |text| * |spelling| steps.
std::optional<std::vector<std::string>> PatternComponent::Capture(std::string_view spelling) const {
  std::vector<std::string> taken;
  const std::function<bool(size_t, size_t)> capture = [&](size_t p, size_t t) {
    if (p == text.size()) return t == spelling.size();
    if (wild.empty() || !wild[p]) {
      return t < spelling.size() && text[p] == spelling[t] && capture(p + 1, t + 1);
    }
    const bool is_star = text[p] == '*';
    if (!is_star && t == spelling.size()) return false;
    const size_t least = is_star ? t : t + CharacterBytes(spelling, t);
    for (size_t end = is_star ? spelling.size() : least;; --end) {
      taken.emplace_back(spelling.substr(t, end - t));
      if (capture(p + 1, end)) return true;
      taken.pop_back();
      if (end == least) return false;
    }
  };
  if (!capture(0, 0)) return std::nullopt;
  return taken;
}

bool PatternComponent::Matches(std::string_view spelling) const {
  if (kind == Kind::kLiteral) return text == spelling;
  size_t p = 0;
  size_t t = 0;
  size_t star = text.size();
  size_t star_text = 0;
  const auto is_star = [&](size_t at) { return at < text.size() && wild[at] && text[at] == '*'; };
  while (t < spelling.size()) {
    if (is_star(p)) {
      star = p++;
      star_text = t;
    } else if (p < text.size() && wild[p]) {  // ?
      ++p;
      t += CharacterBytes(spelling, t);
    } else if (p < text.size() && text[p] == spelling[t]) {
      ++p;
      ++t;
    } else if (star < text.size()) {
      p = star + 1;
      star_text += CharacterBytes(spelling, star_text);
      t = star_text;
    } else {
      return false;
    }
  }
  while (is_star(p)) ++p;
  return p == text.size();
}

Result<PathPattern> PathPattern::Parse(std::string_view text) {
  PathPattern pattern;
  pattern.text_ = text;
  if (text.empty()) return pattern;
  pattern.components_.emplace_back();
  for (size_t i = 0; i < text.size(); ++i) {
    PatternComponent& component = pattern.components_.back();
    const char c = text[i];
    if (c == '/') {
      CloseComponent(&pattern.components_);
      pattern.components_.emplace_back();
    } else if (c == '[') {
      return BadPath(text, "[ is reserved; write \\[ for the character");
    } else if (c != '\\') {
      component.text += c;
      component.wild.push_back(c == '*' || c == '?');
    } else if (++i < text.size() && kSpecial.find(text[i]) != std::string_view::npos) {
      component.text += text[i];
      component.wild.push_back(false);
    } else {
      return BadPath(text,
                     StrCat("a backslash stands before one of / * ? [ \\, not ",
                            i < text.size() ? StrCat("before ", text.substr(i, 1)) : "at the end"));
    }
  }
  CloseComponent(&pattern.components_);
  return pattern;
}

PathPattern PathPattern::Of(const KeyPath& components) {
  PathPattern pattern;
  for (const PathComponent& component : components) {
    pattern.components_.push_back({Kind::kLiteral, Spelling(component), {}, component});
  }
  pattern.text_ = PathToText(components);
  return pattern;
}

bool PathPattern::is_glob() const {
  return std::any_of(components_.begin(), components_.end(),
                     [](const auto& component) { return component.kind != Kind::kLiteral; });
}

bool PathPattern::is_plain_text() const {
  return !empty() && !components_.front().typed && text_.find('\\') == std::string::npos;
}

bool PathPattern::Takes(std::span<const std::string> spellings) const {
  // reached[i]: the components up to here can end after i spellings.
  std::vector<bool> reached(spellings.size() + 1, false);
  reached[0] = true;
  for (const PatternComponent& component : components_) {
    std::vector<bool> next(spellings.size() + 1, false);
    for (size_t i = 0; i <= spellings.size(); ++i) {
      if (component.kind == Kind::kAnyDepth) {
        next[i] = reached[i] || (i > 0 && next[i - 1]);
      } else if (i > 0 && reached[i - 1]) {
        next[i] = component.Matches(spellings[i - 1]);
      }
    }
    reached = std::move(next);
  }
  return std::find(reached.begin(), reached.end(), true) != reached.end();
}

std::string PathPattern::wildcards() const {
  std::string found;
  for (const PatternComponent& component : components_) {
    if (component.kind == Kind::kAnyDepth) found += '/';
    for (size_t i = 0; i < component.wild.size() && component.kind == Kind::kGlob; ++i) {
      if (component.wild[i]) found += component.text[i];
    }
  }
  return found;
}

std::optional<PatternMatch> PathPattern::Match(std::span<const std::string> spellings) const {
  PatternMatch match;
  const std::function<bool(size_t, size_t)> matches = [&](size_t at, size_t from) {
    if (at == components_.size()) {
      match.length = from;
      return true;
    }
    const PatternComponent& component = components_[at];
    const size_t known = match.taken.size();
    const bool is_any = component.kind == Kind::kAnyDepth;
    const size_t last = is_any ? spellings.size() : from + 1;
    for (size_t end = is_any ? from : from + 1; end <= last && end <= spellings.size(); ++end) {
      if (is_any) {
        const auto names = spellings.subspan(from, end - from);
        match.taken.emplace_back(names.begin(), names.end());
      } else {
        const auto captured = component.Capture(spellings[from]);
        if (!captured) return false;
        for (const std::string& text : *captured) match.taken.push_back({text});
      }
      if (matches(at + 1, end)) return true;
      match.taken.resize(known);
    }
    return false;
  };
  if (!matches(0, 0)) return std::nullopt;
  return match;
}

std::vector<std::string> PathPattern::Fill(const TakenNames& taken) const {
  std::vector<std::string> names;
  auto next = taken.begin();
  for (const PatternComponent& component : components_) {
    if (component.kind == Kind::kAnyDepth) {
      names.insert(names.end(), next->begin(), next->end());
      ++next;
      continue;
    }
    std::string& name = names.emplace_back();
    for (size_t i = 0; i < component.text.size(); ++i) {
      const bool is_wild = component.kind == Kind::kGlob && component.wild[i];
      name += is_wild ? (next++)->front() : std::string(1, component.text[i]);
    }
  }
  return names;
}

Result<KeyPath> ParseKeys(std::string_view text) {
  STEPWELL_ASSIGN_OR_RETURN(const PathPattern pattern, PathPattern::Parse(text));
  KeyPath path;
  for (const PatternComponent& component : pattern.components()) {
    if (component.kind != Kind::kLiteral) {
      return BadPath(text,
                     "it has a wildcard, and names no single place; write \\* and \\? for "
                     "the characters");
    }
    path.push_back(PathComponent::Key(component.text));
  }
  return path;
}

}  // namespace stepwell::format

namespace stepwell {

std::string PathToText(const KeyPath& path) {
  std::string out;
  for (const PathComponent& component : path) {
    if (&component != &path.front()) out.push_back('/');
    for (const char c : format::Spelling(component)) {
      if (format::kSpecial.find(c) != std::string_view::npos) out.push_back('\\');
      out.push_back(c);
    }
  }
  return out;
}

}  // namespace stepwell
