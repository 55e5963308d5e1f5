// SPDX-License-Identifier: Apache-2.0
// Items that are JSON (format::ItemKind::kJson): trees of what JSON has.
#include "db/export/orbax/leaves.h"

#include "db/export/orbax/numbers.h"
#include "format/endian.h"
#include "format/key.h"
#include "format/orbax/json.h"
#include "format/orbax/python_text.h"

namespace stepwell::db {
namespace {

using format::ContainerKind;
using format::LeafKind;
using format::LeafRecord;
using format::ValueType;
using format::orbax::Json;

Status NoJson(const format::KeyPath& path, std::string_view what) {
  return InvalidArgumentError(StrCat("'", format::PathToText(path), "' is ", what,
                                     ", which JSON has not; the item is to be JSON"));
}

// Returns the place of the value at `path`. Records come in key order, so it is new, or the last
// one.
Result<Json*> PlaceOf(const format::KeyPath& path, size_t path_prefix, Json* root) {
  const Status damaged = DataLossError(
      StrCat("the record of '", format::PathToText(path), "' is damaged: it has no container"));
  Json* at = root;
  for (size_t i = path_prefix; i < path.size(); ++i) {
    const format::PathComponent& component = path[i];
    if (component.type == PathComponent::Type::kIndex) {
      if (!at->is_array() || component.number < 0) return damaged;
      const auto index = static_cast<size_t>(component.number);
      if (index == at->size()) at->push_back(nullptr);
      if (index + 1 != at->size()) return damaged;
      at = &at->back();
    } else {
      if (component.type == PathComponent::Type::kIntKey) return NoJson(path, "an integer key");
      if (component.type == PathComponent::Type::kLiteral)
        return NoJson(path, "a key that is no str");
      if (!at->is_object()) return damaged;
      if (!format::orbax::IsUtf8(component.name)) return NoJson(path, "a key that is not UTF-8");
      auto& members = at->get_ref<Json::object_t&>();
      if (members.empty() || members.back().first != component.name) {
        members.emplace_back(component.name, nullptr);
      }
      at = &members.back().second;
    }
  }
  return at;
}

// Recognizes integers as Python writes them: "-123".
bool IsDecimal(std::string_view text) {
  if (text.starts_with('-')) text.remove_prefix(1);
  return !text.empty() && text.front() != '0' &&
         text.find_first_not_of("0123456789") == std::string_view::npos;
}

Result<Json> ValueOf(const LeafRecord& leaf, const format::KeyPath& path) {
  const std::string& bytes = leaf.inline_value;
  const Status damaged =
      DataLossError(StrCat("the record of '", format::PathToText(path), "' is damaged: its value"));
  switch (leaf.value_type) {
    case ValueType::kNone:
      return Json(nullptr);
    case ValueType::kBool:
      if (bytes.size() != 1) return damaged;
      return Json(bytes[0] != 0);
    case ValueType::kFloat:
      if (bytes.size() != sizeof(double)) return damaged;
      return Json(format::LoadLittle<double>(AsBytes(bytes).data()));
    case ValueType::kStr:
      if (bytes.size() != leaf.logical_bytes) return damaged;
      if (!format::orbax::IsUtf8(bytes)) return NoJson(path, "text that is not UTF-8");
      return Json(bytes);
    case ValueType::kInt: {
      int64_t number = 0;
      uint64_t large = 0;
      if (ParseInteger(bytes, &number)) return Json(number);
      if (ParseInteger(bytes, &large)) return Json(large);
      if (bytes.size() > format::orbax::kIntegerBytesMax) {
        return NoJson(
            path, StrCat("an integer of more than ", format::orbax::kIntegerBytesMax, " digits"));
      }
      if (!IsDecimal(bytes)) return damaged;
      return format::orbax::LargeInteger(bytes);
    }
    default:
      return NoJson(path, "no None, bool, number or text");
  }
}

}  // namespace

Result<std::string> EncodeJsonItem(std::span<const LeafRecord> leaves, size_t path_prefix) {
  Json root;
  for (const LeafRecord& leaf : leaves) {
    STEPWELL_ASSIGN_OR_RETURN(const format::LeafKey key, format::DecodeLeafKey(leaf.key));
    if (key.path.size() > path_prefix + format::orbax::kJsonDepthMax) {
      return NoJson(key.path, StrCat("below ", format::orbax::kJsonDepthMax, " levels"));
    }
    STEPWELL_ASSIGN_OR_RETURN(Json* const place, PlaceOf(key.path, path_prefix, &root));
    if (leaf.kind == LeafKind::kNode) {
      const bool is_list =
          leaf.container == ContainerKind::kList || leaf.container == ContainerKind::kTuple;
      *place = is_list ? Json::array() : Json::object();
    } else if (leaf.kind == LeafKind::kValue) {
      STEPWELL_ASSIGN_OR_RETURN(*place, ValueOf(leaf, key.path));
    } else {
      return NoJson(key.path, "an array");
    }
  }
  std::string text;
  format::orbax::AppendPythonJson(root, &text);
  return text;
}

}  // namespace stepwell::db
