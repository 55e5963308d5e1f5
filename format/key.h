// SPDX-License-Identifier: Apache-2.0
// Order-preserving keys. A key-path is a list of typed components; its encoding sorts (bytewise)
// as the tree does, every subtree is one prefix, and no two paths share an encoding.
// Grammar and worked examples: FORMAT.md, "Keys".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <stepwell/key_path.h>

#include "io/bytes.h"
#include "io/result.h"

namespace stepwell::format {

using stepwell::KeyPath;
using stepwell::PathComponent;
using stepwell::PathToText;

// Returns true if such components hold a number, not a name.
inline bool IsNumber(PathComponent::Type type) {
  return type == PathComponent::Type::kIntKey || type == PathComponent::Type::kIndex;
}

// Limits that decoders enforce.
inline constexpr size_t kPathComponentsMax = 256;
inline constexpr size_t kPathBytesMax = size_t{1} << 20;  // encoded

// A key-path alone. The encoding of a path is a prefix of the encodings of all paths below it, and
// of nothing else. Fails beyond the limits (kInvalidArgument).
Result<std::string> EncodePath(const KeyPath& path);
Result<KeyPath> DecodePath(std::string_view encoded);  // kDataLoss on bad bytes
// Append a component to an encoded path: so a walk through a tree encodes each component once. An
// index is >= 0. LeafKeyOf checks how long the path has become, nothing how many components it has.
void AppendName(PathComponent::Type type, std::string_view name, std::string* path);
void AppendNumber(PathComponent::Type type, int64_t number, std::string* path);

// (item, path): leaf key within a step. The item name's encoding is self-delimiting.
std::string EncodeItem(std::string_view item);
Result<std::string> EncodeLeafKey(std::string_view item, const KeyPath& path);
Result<std::string> LeafKeyOf(std::string_view item, std::string_view encoded_path);
struct LeafKey {
  std::string item;
  KeyPath path;
};
Result<LeafKey> DecodeLeafKey(std::string_view encoded);
Status CheckLeafKey(std::string_view encoded);  // checks that it decodes, without decoding it

// (step): 8 bytes big-endian: the keys of the index.
std::string EncodeStep(uint64_t step);
Result<uint64_t> DecodeStep(std::string_view encoded);

// The smallest string greater than every string with this prefix; empty when there is none.
std::string PrefixEnd(std::string prefix);

}  // namespace stepwell::format
