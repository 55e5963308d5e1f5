// SPDX-License-Identifier: Apache-2.0
#include "db/view/options.h"

#include <filesystem>
#include <utility>

#include "db/layout.h"
#include "db/view/mark.h"
#include "format/orbax/json.h"
#include "io/small_file.h"

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
  json["step_prefix_verbatim"] = options.step_prefix_verbatim;
  json["step_digits"] = options.step_digits;
  json["unnamed_default"] = options.unnamed_default;
  json["file_mode"] = options.file_mode;
  return json;
}

std::string Text(const Json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
}

Result<std::string> TextAt(const JsonNode& object, std::string_view name) {
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode node, object.Member(name));
  STEPWELL_ASSIGN_OR_RETURN(const std::string_view text, node.Text());
  return std::string(text);
}

Result<int> NumberAt(const JsonNode& object, std::string_view name, uint64_t max) {
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode node, object.Member(name));
  STEPWELL_ASSIGN_OR_RETURN(const uint64_t number, node.Unsigned(max));
  return static_cast<int>(number);
}

Result<std::vector<std::string>> TextsAt(const JsonNode& object, std::string_view name) {
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode node, object.Member(name));
  STEPWELL_RETURN_IF_ERROR(node.CheckArray(kFileBytesMax));
  std::vector<std::string> texts;
  for (size_t i = 0; i < node.value().size(); ++i) {
    STEPWELL_ASSIGN_OR_RETURN(const std::string_view text, node.At(i).Text());
    texts.emplace_back(text);
  }
  return texts;
}

Result<RememberedView> ViewOf(const JsonNode& node) {
  constexpr int kAnyMode = 0777;
  RememberedView view;
  STEPWELL_ASSIGN_OR_RETURN(view.path, TextAt(node, "path"));
  if (const auto beside = node.Find("beside")) {  // old files do not say it
    STEPWELL_ASSIGN_OR_RETURN(view.beside, beside->Bool());
  }
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode options, node.Member("options"));
  ExportOptions& out = view.checkpoint;
  STEPWELL_ASSIGN_OR_RETURN(const int layout, NumberAt(options, "layout", 1));
  STEPWELL_ASSIGN_OR_RETURN(const int leaves, NumberAt(options, "leaves", 1));
  STEPWELL_ASSIGN_OR_RETURN(const int unsupported, NumberAt(options, "on_unsupported", 2));
  out.layout = static_cast<ExportLayout>(layout);
  out.leaves = static_cast<ExportLeaves>(leaves);
  out.on_unsupported = static_cast<OnUnsupported>(unsupported);
  STEPWELL_ASSIGN_OR_RETURN(out.zarr_format, NumberAt(options, "zarr", 3));
  STEPWELL_ASSIGN_OR_RETURN(out.items, TextsAt(options, "items"));
  STEPWELL_ASSIGN_OR_RETURN(out.step_prefix, TextAt(options, "step_prefix"));
  if (const auto verbatim = options.Find("step_prefix_verbatim")) {  // nor that
    STEPWELL_ASSIGN_OR_RETURN(out.step_prefix_verbatim, verbatim->Bool());
  }
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

Result<RememberedViews> ReadViews(io::FileSystem* file_system, const std::string& store_path) {
  RememberedViews remembered;
  const std::string path = ViewsFilePath(store_path);
  STEPWELL_ASSIGN_OR_RETURN(const auto text, io::ReadIfThere(file_system, path, kFileBytesMax));
  if (!text) return remembered;
  STEPWELL_ASSIGN_OR_RETURN(
      const Json json, format::orbax::ParseJson(path, *text, format::orbax::JsonDialect::kStrict));
  const JsonNode root(path, json);
  STEPWELL_ASSIGN_OR_RETURN(const std::string of, TextAt(root, "store"));
  STEPWELL_ASSIGN_OR_RETURN(const std::string here, CanonicalPath(store_path));
  if (root.Find("where")) {
    STEPWELL_ASSIGN_OR_RETURN(remembered.where, TextAt(root, "where"));
  }
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode list, root.Member("views"));
  STEPWELL_RETURN_IF_ERROR(list.CheckArray(kFileBytesMax));
  for (size_t i = 0; i < list.value().size(); ++i) {
    const JsonNode node = list.At(i);
    STEPWELL_ASSIGN_OR_RETURN(RememberedView view, ViewOf(node));
    if (view.beside) {
      view.path = ParentOf(here);
      if (!IsStoreBesideName(std::string_view(here).substr(here.rfind('/') + 1))) continue;
    } else if (of != here) {
      continue;
    }
    remembered.views.push_back(std::move(view));
  }
  return remembered;
}

Status WriteViews(io::FileSystem* file_system, const std::string& store_path,
                  const std::vector<RememberedView>& views) {
  STEPWELL_ASSIGN_OR_RETURN(const std::string here, CanonicalPath(store_path));
  Json json;
  STEPWELL_ASSIGN_OR_RETURN(const io::FileInfo directory, file_system->Stat(store_path));
  json["store"] = here;
  json["where"] = WhereBeside(directory);
  json["views"] = Json::array();
  for (const RememberedView& view : views) {
    if (!format::orbax::IsUtf8(view.path)) {
      return InvalidArgumentError("its path is not UTF-8");
    }
    json["views"].push_back({{"path", view.beside ? ".." : view.path},
                             {"beside", view.beside},
                             {"options", OptionsJson(view.checkpoint)}});
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
