// SPDX-License-Identifier: Apache-2.0
#include "db/layout.h"

#include <sys/stat.h>

#include <algorithm>
#include <charconv>

namespace stepwell::db {
namespace {

constexpr size_t kDigitsMin = 10;
constexpr size_t kDigitsMax = 18;  // so that the next number never overflows
constexpr std::string_view kSuffix = ".seg";
constexpr std::string_view kSpareSuffix = ".spare";

std::string PathIn(const std::string& store, uint64_t segment, std::string_view suffix) {
  const std::string digits = std::to_string(segment);
  const size_t zeros = digits.size() < kDigitsMin ? kDigitsMin - digits.size() : 0;
  std::string path = SegmentsPath(store);
  path += '/';
  path.append(zeros, '0');
  path += digits;
  path += suffix;
  return path;
}

}  // namespace

std::string WithoutTrailingSlashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

bool IsLink(const std::string& path) {
  struct stat info {};
  return lstat(path.c_str(), &info) == 0 && S_ISLNK(info.st_mode);
}

std::string ParentOf(const std::string& path) {
  const std::string trimmed = WithoutTrailingSlashes(path);
  const size_t slash = trimmed.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : trimmed.substr(0, slash);
}

bool IsStoreBesideName(std::string_view name) {
  return name == kStoreBesideName || name.starts_with(StrCat(kStoreBesideName, "-"));
}

std::vector<std::string> StoresIn(io::FileSystem* file_system, const std::string& directory) {
  auto names = file_system->List(directory);
  if (!names.ok()) return {};
  std::erase_if(*names, [&](const std::string& name) {
    return !IsStoreBesideName(name) ||
           !file_system->Stat(SlotFilePath(StrCat(directory, "/", name))).ok();
  });
  std::sort(names->begin(), names->end());
  return *std::move(names);
}

std::vector<std::string> StoresWithin(io::FileSystem* file_system, const std::string& directory) {
  std::vector<std::string> found = StoresIn(file_system, directory);
  for (std::string& name : found) name = StrCat(directory, "/", name);
  if (!found.empty()) return found;
  const auto names = file_system->List(directory);
  if (!names.ok()) return {};
  for (const std::string& name : *names) {
    const std::string inner = StrCat(directory, "/", name);
    if (IsLink(inner)) continue;
    for (const std::string& each : StoresIn(file_system, inner)) {
      found.push_back(StrCat(inner, "/", each));
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::string DirectoryText(const io::FileInfo& directory) {
  return StrCat(directory.device, ":", directory.inode, ":", directory.born_ns);
}

Status MakeStoreDirectories(io::FileSystem* file_system, const std::string& store) {
  for (const std::string& directory : {SegmentsPath(store), ReadersPath(store), IndexPath(store)}) {
    const Status made = file_system->CreateDirectory(directory);
    if (!made.ok() && made.code() != StatusCode::kAlreadyExists) return made;
  }
  return OkStatus();
}

std::string SegmentPath(const std::string& store, uint64_t segment) {
  return PathIn(store, segment, kSuffix);
}

std::string SparePath(const std::string& store, uint64_t segment) {
  return PathIn(store, segment, kSpareSuffix);
}

bool IsSpareName(std::string_view name) { return name.ends_with(kSpareSuffix); }

std::optional<uint64_t> ParseSegmentName(std::string_view name) {
  if (name.size() < kDigitsMin + kSuffix.size() || !name.ends_with(kSuffix)) return std::nullopt;
  const std::string_view digits = name.substr(0, name.size() - kSuffix.size());
  if (digits.size() > kDigitsMax) return std::nullopt;
  // One spelling a number: zeros only fill up to the shortest length.
  if (digits.size() > kDigitsMin && digits.front() == '0') return std::nullopt;
  uint64_t segment = 0;
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, segment);
  if (error != std::errc() || stop != end) return std::nullopt;
  return segment;
}

}  // namespace stepwell::db
