// SPDX-License-Identifier: Apache-2.0
// Gives an export its chunks: by links of segments, or by clones or copies of ranges of them.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "db/export/orbax/folder.h"
#include "db/export/orbax/plan.h"

namespace stepwell::db {

// Bytes of a segment and where they go in the export's data files.
struct ByteRun {
  uint64_t segment = 0;
  uint64_t from = 0;
  uint64_t length = 0;
  uint64_t to = 0;    // in its data file
  size_t file = 0;    // which of those
  uint32_t part = 0;  // whose segment it is, in a step of many processes

  bool operator==(const ByteRun&) const = default;
};

// A segment, and whose it is in a step of many processes.
struct PartSegment {
  uint32_t part = 0;
  uint64_t segment = 0;

  auto operator<=>(const PartSegment&) const = default;  // NOLINT(modernize-use-nullptr)
};

// Runs that cover all chunks of `arrays`, each once, in the parts' and segments' order, packed.
// With `granule_bytes` > 1 every run begins and ends on multiples of it: file systems clone whole
// blocks. A new data file begins where one would exceed `file_bytes_max`, between chunks. `only`:
// chunks of these segments.
std::vector<ByteRun> PlanRuns(const std::vector<ExportArray>& arrays, uint64_t granule_bytes,
                              uint64_t file_bytes_max = UINT64_MAX,
                              const std::set<PartSegment>* only = nullptr);
// Gives every part a data file of its own; gives the parts, by file. For runs that are one file.
std::vector<uint32_t> SplitByPart(std::vector<ByteRun>* runs);
// Returns the end of the runs together, in bytes.
uint64_t RunsEnd(const std::vector<ByteRun>& runs);
// Returns the name of data file `file`: `name` if there is one file, else `name` with a number.
std::string DataFileName(std::string_view name, const std::vector<ByteRun>& runs, size_t file);

// Maps chunks to their places, relative to an item's directory.
class ChunkPlaces {
 public:
  // Whole segments: the file of each; and the data files of `runs`, of other segments.
  static ChunkPlaces Linked(const std::set<PartSegment>& segments, std::vector<ByteRun> runs = {});
  // One file of all runs, or several.
  static ChunkPlaces Packed(std::string_view file, std::vector<ByteRun> runs);
  static ChunkPlaces Packed(std::vector<std::string> files, std::vector<ByteRun> runs);

  // Chunks of segment 0 (RewriteItem) are in this file.
  void AddRewritten(std::string file);

  struct Place {
    size_t file = 0;  // of files()
    uint64_t offset_bytes = 0;
  };
  const std::vector<std::string>& files() const { return files_; }
  // kInternal for a chunk that was not among those that this was made for.
  Result<Place> Find(uint32_t part, const format::StoredPayload& payload) const;

 private:
  std::vector<std::string> files_;
  std::map<PartSegment, size_t> by_segment_;  // linked
  std::vector<ByteRun> runs_;                 // packed; by (part, segment, from)
};

// File systems clone whole blocks of their own: at most so large, in practice.
inline constexpr uint64_t kCloneGranuleBytes = 4096;
inline constexpr std::string_view kExportDataFile = "d/chunks";
inline constexpr std::string_view kExportRewrittenFile = "d/rewritten";
// "d/segment-0000000012", of another part than 0 "d/segment-0000000012-part-3".
std::string LinkedName(PartSegment segment);

// The segments that hold chunks of the item.
std::set<PartSegment> SegmentsOf(const ExportItem& item);

// Fills an empty file with clones or copies of `runs`, which are all of it. `path_of`: of a
// segment. `advance` is told of bytes that are there; its error ends it.
Status FillFromRuns(io::FileSystem* file_system,
                    const std::function<std::string(PartSegment)>& path_of,
                    std::span<const ByteRun> runs, bool clone,
                    const std::function<Status(uint64_t)>& advance, io::File* file);
// Returns true if another way may give the bytes that could not be linked or cloned.
bool MayTryNext(const Status& status);
// Why something that was to be cloned alone failed.
Status CannotClone(const Status& status);

struct PlacedBytes {
  ExportMode mode = ExportMode::kAuto;
  std::vector<ChunkPlaces> items;  // in the order of the plan's items
  uint64_t linked_bytes = 0;       // sizes of the links
  uint64_t cloned_bytes = 0;
};

// Chooses how the steps of a view get their bytes, whatever ExportOptions::mode says: by clones,
// where the file system has them; else by links of those segments of which a step has much, and
// copies of what it has in others (DESIGN.md, "The view").
struct ViewPlacing {
  // Less of a step in a segment than this is copied: sealing and linking the segment costs more,
  // and ties the step to its neighbours.
  uint64_t link_bytes_min = 0;
  bool may_clone = true;  // false once the file system refused
  // The file system that makes the links, and the store's path there. Null: the store's own file
  // system.
  io::FileSystem* links = nullptr;
  std::string store_path;
};

// Makes the data files in the items' directories (which have a "d"), in the way that is asked for
// or in the first that works. On failure what was made stays, for the folder's destructor.
// `view`: null for an export.
Result<PlacedBytes> PlaceBytes(StoreReader& store, const ExportPlan& plan,
                               const ExportOptions& options, const ViewPlacing* view,
                               ExportFolder* folder);

}  // namespace stepwell::db
