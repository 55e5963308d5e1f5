// SPDX-License-Identifier: Apache-2.0
#include "api/cli/tree.h"

#include <algorithm>
#include <utility>

#include "api/cli/text.h"
#include "api/cli/values.h"

namespace stepwell::cli {
namespace {

constexpr size_t kShownValueMax = 60;

Result<Entry> MakeEntry(LeafInfo info, bool only_state) {
  Entry entry;
  entry.item = info.path.item().value_or("state");
  STEPWELL_ASSIGN_OR_RETURN(entry.shown, info.path.ToComponents());
  if (!only_state) entry.shown.insert(entry.shown.begin(), PathComponent::Key(entry.item));
  entry.text = PathToText(entry.shown);
  entry.info = std::move(info);
  return entry;
}

// Entries are in key order, so what the first and the last share all share.
size_t SharedDepth(const std::vector<Entry>& entries) {
  const KeyPath& a = entries.front().shown;
  const KeyPath& b = entries.back().shown;
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first -
                             a.begin());
}

std::string ValueDescription(const LeafInfo& info) {
  if (info.chunks > 0) return info.kind;
  if (!info.value) return info.kind + " (damaged)";
  const std::string value = ValueText(*info.value);
  if (value == info.kind) return info.kind;
  std::string shown = Printable(value);
  if (shown.size() > kShownValueMax) {
    // Not in the middle of a UTF-8 character.
    size_t end = kShownValueMax;
    while (end > 0 && (static_cast<uint8_t>(shown[end]) & 0xC0) == 0x80) --end;
    shown.resize(end);
    shown += "...";
  }
  return StrCat(info.kind, " ", shown);
}

}  // namespace

Result<Selection> Select(const Step& step, const Path& path, bool only_state) {
  STEPWELL_ASSIGN_OR_RETURN(std::vector<LeafInfo> tree, step.Tree(path));
  Selection selection;
  for (LeafInfo& info : tree) {
    STEPWELL_ASSIGN_OR_RETURN(Entry entry, MakeEntry(std::move(info), only_state));
    selection.entries.push_back(std::move(entry));
  }
  if (path.ToText().empty() || selection.entries.empty()) return selection;
  selection.depth = SharedDepth(selection.entries);
  KeyPath shared = selection.entries.front().shown;
  shared.resize(selection.depth);
  selection.text = PathToText(shared);
  return selection;
}

std::string Spelling(const PathComponent& component) {
  switch (component.type) {
    case PathComponent::Type::kIntKey:
    case PathComponent::Type::kIndex:
      return std::to_string(component.number);
    default:
      return component.name;
  }
}

std::string DTypeName(DType dtype) {
  const DTypeInfo* info = FindDType(dtype);
  return info == nullptr ? "unknown dtype" : std::string(info->name);
}

std::string Description(const LeafInfo& info) {
  if (info.type == LeafType::kArray) {
    const std::string text = DTypeName(info.dtype) + ShapeText(info.shape);
    return info.prng_impl.empty() ? text : StrCat("key<", Printable(info.prng_impl), "> ", text);
  }
  if (info.type != LeafType::kNode) return ValueDescription(info);
  std::string text = info.kind;
  if (!info.type_name.empty() && info.type_name != text) {
    text += StrCat(" ", Printable(info.type_name));
  }
  return info.children == 0 ? text + ", empty" : text;
}

void AddValue(const LeafInfo& info, Json* json) {
  if (info.value) (*json)["value"] = ValueJson(*info.value);
}

}  // namespace stepwell::cli
