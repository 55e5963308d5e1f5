// SPDX-License-Identifier: Apache-2.0
#include "api/cli/select.h"

#include <algorithm>
#include <set>
#include <utility>

#include "api/cli/text.h"
#include "io/bytes.h"

namespace stepwell::cli {
namespace {

constexpr size_t kNearestMax = 3;
constexpr size_t kListedMax = 8;

using Spelled = std::vector<std::string>;

Spelled Spell(const format::KeyPath& path) {
  Spelled spelled;
  for (const format::PathComponent& component : path) spelled.push_back(Spelling(component));
  return spelled;
}

bool StartsWith(const Spelled& path, const Spelled& prefix) {
  return path.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), path.begin());
}

std::string JoinEscaped(const Spelled& spelled) {
  std::string text;
  for (size_t i = 0; i < spelled.size(); ++i) {
    if (i > 0) text += "/";
    text += format::PathToText({{format::PathComponent::Type::kKey, 0, spelled[i]}});
  }
  return text;
}

Result<std::vector<Entry>> AllEntries(db::StepReader* reader, bool only_state) {
  STEPWELL_ASSIGN_OR_RETURN(std::vector<format::LeafRecord> records, reader->Leaves(""));
  std::vector<Entry> entries;
  entries.reserve(records.size());
  for (format::LeafRecord& record : records) {
    STEPWELL_ASSIGN_OR_RETURN(format::LeafKey key, format::DecodeLeafKey(record.key));
    Entry entry{std::move(record), std::move(key.item), std::move(key.path), ""};
    if (!only_state) {
      entry.shown.insert(entry.shown.begin(), {format::PathComponent::Type::kKey, 0, entry.item});
    }
    entry.text = format::PathToText(entry.shown);
    entries.push_back(std::move(entry));
  }
  return entries;
}

Selection Matching(const std::vector<Entry>& entries, const Spelled& wanted) {
  Selection selection;
  selection.text = JoinEscaped(wanted);
  selection.depth = wanted.size();
  for (const Entry& entry : entries) {
    const Spelled spelled = Spell(entry.shown);
    if (!StartsWith(spelled, wanted)) continue;
    if (spelled.size() == wanted.size()) {
      selection.entries.insert(
          selection.entries.begin() + static_cast<ptrdiff_t>(selection.exact_count), entry);
      ++selection.exact_count;
    } else {
      selection.entries.push_back(entry);
    }
  }
  return selection;
}

// Goes down as far as `wanted` leads and names what there is instead of its next component.
Status NoSuchPath(const std::vector<Entry>& entries, const Spelled& wanted, uint64_t step) {
  size_t depth = 0;
  std::set<std::string> children;
  for (const Entry& entry : entries) {
    const Spelled spelled = Spell(entry.shown);
    const size_t shorter = std::min(spelled.size(), wanted.size());
    const size_t common = static_cast<size_t>(
        std::mismatch(wanted.begin(), wanted.begin() + static_cast<ptrdiff_t>(shorter),
                      spelled.begin())
            .first -
        wanted.begin());
    if (common < depth || common == spelled.size()) {
      if (common > depth) {  // a leaf on the way: nothing lies below it, as far as we know yet
        depth = common;
        children.clear();
      }
      continue;
    }
    if (common > depth) children.clear();
    depth = common;
    children.insert(spelled[common]);
  }
  std::vector<std::string> nearest(children.begin(), children.end());
  const std::string& missing = wanted[std::min(depth, wanted.size() - 1)];
  std::stable_sort(nearest.begin(), nearest.end(), [&](const auto& a, const auto& b) {
    return EditDistance(a, missing) < EditDistance(b, missing);
  });
  nearest.resize(
      std::min(nearest.size(), children.size() <= kListedMax ? kListedMax : kNearestMax));
  Spelled parent(wanted.begin(), wanted.begin() + static_cast<ptrdiff_t>(depth));
  std::string message = StrCat("step ", step, " has no path ", JoinEscaped(wanted));
  if (nearest.empty()) {
    if (!parent.empty()) message += StrCat("; ", JoinEscaped(parent), " has nothing below it");
    return NotFoundError(message);
  }
  message += children.size() == nearest.size() ? "; there are: " : "; the nearest: ";
  for (size_t i = 0; i < nearest.size(); ++i) {
    Spelled path = parent;
    path.push_back(nearest[i]);
    message += StrCat(i == 0 ? "" : ", ", JoinEscaped(path));
  }
  return NotFoundError(message);
}

}  // namespace

Result<std::vector<std::string>> SplitPath(const std::string& text) {
  if (text.empty()) return Spelled{};
  Spelled components(1);
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '/') {
      components.emplace_back();
    } else if (text[i] != '\\') {
      components.back() += text[i];
    } else if (++i < text.size()) {
      components.back() += text[i];
    } else {
      return InvalidArgumentError(StrCat("path ", text, " ends in a lone \\"));
    }
  }
  return components;
}

std::string Spelling(const format::PathComponent& component) {
  switch (component.type) {
    case format::PathComponent::Type::kIntKey:
    case format::PathComponent::Type::kIndex:
      return std::to_string(component.number);
    default:
      return component.name;
  }
}

bool OnlyState(const format::StepRecord& step) {
  return step.items.size() == 1 && step.items[0].name == "state";
}

Result<Selection> Select(db::StepReader* reader, const std::string& path_text) {
  return Select(reader, path_text, OnlyState(reader->step()));
}

Result<Selection> Select(db::StepReader* reader, const std::string& path_text, bool only_state) {
  STEPWELL_ASSIGN_OR_RETURN(Spelled wanted, SplitPath(path_text));
  STEPWELL_ASSIGN_OR_RETURN(std::vector<Entry> entries, AllEntries(reader, only_state));

  // As written first; then without the item's name, which the user need not leave out; then without
  // the "/" at the end that shells like to append.
  Selection selection = Matching(entries, wanted);
  if (selection.entries.empty() && only_state && !wanted.empty() && wanted[0] == "state") {
    selection = Matching(entries, Spelled(wanted.begin() + 1, wanted.end()));
  }
  if (selection.entries.empty() && wanted.size() > 1 && wanted.back().empty()) {
    return Select(reader, path_text.substr(0, path_text.size() - 1), only_state);
  }
  if (selection.entries.empty() && !wanted.empty()) {
    return NoSuchPath(entries, wanted, reader->step().step);
  }
  return selection;
}

uint64_t StoredBytes(const format::LeafRecord& record) {
  uint64_t bytes = record.inline_value.size();
  for (const format::ChunkRecord& chunk : record.chunks) bytes += chunk.stored_bytes;
  return bytes;
}

uint64_t LogicalBytes(const format::LeafRecord& record) {
  if (record.kind == format::LeafKind::kNode) return 0;
  if (record.kind == format::LeafKind::kValue) {
    return std::max<uint64_t>(record.logical_bytes, record.inline_value.size());
  }
  const format::DTypeInfo* info = format::FindDType(record.dtype);
  uint64_t bytes = info == nullptr ? 0 : info->item_bytes;
  for (const uint64_t extent : record.shape) bytes *= extent;
  return bytes;
}

}  // namespace stepwell::cli
