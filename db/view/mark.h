// SPDX-License-Identifier: Apache-2.0
// The file `stepwell-view` in each step that a view shows: what it is of, and which directory it is
// in. One place decides whose a directory is (DESIGN.md, "The view").
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "format/records.h"
#include "io/disk.h"

namespace stepwell::db {

inline constexpr std::string_view kViewStepName = "stepwell-view";

struct ViewMark {
  uint64_t step = 0;
  std::string name;  // of the step's directory
  uint64_t commit = 0;
  std::string shares;  // of a step of several processes, the other parts' commits
  int64_t time_ns = 0;
  std::string store_id;  // as IdText
  std::string where;     // of the store: its path, or WhereBeside
  std::string beside;    // name of the store's directory, next to the step's; "": elsewhere
  std::string boot;
  std::string options;    // ViewOptionsText
  std::string directory;  // DirectoryText of the one that it was written in
};

std::string IdText(const format::Id128& id);
std::string WhereBeside(const io::FileInfo& store_directory);

std::string EncodeMark(const ViewMark& mark);
// None for what is no mark, or not all of one. Marks of older versions have no `directory`, nor
// `beside`.
std::optional<ViewMark> DecodeMark(std::string_view text);
// Identifies the step that a mark shows, wherever it lies. Two directories with equal identities
// are as good as each other.
std::string IdentityOf(ViewMark mark);

// Reads the mark of the step's directory `path`; kNotFound where there is none.
Result<std::string> ReadMark(io::FileSystem* file_system, const std::string& path);

// A store as its own marks name it.
struct ViewHome {
  std::string store_id;
  std::string where;
  // The `where` that the file of the store's views had last. It differs once the store was copied,
  // or moved to another file system. "": the same, or unknown.
  std::string before;
};
// Returns true if the view of the store beside made this very directory. A copy gives false under
// any name, and in any place but one: where the store was copied along.
bool IsMadeBeside(const ViewMark& mark, std::string_view name, const io::FileInfo& directory,
                  const ViewHome& home);

}  // namespace stepwell::db
