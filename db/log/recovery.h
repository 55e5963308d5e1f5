// SPDX-License-Identifier: Apache-2.0
// Recovers the log's contents: the newest valid catalog and the chain of frames after it. Reads
// (and syncs) only. The writer seals, renumbers and reclaims afterwards (DESIGN.md, "Recovery").
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "db/log/segment_scan.h"
#include "db/store.h"
#include "format/frame.h"
#include "format/records.h"
#include "io/disk.h"

namespace stepwell::db {

// The part of a catalog in the log that is kept in memory (DESIGN.md, "Catalogs"). Each segment
// begins with one: a base, which names everything that is live, or what changed since an earlier
// catalog, its `previous`. From the newest one back to its base they are a lineage.
struct CatalogNote {
  format::FramePlace place;    // of its root, the frame behind the segment's header
  uint64_t last_commit = 0;    // that it covers
  uint64_t first_segment = 0;  // of the base of its lineage
  uint64_t end_bytes = 0;      // of root and pages, in its segment
  uint64_t bytes = 0;          // of root and pages
  uint64_t clock = 0;          // the newest change that it covers (CatalogWriter)

  bool is_base() const { return first_segment == place.segment; }
};

// A chunk whose bytes could not be read or were wrong.
struct BadChunk {
  const format::LeafRecord* leaf = nullptr;
  uint64_t chunk_index = 0;
  const format::StoredPayload* payload = nullptr;  // null: the leaf's record itself is damaged
  Status status;                                   // kDataLoss with file and offset
};

// A committed step that is not dead. Recovery gives record and place; the rest is known while the
// store is open for writing.
struct LiveStep {
  format::StepRecord record;      // without metadata and metrics
  format::FramePlace place = {};  // of its commit frame
  int64_t age_time_ns = 0;        // on the clock of retention, of which only differences count
  std::string metrics_json =
      {};  // only for steps saved in this session, and where retention needs it
  bool metrics_unknown = false;  // it asked, and they could not be read
  bool is_old = false;           // committed before this session
  uint64_t first_commit = 0;     // of this session, which the step had before it was rewritten
};

// A commit that some later frame killed; its space is taken back when no reader can be reading it.
// A reader that sees the store as of commit p sees it when commit <= p < killer.
struct DeadCommit {
  uint64_t commit = 0;
  uint64_t killer = 0;  // commit number of the frame that killed it
  std::vector<format::SegmentExtent> extents;
  format::FramePlace place;  // of its commit frame
};

// A step, and what a meta frame says of its commit.
struct StepMeta {
  uint64_t step = 0;
  format::MetaChange change;
};

// The place of a chain frame.
struct ChainPlace {
  uint64_t commit = 0;
  uint64_t segment = 0;
  auto operator<=>(const ChainPlace&) const = default;
};

struct LogState {
  std::map<uint64_t, LiveStep> live;       // by step
  std::map<uint64_t, LiveStep> undecided;  // prepared steps, by commit number
  std::vector<DeadCommit> dead;
  uint64_t epoch = 0;      // of the newest accepted frame
  uint64_t epoch_max = 0;  // the highest seen, accepted or not
  uint64_t tip_commit = 0;
  format::FramePlace tip_place;
  format::FramePlace catalog_place;   // of the catalog that was the base; length 0: none
  uint64_t catalog_commit = 0;        // its last commit
  std::vector<CatalogNote> catalogs;  // its lineage, base first, itself last
  std::map<uint64_t, format::SegmentEntry> catalog_segments;  // that it names
  std::unordered_map<uint64_t, uint64_t> step_of;             // of live commits
  // Commits that began, changed or ended behind that catalog, with their steps.
  std::map<uint64_t, uint64_t> changed;
  // Ascending. After RecoverByMarks: those of the catalog (newer ones may exist).
  std::vector<SegmentInfo> segments;
  std::vector<ChainPlace> chain;  // of the frames after the catalog
  // Every chain frame found in unsealed segments: what their footers will list.
  std::map<uint64_t, std::vector<format::FooterEntry>> scanned;
  // Chain frames that are gone, not accepted yet. What is live since before one of them may have
  // been replaced, deleted or pinned by it.
  std::vector<format::LossRecord> losses;
  // Live steps whose commit frame is damaged: it was taken from its copy.
  std::vector<uint64_t> damaged_frames;
  // Segments without a header that only steps need that were in doubt: a power cut may have kept it
  // from the disk while the payloads arrived.
  std::set<uint64_t> torn_headers;
  RecoveryReport report;
};

// A commit that lives from here on, decided or not, or is known in another way than before.
void AddLive(LiveStep step, LogState* state);
// Takes it out; none: it was not live.
std::optional<LiveStep> RemoveLive(uint64_t commit, LogState* state);
// The loss that may have ended the step of this commit, or changed it; null: none.
const format::LossRecord* LossAfter(const std::vector<format::LossRecord>& losses, uint64_t commit);
// kDataLoss: what the loss means for a step, and what to do.
Status LossError(const std::string& store_path, uint64_t step, const format::LossRecord& loss);
// The same, instead of their texts, for all of these steps that a loss concerns.
void MarkLosses(const std::string& store_path, const std::vector<format::LossRecord>& losses,
                std::vector<StepTexts>* texts);
// kDataLoss instead of "not found" while it is not known what was lost: the step may be.
Status MissingStep(const Status& not_found, const std::vector<format::LossRecord>& losses);
std::string DescribeLoss(const format::LossRecord& loss);
// Returns the error that Store::Newest gives then; OK without a loss.
Status NewestMayBeLost(const std::string& store_path,
                       const std::vector<format::LossRecord>& losses);
// Adds the losses to the report of Verify.
void AddLosses(const std::vector<format::LossRecord>& losses, VerifyReport* report);

// Starts the state from the catalog at `place` and those that it follows, base first; each page is
// read once. On an error the state stays as it was: kDataLoss or kNotFound where something of the
// lineage is damaged or gone, anything else where it could not be read.
Status LoadCatalog(const format::FramePlace& place, SegmentFiles& files, LogState* state);

// Applies one chain frame to the state (kills, additions, tip).
Status ApplyChainFrame(const format::FrameHeader& header, const format::FramePlace& place,
                       const std::string& payload, LogState* state);

// A slot made from the segments' headers, where STEPWELL is lost: identity without any mark, so
// that the log is scanned. kNotFound: no segment says what store it is of.
Result<format::StoreSlot> SlotFromLog(io::FileSystem* file_system, const std::string& store_path);

// Returns true if the log of a cleanly closed store ends where the slot says. If not, the STEPWELL
// file is not the newest one (a lost write, a half-restored backup), and is not believed.
Result<bool> LogEndsAt(const format::StoreSlot& slot, io::FileSystem* file_system,
                       const std::string& store_path, SegmentFiles& files);

// From the slot's marks alone: its catalog and the chain back from its durable frame. For stores
// that were closed cleanly, and for readers beside a live writer. Starts from `known` (the result
// of an earlier call; may be null) where the chain reaches it, and takes what it has: a look costs
// what is new, not what is live.
Result<LogState> RecoverByMarks(const format::StoreSlot& slot, SegmentFiles& files,
                                LogState* known);

struct ScanOptions {
  // For a writer, what cannot be told whole from torn is an error: nothing may be concluded from
  // it. A reader leaves such steps out, and those behind them.
  bool writer = true;
  // Checks the payloads of one in-doubt step, naming each that is bad. Damage (IsDamage) proves
  // that it and all later ones are torn; other errors prove nothing.
  std::function<Status(const std::vector<format::LeafRecord>&,
                       const std::function<void(const BadChunk&)>& bad)>
      check_payloads;
  // In-doubt steps that count as torn if they cannot be checked: the user gives them up.
  std::set<uint64_t> discard;
};
// From the segments themselves: for stores whose last writer did not close them. It fdatasyncs the
// unsealed segments first, so that what is then read back is on the device.
Result<LogState> RecoverByScan(io::FileSystem* file_system, const std::string& store_path,
                               const format::StoreSlot& slot, SegmentFiles& files,
                               const ScanOptions& options);

// A step's leaf records below a key prefix, from its commit frame and record blocks, continuation
// records joined; checks that counts agree. kDataLoss names file and offset.
Result<std::vector<format::LeafRecord>> ReadStepRecords(SegmentFiles& files,
                                                        const format::FramePlace& commit_place,
                                                        std::string_view key_prefix,
                                                        format::StepRecord* step = nullptr);

}  // namespace stepwell::db
