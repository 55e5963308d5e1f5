// SPDX-License-Identifier: Apache-2.0
#include "db/view/options.h"

#include <filesystem>
#include <limits>
#include <span>
#include <utility>

#include "db/layout.h"
#include "format/orbax/json.h"

namespace stepwell::db {
namespace {

using format::orbax::Json;
using format::orbax::JsonNode;

constexpr size_t kFileBytesMax = size_t{1} << 20;

Json OptionsJson(const ExportOptions& options) {
  Json json;
  json["layout"] = static_cast<int>(options.layout);
  json["leaves"] = static_cast<int>(options.leaves);
  json["on_unsupported"] = static_cast<int>(options.on_unsupported);
  json["zarr"] = options.zarr_format;
  json["items"] = options.items;
  json["step_prefix"] = options.step_prefix;
  json["step_digits"] = options.step_digits;
  json["unnamed_default"] = options.unnamed_default;
  json["file_mode"] = options.file_mode;
  return json;
}

std::string Text(const Json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
}

Result<std::string> StringAt(const JsonNode& object, std::string_view name) {
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode node, object.Member(name));
  if (!node.value().is_string()) return node.Error("is not text");
  return node.value().get<std::string>();
}

Result<int> NumberAt(const JsonNode& object, std::string_view name, int max) {
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode node, object.Member(name));
  const bool known = node.value().is_number_integer() && node.value().get<int64_t>() >= 0 &&
                     node.value().get<int64_t>() <= max;
  if (!known) return node.Error("is out of range");
  return node.value().get<int>();
}

Result<std::vector<std::string>> StringsAt(const JsonNode& object, std::string_view name) {
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode node, object.Member(name));
  if (!node.value().is_array()) return node.Error("is not a list");
  std::vector<std::string> texts;
  for (const Json& each : node.value()) {
    if (!each.is_string()) return node.Error("has what is not text");
    texts.push_back(each.get<std::string>());
  }
  return texts;
}

Result<RememberedView> ViewOf(const JsonNode& node) {
  constexpr int kAnyMode = 0777;
  RememberedView view;
  STEPWELL_ASSIGN_OR_RETURN(view.path, StringAt(node, "path"));
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode options, node.Member("options"));
  ExportOptions& out = view.checkpoint;
  STEPWELL_ASSIGN_OR_RETURN(const int layout, NumberAt(options, "layout", 1));
  STEPWELL_ASSIGN_OR_RETURN(const int leaves, NumberAt(options, "leaves", 1));
  STEPWELL_ASSIGN_OR_RETURN(const int unsupported, NumberAt(options, "on_unsupported", 2));
  out.layout = static_cast<ExportLayout>(layout);
  out.leaves = static_cast<ExportLeaves>(leaves);
  out.on_unsupported = static_cast<OnUnsupported>(unsupported);
  STEPWELL_ASSIGN_OR_RETURN(out.zarr_format, NumberAt(options, "zarr", 3));
  STEPWELL_ASSIGN_OR_RETURN(out.items, StringsAt(options, "items"));
  STEPWELL_ASSIGN_OR_RETURN(out.step_prefix, StringAt(options, "step_prefix"));
  STEPWELL_ASSIGN_OR_RETURN(out.step_digits, NumberAt(options, "step_digits", 1000));
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode unnamed, options.Member("unnamed_default"));
  out.unnamed_default = unnamed.value() == Json(true);
  STEPWELL_ASSIGN_OR_RETURN(const int mode, NumberAt(options, "file_mode", kAnyMode));
  out.file_mode = static_cast<uint32_t>(mode);
  return view;
}

}  // namespace

Result<std::string> CanonicalPath(const std::string& path) {
  std::error_code error;
  auto canonical = std::filesystem::weakly_canonical(WithoutTrailingSlashes(path), error);
  if (error) return ErrnoStatus(error.value(), path);
  return canonical.string();
}

std::string ViewOptionsText(const ExportOptions& options) { return Text(OptionsJson(options)); }

Result<std::vector<RememberedView>> ReadViews(io::FileSystem* file_system,
                                              const std::string& store_path) {
  std::vector<RememberedView> views;
  const std::string path = ViewsFilePath(store_path);
  const auto file = file_system->Open(path, {});
  if (file.status().code() == StatusCode::kNotFound) return views;
  STEPWELL_RETURN_IF_ERROR(file.status());
  std::string text(kFileBytesMax, '\0');
  STEPWELL_ASSIGN_OR_RETURN(const size_t size,
                            (*file)->ReadAt(0, std::as_writable_bytes(std::span(text))));
  text.resize(size);
  STEPWELL_ASSIGN_OR_RETURN(
      const Json json, format::orbax::ParseJson(path, text, format::orbax::JsonDialect::kStrict));
  const JsonNode root(path, json);
  STEPWELL_ASSIGN_OR_RETURN(const std::string of, StringAt(root, "store"));
  STEPWELL_ASSIGN_OR_RETURN(const std::string here, CanonicalPath(store_path));
  if (of != here) return views;
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode list, root.Member("views"));
  if (!list.value().is_array()) return list.Error("is not a list");
  for (const Json& each : list.value()) {
    const JsonNode node(path, each);
    STEPWELL_ASSIGN_OR_RETURN(RememberedView view, ViewOf(node));
    views.push_back(std::move(view));
  }
  return views;
}

Status WriteViews(io::FileSystem* file_system, const std::string& store_path,
                  const std::vector<RememberedView>& views) {
  STEPWELL_ASSIGN_OR_RETURN(const std::string here, CanonicalPath(store_path));
  Json json;
  json["store"] = here;
  json["views"] = Json::array();
  for (const RememberedView& view : views) {
    if (!format::orbax::IsUtf8(view.path)) {
      return InvalidArgumentError("its path is not UTF-8");
    }
    json["views"].push_back({{"path", view.path}, {"options", OptionsJson(view.checkpoint)}});
  }
  const std::string text = Text(json) + "\n";
  const std::string path = ViewsFilePath(store_path);
  const std::string fresh = path + ".new";
  {
    STEPWELL_ASSIGN_OR_RETURN(
        const auto file,
        file_system->Open(fresh, {.write = true, .create = true, .truncate = true}));
    STEPWELL_RETURN_IF_ERROR(file->WriteAt(0, AsBytes(text)));
    STEPWELL_RETURN_IF_ERROR(file->Sync());
  }
  STEPWELL_RETURN_IF_ERROR(file_system->Rename(fresh, path));
  return file_system->SyncDirectory(store_path);
}

}  // namespace stepwell::db
