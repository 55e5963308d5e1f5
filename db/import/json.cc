// SPDX-License-Identifier: Apache-2.0
// JSON items: as trees of Python values, which is what loading gives for them with Orbax, too.
#include "format/orbax/json.h"
#include "db/import/tree.h"
#include "format/key.h"
#include "io/small_file.h"

namespace stepwell::db::import {
namespace {

using format::ContainerKind;
using format::ValueType;
using format::orbax::Json;

constexpr uint64_t kJsonFileBytesMax = uint64_t{1} << 30;

// The depth of `value` is bounded by the parser.
Status AddJson(const Json& value, format::KeyPath* path, ItemInput* item) {
  STEPWELL_ASSIGN_OR_RETURN(std::string key, format::EncodeLeafKey(item->name, *path));
  const auto add = [&](ValueType type, std::string text) {
    item->leaves.push_back(ValueInput(std::move(key), type, std::move(text)));
  };
  switch (value.type()) {
    case Json::value_t::object:
      item->leaves.push_back(NodeInput(std::move(key), ContainerKind::kDict, value.size()));
      for (const auto& [name, child] : value.get_ref<const Json::object_t&>()) {
        path->push_back(PathComponent::Key(name));
        STEPWELL_RETURN_IF_ERROR(AddJson(child, path, item));
        path->pop_back();
      }
      return OkStatus();
    case Json::value_t::array:
      item->leaves.push_back(NodeInput(std::move(key), ContainerKind::kList, value.size()));
      for (size_t i = 0; i < value.size(); ++i) {
        path->push_back(PathComponent::Index(static_cast<int64_t>(i)));
        STEPWELL_RETURN_IF_ERROR(AddJson(value[i], path, item));
        path->pop_back();
      }
      return OkStatus();
    case Json::value_t::string:
      add(ValueType::kStr, value.get<std::string>());
      return OkStatus();
    case Json::value_t::boolean:
      add(ValueType::kBool, std::string(1, value.get<bool>() ? '\1' : '\0'));
      return OkStatus();
    case Json::value_t::number_integer:
      add(ValueType::kInt, std::to_string(value.get<int64_t>()));
      return OkStatus();
    case Json::value_t::number_unsigned:
      add(ValueType::kInt, std::to_string(value.get<uint64_t>()));
      return OkStatus();
    case Json::value_t::number_float:
      add(ValueType::kFloat, FloatValue(value.get<double>()));
      return OkStatus();
    case Json::value_t::null:
      add(ValueType::kNone, {});
      return OkStatus();
    case Json::value_t::binary:
      add(ValueType::kInt, format::orbax::LargeIntegerText(value));
      return OkStatus();
    case Json::value_t::discarded:
      break;
  }
  return InternalError("a type that JSON does not have");
}

}  // namespace

Result<ItemInput> ReadJsonItem(io::FileSystem* file_system, const OrbaxItem& item) {
  const std::string path = StrCat(item.path, "/", item.json_file);
  STEPWELL_ASSIGN_OR_RETURN(const std::string text,
                            io::ReadSmallFile(file_system, path, kJsonFileBytesMax));
  STEPWELL_ASSIGN_OR_RETURN(
      const Json json, format::orbax::ParseJson(path, text, format::orbax::JsonDialect::kPython));
  ItemInput input;
  input.name = item.target;
  input.kind = format::ItemKind::kJson;
  format::KeyPath above;
  STEPWELL_RETURN_IF_ERROR(AddJson(json, &above, &input));
  return input;
}

}  // namespace stepwell::db::import
