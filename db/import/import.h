// SPDX-License-Identifier: Apache-2.0
// Orbax checkpoints, of v0 and v1, as saves (DESIGN.md, "Import"). What is read is checked as far
// as its format allows, and nothing of it is trusted; nothing is ever written there.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <stepwell/import.h>

#include "db/export/orbax/digests.h"
#include "db/store.h"
#include "io/disk.h"

namespace stepwell::db {

using stepwell::ImportOptions;
using stepwell::OrbaxStep;

// The finished steps below `root`, ascending: directories whose names end in the step's number
// ("7", "00000007", "ckpt_7") and that hold a checkpoint. None when `root` is not such a root.
// kInvalidArgument: two of them have one number.
Result<std::vector<OrbaxStep>> FindOrbaxSteps(io::FileSystem* file_system, const std::string& root);

// The number at the end of a directory's name; none when there is none.
std::optional<uint64_t> StepOfName(std::string_view path);

struct OrbaxItem {
  enum class Kind : uint8_t {
    kTree,     // a pytree
    kArray,    // v0's ArraySave: one array
    kJson,     // JSON: becomes a tree of Python values
    kMetrics,  // becomes the step's metrics
    kFiles,    // anything else: kept as the files that it has
    kTorn,     // one of the above without the file that names it: an error when asked for
  };
  std::string name;    // as the checkpoint has it
  std::string target;  // the item's name in the save
  Kind kind = Kind::kFiles;
  std::string path;  // the item's directory
  std::string json_file;
  std::string handler;       // that the checkpoint names for it; "": none
  bool has_records = false;  // a tree of our own exports: kRecordsName is in it, with a digest
  bool has_values = false;   // kValuesName, too
};

// The names that Orbax gives an item without a name, in v0 and v1.
inline constexpr std::array<std::string_view, 2> kUnnamedItems = {"default", "pytree"};
inline constexpr std::string_view kPlainItem = "state";

// Describes one checkpoint, without its arrays. The files must not change while it is read.
class OrbaxCheckpoint {
 public:
  // `path` is a step's directory, one that is step and item at once ("flat"), or an item's.
  // kNotFound; kInvalidArgument: no checkpoint, the root of several, or one whose save was not
  // finished.
  static Result<OrbaxCheckpoint> Open(io::FileSystem* file_system, const std::string& path);

  const std::string& path() const { return path_; }
  std::optional<uint64_t> step() const { return step_; }  // by the directory's name, or its digests
  const std::vector<OrbaxItem>& items() const { return items_; }
  // Objects of JSON, "" when there is none: of _CHECKPOINT_METADATA, and of the root.
  const std::string& custom_metadata() const { return custom_metadata_; }
  const std::string& root_metadata() const { return root_metadata_; }
  const std::string& metrics() const { return metrics_; }
  // The step's directory: that of an item's checkpoint, too.
  const std::string& folder() const { return folder_; }
  // Returns the digests that our exports carry; null for other checkpoints. They are read once.
  Result<std::shared_ptr<const ExportDigests>> Digests();
  io::FileSystem* file_system() const { return file_system_; }
  // `status`; or kUnavailable where another directory has taken the place of this one since it was
  // opened: what was read is of both.
  Status CheckUnchanged(Status status) const;

 private:
  OrbaxCheckpoint(io::FileSystem* file_system, std::string path)
      : file_system_(file_system), path_(std::move(path)) {}
  Status Load();
  Status AddItem(const std::string& name, const std::string& folder);
  Result<OrbaxItem::Kind> KindOf(const std::string& name, OrbaxItem* item) const;
  Result<bool> IsExportedAsFiles(const OrbaxItem& item);
  Result<bool> HasDigested(const OrbaxItem& item, std::string_view name);
  Status ReadCheckpointMetadata(const std::string& folder);
  Status ReadRootMetadata();
  Status NotACheckpoint();

  io::FileSystem* file_system_;
  std::string path_;
  std::string folder_;
  std::string identity_;  // DirectoryText of `path_`
  std::optional<uint64_t> step_;
  std::vector<OrbaxItem> items_;
  std::map<std::string, std::string> handlers_;  // of items, by name
  std::string custom_metadata_;
  std::string root_metadata_;
  std::string metrics_;
  std::optional<std::shared_ptr<const ExportDigests>> digests_;
};

// One of several processes that import a checkpoint together. Each reads and saves a part of it.
struct ImportShare {
  uint32_t index = 0;
  uint32_t count = 1;
};

// A checkpoint (or some items of it) that is to be imported, known but for the elements of its
// arrays. Errors name item, leaf and file. kDataLoss: what is missing, cut off or does not decode;
// kUnimplemented: what is not read here; kNotFound: an item.
class ImportPlan {
 public:
  static Result<ImportPlan> Make(const OrbaxCheckpoint& checkpoint, const ImportOptions& options);

  // Bytes that are the same on all processes that see the same checkpoint, and plan the same.
  Result<std::string> Identity() const;
  // Names of the items as they are saved.
  std::vector<std::string> ItemNames() const;
  // The share in memory, ready for Store::Save: arrays are held by LeafInput::hold. Of several
  // shares the first has the records of all leaves, and all that is not an array; leaves of which
  // others have something are partial. Once.
  Result<SaveRequest> Read(uint64_t step, const ImportShare& share, const ImportOptions& options);

 private:
  struct State;
  explicit ImportPlan(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

// All of it, by one process, as the options say.
Result<SaveRequest> ImportRequest(const OrbaxCheckpoint& checkpoint, uint64_t step,
                                  const ImportOptions& options);

// Reads the checkpoint at `path` a second time, from the disk where the kernel lets go of what it
// has cached, and compares it with the step that it became, whose checksums are verified. For one
// process. kDataLoss: what differs. Memory as for the import.
Status VerifyImport(StoreReader& store, uint64_t step, const std::string& path,
                    const ImportOptions& options, io::FileSystem* file_system);

}  // namespace stepwell::db
