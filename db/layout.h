// SPDX-License-Identifier: Apache-2.0
// Names within a store directory (FORMAT.md, "Directory layout").
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/disk.h"

namespace stepwell::db {

// "/a/b" for "/a/b//"; "/" stays.
std::string WithoutTrailingSlashes(std::string path);
// Returns true for a symbolic link of the machine. False for a path that cannot be looked at.
bool IsLink(const std::string& path);
// The directory that holds `path`: "." and "/" where it has no other. Slashes at the end are
// nothing.
std::string ParentOf(const std::string& path);

inline std::string SlotFilePath(const std::string& store) { return store + "/STEPWELL"; }
inline std::string LockFilePath(const std::string& store) { return store + "/LOCK"; }
inline std::string ReclaimFilePath(const std::string& store) { return store + "/RECLAIM"; }
inline std::string BallastFilePath(const std::string& store) { return store + "/BALLAST"; }
inline std::string RetentionFilePath(const std::string& store) { return store + "/RETENTION"; }
inline std::string ViewsFilePath(const std::string& store) { return store + "/VIEWS"; }
// The name of a store in the directory of its view (ViewOptions::beside).
inline constexpr std::string_view kStoreBesideName = ".stepwell";
// Returns true if a store beside a view may have this name: ".stepwell", ".stepwell-…".
bool IsStoreBesideName(std::string_view name);
// The names of the stores beside views in a directory, ascending; none where it cannot be listed.
std::vector<std::string> StoresIn(io::FileSystem* file_system, const std::string& directory);
// The paths of the stores in a directory, ascending; without any, of those in the directories in
// it, as in a single checkpoint. A directory that is a symbolic link is passed over.
std::vector<std::string> StoresWithin(io::FileSystem* file_system, const std::string& directory);

inline std::string ReadersPath(const std::string& store) { return store + "/readers"; }
inline std::string SegmentsPath(const std::string& store) { return store + "/segments"; }
inline std::string IndexPath(const std::string& store) { return store + "/index"; }

// Tells a directory from every other one for as long as it lives, also when it is moved.
std::string DirectoryText(const io::FileInfo& directory);

// Segments, readers, index; those that are there stay.
Status MakeStoreDirectories(io::FileSystem* file_system, const std::string& store);

// "segments/0000000001.spare": a dead segment that waits to be used again; the number is
// the last one it had.
std::string SparePath(const std::string& store, uint64_t segment);
bool IsSpareName(std::string_view name);

// "segments/0000000001.seg" below the store.
std::string SegmentPath(const std::string& store, uint64_t segment);
// The id in "0000000001.seg"; none for other names.
std::optional<uint64_t> ParseSegmentName(std::string_view name);

}  // namespace stepwell::db
