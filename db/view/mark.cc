// SPDX-License-Identifier: Apache-2.0
#include "db/view/mark.h"

#include <cstdio>
#include <utility>

#include "db/export/orbax/numbers.h"
#include "db/layout.h"
#include "io/small_file.h"

namespace stepwell::db {
namespace {

constexpr std::string_view kFirstLine = "stepwell view step 2\n";
constexpr std::string_view kOldFirstLine = "stepwell view step\n";
constexpr uint64_t kStepMarkBytesMax = 64 << 10;

// Returns the text between "\n<name> " and the next line, or the line that begins with `end`.
std::string ValueOf(std::string_view text, std::string_view name, std::string_view end = "") {
  const std::string before = StrCat("\n", name, " ");
  const size_t at = text.find(before);
  if (at == std::string_view::npos) return "";
  const size_t from = at + before.size();
  return std::string(text.substr(from, text.find(StrCat("\n", end), from) - from));
}

}  // namespace

std::string IdText(const format::Id128& id) {
  std::string text;
  for (const uint8_t byte : id) {
    char hex[3];
    std::snprintf(hex, sizeof(hex), "%02x", byte);
    text += hex;
  }
  return text;
}

std::string WhereBeside(const io::FileInfo& store_directory) {
  return StrCat("beside ", DirectoryText(store_directory));
}

std::string EncodeMark(const ViewMark& mark) {
  return StrCat(kFirstLine, "step ", mark.step, "\nname ", mark.name, "\ncommit ", mark.commit,
                mark.shares.empty() ? "" : "\nshares", mark.shares, "\ntime ", mark.time_ns,
                "\nstore-id ", mark.store_id, "\nstore ", mark.where,
                mark.beside.empty() ? "" : "\nstore-directory ", mark.beside, "\nboot ", mark.boot,
                "\noptions ", mark.options, "\ndirectory ", mark.directory, "\n");
}

std::optional<ViewMark> DecodeMark(std::string_view text) {
  const bool is_old = text.starts_with(kOldFirstLine);
  if ((!is_old && !text.starts_with(kFirstLine)) || !text.ends_with('\n')) return std::nullopt;
  ViewMark mark;
  mark.name = ValueOf(text, "name", "commit ");
  mark.shares = ValueOf(text, "shares");
  if (!mark.shares.empty()) mark.shares.insert(0, " ");
  mark.store_id = ValueOf(text, "store-id");
  mark.where = ValueOf(text, "store", is_old ? "boot " : "");
  mark.beside = ValueOf(text, "store-directory");
  mark.boot = ValueOf(text, "boot");
  mark.options = ValueOf(text, "options");
  mark.directory = ValueOf(text, "directory");
  if (!ParseInteger(ValueOf(text, "step"), &mark.step) ||
      !ParseInteger(ValueOf(text, "commit"), &mark.commit) ||
      !ParseInteger(ValueOf(text, "time"), &mark.time_ns) || mark.name.empty() ||
      mark.store_id.empty() || (!is_old && mark.directory.empty())) {
    return std::nullopt;
  }
  return mark;
}

std::string IdentityOf(ViewMark mark) {
  mark.directory.clear();
  return EncodeMark(mark);
}

Result<std::string> ReadMark(io::FileSystem* file_system, const std::string& path) {
  return io::ReadSmallFile(file_system, StrCat(path, "/", kViewStepName), kStepMarkBytesMax);
}

bool IsMadeBeside(const ViewMark& mark, std::string_view name, const io::FileInfo& directory,
                  const ViewHome& home) {
  if (mark.store_id != home.store_id || mark.name != name) return false;
  if (mark.directory.empty()) return mark.where.starts_with("beside ");  // of an older version
  if (mark.where == home.where) return mark.directory == DirectoryText(directory);
  return !home.before.empty() && mark.where == home.before;
}

}  // namespace stepwell::db
