// SPDX-License-Identifier: Apache-2.0
// Component = tag byte (PathComponent::Type), then
//   numbers: 8 bytes big-endian with the sign bit flipped (so that negatives sort first);
//   names:   the bytes with 00 -> 00 FF, then the terminator 00 01.
// A terminator sorts before any continuation of a name, so names sort bytewise; every component is
// self-delimiting, so one path's encoding is a prefix of another's only for an ancestor. Tags are
// >= 1, which leaves the byte 00 for the end of a path in chunk keys.
#include "format/key.h"

#include "format/endian.h"

namespace stepwell::format {
namespace {

constexpr char kEscape = '\0';
constexpr char kEscapedNul = '\xFF';
constexpr char kNameEnd = '\x01';
constexpr uint64_t kSignBit = uint64_t{1} << 63;
constexpr size_t kStepBytes = 8;

void AppendBig64(uint64_t value, std::string* out) {
  char bytes[8];
  StoreBig64(bytes, value);
  out->append(bytes, sizeof(bytes));
}

void AppendEscaped(std::string_view name, std::string* out) {
  for (;;) {
    const size_t nul = name.find('\0');
    out->append(name.substr(0, nul));
    if (nul == std::string_view::npos) break;
    out->push_back(kEscape);
    out->push_back(kEscapedNul);
    name.remove_prefix(nul + 1);
  }
  out->push_back(kEscape);
  out->push_back(kNameEnd);
}

// Takes a name off the front of `*rest`; `name` may be null (validation only).
bool ConsumeName(std::string_view* rest, std::string* name) {
  for (;;) {
    const size_t nul = rest->find('\0');
    if (nul == std::string_view::npos || nul + 1 >= rest->size()) return false;
    if (name != nullptr) name->append(rest->substr(0, nul));
    const char code = (*rest)[nul + 1];
    rest->remove_prefix(nul + 2);
    if (code == kNameEnd) return true;
    if (code != kEscapedNul) return false;
    if (name != nullptr) name->push_back('\0');
  }
}

Status BadKey(std::string_view what) { return DataLossError(StrCat("bad key: ", what)); }

// `path` may be null (validation only).
Status ConsumePath(std::string_view rest, KeyPath* path) {
  if (rest.size() > kPathBytesMax) return BadKey("path too long");
  size_t count = 0;
  while (!rest.empty()) {
    if (++count > kPathComponentsMax) return BadKey("too many path components");
    const auto tag = static_cast<uint8_t>(rest.front());
    rest.remove_prefix(1);
    if (tag < 1 || tag > 5) return BadKey(StrCat("component type ", int{tag}));
    PathComponent* component = nullptr;
    const auto type = static_cast<PathComponent::Type>(tag);
    if (path != nullptr) {
      component = &path->emplace_back();
      component->type = type;
    }
    if (IsNumber(type)) {
      if (rest.size() < 8) return BadKey("number cut short");
      const auto number = static_cast<int64_t>(LoadBig64(rest.data()) ^ kSignBit);
      rest.remove_prefix(8);
      if (type == PathComponent::Type::kIndex && number < 0) return BadKey("negative index");
      if (component != nullptr) component->number = number;
    } else if (!ConsumeName(&rest, component != nullptr ? &component->name : nullptr)) {
      return BadKey("name cut short or badly escaped");
    }
  }
  return OkStatus();
}

Status CheckSize(size_t path_bytes) {
  if (path_bytes <= kPathBytesMax) return OkStatus();
  return InvalidArgumentError(
      StrCat("a path of ", path_bytes, " bytes; the limit is ", kPathBytesMax));
}

Status AppendPath(const KeyPath& path, std::string* out) {
  if (path.size() > kPathComponentsMax) {
    return InvalidArgumentError(
        StrCat("a path of ", path.size(), " components; the limit is ", kPathComponentsMax));
  }
  const size_t start = out->size();
  for (const PathComponent& component : path) {
    if (component.type == PathComponent::Type::kIndex && component.number < 0) {
      return InvalidArgumentError(StrCat("negative index ", component.number, " in a path"));
    }
    if (IsNumber(component.type)) {
      AppendNumber(component.type, component.number, out);
    } else {
      AppendName(component.type, component.name, out);
    }
  }
  return CheckSize(out->size() - start);
}

}  // namespace

Result<std::string> EncodePath(const KeyPath& path) {
  std::string out;
  STEPWELL_RETURN_IF_ERROR(AppendPath(path, &out));
  return out;
}

Result<KeyPath> DecodePath(std::string_view encoded) {
  KeyPath path;
  STEPWELL_RETURN_IF_ERROR(ConsumePath(encoded, &path));
  return path;
}

void AppendName(PathComponent::Type type, std::string_view name, std::string* path) {
  path->push_back(static_cast<char>(type));
  AppendEscaped(name, path);
}

void AppendNumber(PathComponent::Type type, int64_t number, std::string* path) {
  path->push_back(static_cast<char>(type));
  AppendBig64(static_cast<uint64_t>(number) ^ kSignBit, path);
}

std::string EncodeItem(std::string_view item) {
  std::string out;
  out.reserve(item.size() + 2);
  AppendEscaped(item, &out);
  return out;
}

Result<std::string> EncodeLeafKey(std::string_view item, const KeyPath& path) {
  std::string out = EncodeItem(item);
  STEPWELL_RETURN_IF_ERROR(AppendPath(path, &out));
  return out;
}

Result<std::string> LeafKeyOf(std::string_view item, std::string_view encoded_path) {
  STEPWELL_RETURN_IF_ERROR(CheckSize(encoded_path.size()));
  std::string out;
  out.reserve(item.size() + 2 + encoded_path.size());
  AppendEscaped(item, &out);
  out.append(encoded_path);
  return out;
}

Status CheckLeafKey(std::string_view encoded) {
  if (!ConsumeName(&encoded, nullptr)) return BadKey("item name cut short or badly escaped");
  return ConsumePath(encoded, nullptr);
}

Result<LeafKey> DecodeLeafKey(std::string_view encoded) {
  LeafKey key;
  if (!ConsumeName(&encoded, &key.item)) return BadKey("item name cut short or badly escaped");
  STEPWELL_RETURN_IF_ERROR(ConsumePath(encoded, &key.path));
  return key;
}

std::string EncodeStep(uint64_t step) {
  std::string out;
  AppendBig64(step, &out);
  return out;
}

Result<uint64_t> DecodeStep(std::string_view encoded) {
  if (encoded.size() != kStepBytes) return BadKey(StrCat("a step of ", encoded.size(), " bytes"));
  return LoadBig64(encoded.data());
}

std::string PrefixEnd(std::string prefix) {
  while (!prefix.empty() && prefix.back() == '\xFF') prefix.pop_back();
  if (!prefix.empty()) {
    prefix.back() = static_cast<char>(static_cast<unsigned char>(prefix.back()) + 1);
  }
  return prefix;
}

}  // namespace stepwell::format
