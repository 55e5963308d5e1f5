// SPDX-License-Identifier: Apache-2.0
// The records of the log as plain structs, and their Cap'n Proto encodings (schema/record.capnp,
// schema/frame.capnp are normative for the fields).
//
// Encoders return complete single-segment messages; decoders accept any bytes and return kDataLoss
// on what they cannot take (limits: traversal bounded by the message's size, nesting 16).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <stepwell/statistics.h>

#include "format/codec.h"
#include "format/dtype.h"
#include "format/grid.h"
#include "io/bytes.h"
#include "io/result.h"

namespace stepwell::format {

using stepwell::ChangedCount;
using stepwell::LeafStatistics;

using Id128 = std::array<uint8_t, 16>;

// XXH3-128 (format/hash.h). Zero: not known.
struct Hash128 {
  uint64_t low = 0;
  uint64_t high = 0;

  bool known() const { return low != 0 || high != 0; }
  auto operator<=>(const Hash128&) const = default;
};

// A payload: its place, its check and its encoding.
struct StoredPayload {
  uint64_t segment = 0;
  uint64_t offset_bytes = 0;
  uint32_t stored_bytes = 0;  // with the CRC trailer
  uint32_t crc = 0;           // of the payload without its trailer
  CodecId codec = CodecId::kRaw;
  bool referenced = false;  // an earlier commit wrote it

  bool operator==(const StoredPayload&) const = default;
};

// A chunk: its payload, and those that this one is a difference to.
struct ChunkRecord : StoredPayload {
  uint32_t logical_bytes = 0;  // decoded
  // The part whose segments they are, in a step that is read through the stores of several
  // processes. Records on disk lack it, since each is of the store that it lies in.
  uint32_t part = 0;
  Hash128 hash;  // of the decoded bytes
  // Payloads of earlier commits, which are decoded before this one: a keyframe, whose codec needs
  // no base, then differences, each to the payload before it. A step that was moved may have
  // written them again.
  std::vector<StoredPayload> bases;

  // Returns the stored bytes of the payload and of its bases.
  uint64_t all_stored_bytes() const {
    uint64_t sum = stored_bytes;
    for (const StoredPayload& base : bases) sum += base.stored_bytes;
    return sum;
  }
  // All its payloads are an earlier commit's.
  void SetReferenced() {
    referenced = true;
    for (StoredPayload& base : bases) base.referenced = true;
  }
  bool operator==(const ChunkRecord&) const = default;
};
// Bounds the differences behind a keyframe.
inline constexpr size_t kBasesMax = 64;

// Calls `visit(payload)` for each payload that the chunk is decoded from.
template <typename Chunk, typename Visit>
void EachPayload(Chunk& chunk, Visit visit) {
  visit(chunk);
  for (auto& base : chunk.bases) visit(base);
}

// The kind of entry at a key-path.
enum class LeafKind : uint8_t { kArray = 1, kValue = 2, kNode = 3 };

// The Python (or other) type that a leaf had; the numbers are on disk.
enum class ValueType : uint8_t {
  kNone = 0,
  kNumpyArray = 1,
  kJaxArray = 2,
  kNumpyScalar = 3,  // np.float32(1): a 0-d array stored as an array
  kPrngKey = 4,      // typed JAX key: its key data as uint32 array, impl in `prng_impl`
  kInt = 5,          // value: decimal text, any size
  kFloat = 6,        // value: 8 bytes little-endian IEEE 754
  kBool = 7,         // value: one byte
  kStr = 8,          // value: UTF-8 (surrogates passed)
  kBytes = 9,
  kComplex = 10,  // value: two floats
};
enum class ContainerKind : uint8_t {
  kNotContainer = 0,
  kDict = 1,
  kList = 2,
  kTuple = 3,
  kNamedTuple = 4,
  kObject = 5,  // any other registered node; type_name says which
};

// A box of a leaf with a chunk grid of its own, which begins at `origin`.
struct PieceRecord {
  Shape origin;
  Shape shape;  // each extent >= 1
  Shape chunk_shape;
  uint64_t first_chunk = 0;  // index of its first chunk within the leaf's

  bool operator==(const PieceRecord&) const = default;
};

struct LeafRecord {
  std::string key;  // EncodeLeafKey: item and path
  LeafKind kind = LeafKind::kArray;
  ValueType value_type = ValueType::kNumpyArray;
  // kNode: what it is, its type's name, and how many children (0: an empty container).
  ContainerKind container = ContainerKind::kNotContainer;
  std::string type_name;
  uint64_t child_count = 0;
  // The type of the Flax NNX Variable that holds the value ("flax.nnx.variablelib.Param"); if
  // Variables are nested, all types, outermost first, with a space between. A Variable is not a
  // node of its own, but Orbax has a level "value" for each.
  std::string variable_types;
  // kArray; dtype also of numbers that were imported, for exports
  DType dtype = DType::kInvalid;
  Shape shape;
  Shape chunk_shape;
  bool weak_type = false;     // JAX's
  std::string prng_impl;      // e.g. "threefry2x32"
  std::string sharding_json;  // Orbax's spelling (NamedSharding, SingleDeviceSharding), or empty
  Shape shard_shape;  // of one shard (those at the end may be smaller); empty: there was but one
  // kValue: the bytes when short (kInlineValueBytesMax), else empty and chunks hold them.
  std::string inline_value;
  uint64_t logical_bytes = 0;
  // Chunks [first_chunk, first_chunk + chunks.size()) of chunk_count. A leaf whose chunks do not
  // fit one records frame goes on in the next with the same key and only chunks.
  uint64_t chunk_count = 0;
  uint64_t first_chunk = 0;
  std::vector<ChunkRecord> chunks;
  // kArray, in a part of a group: others have chunks of it, too. The chunks here are those of
  // `pieces`, in their order; there may be none. Only a leaf's first record says so.
  bool partial = false;
  std::vector<PieceRecord> pieces;
  // kArray: of the elements whose chunks are here; none: not taken. Only a leaf's first record has
  // it.
  std::optional<LeafStatistics> statistics;

  // Returns the codec of all chunks; none where they differ. Without chunks it is kRaw.
  std::optional<CodecId> codec() const;
  bool operator==(const LeafRecord&) const = default;
};
inline constexpr size_t kInlineValueBytesMax = 1024;

// Returns "item/path", for messages.
std::string LeafName(const LeafRecord& leaf);

// kFiles: a directory of files as another library wrote it: a dict from relative paths to bytes,
// and from paths that end in "/", of empty directories, to None.
enum class ItemKind : uint8_t { kTree = 1, kJson = 2, kFiles = 3 };
struct ItemRecord {
  std::string name;
  ItemKind kind = ItemKind::kTree;
  uint64_t leaf_count = 0;  // arrays and values, not nodes
  uint64_t logical_bytes = 0;
  uint64_t stored_bytes = 0;
  uint64_t nonfinite = 0;  // elements that are NaN or infinite, of leaves with statistics
  bool operator==(const ItemRecord&) const = default;
};

// A frame's place in the log. `crc` is the frame header's CRC, which covers the payload's CRC.
struct FramePlace {
  uint64_t segment = 0;
  uint64_t offset_bytes = 0;
  uint32_t length_bytes = 0;  // header and payload, without padding
  uint32_t crc = 0;
  bool operator==(const FramePlace&) const = default;
};

// A step's use of one segment. It tells reclaim what it may take, and where a segment ends.
struct SegmentExtent {
  uint64_t segment = 0;
  uint64_t end_bytes = 0;     // end of the step's last payload or frame there, block-aligned
  uint64_t stored_bytes = 0;  // its payloads there
  // The bytes that the step owns there, in whole blocks that no other step has: of its payloads,
  // and of its frames with the copies behind them.
  uint64_t block_bytes = 0;
  uint64_t frame_bytes = 0;
  uint64_t referenced_bytes = 0;  // of stored_bytes: what an earlier commit wrote
  // Where it owns nothing: the hash of the places of what it refers to there (PlacesHash). Steps
  // with the same hash need the same bytes of the segment.
  Hash128 places;

  bool owns_nothing() const { return places.known(); }
  bool operator==(const SegmentExtent&) const = default;
};

// The state of a step of many processes in each of their stores.
enum class GroupState : uint16_t { kPrepared = 1, kDecided = 2 };
struct GroupRecord {
  Id128 group_id{};  // the store id of part 0
  uint32_t part = 0;
  GroupState state = GroupState::kPrepared;
  Id128 save_id{};               // the same on all parts
  std::vector<uint32_t> parts;   // of this step, ascending, with 0
  uint64_t decision_number = 0;  // decided: part 0's chain number of the decision; 0: not known

  bool operator==(const GroupRecord&) const = default;
};

// One committed (or prepared) step, without its leaves.
struct StepRecord {
  uint64_t step = 0;
  uint64_t commit = 0;        // commit number, > 0
  int64_t time_ns = 0;        // wall time of the commit, since the epoch
  int64_t save_ns = 0;        // from the call of Save until its commit began; 0: not known
  bool pinned = false;        // kept whatever retention says
  std::string taint;          // why it is not to be resumed from; "": it may be
  bool verified = false;      // the last verification of this commit found it whole
  std::string metadata_json;  // user metadata; "" = none
  std::string metrics_json;
  std::vector<ItemRecord> items;
  uint64_t leaf_count = 0;
  uint64_t chunk_count = 0;
  uint64_t logical_bytes = 0;
  uint64_t stored_bytes = 0;
  uint64_t referenced_bytes = 0;       // of these: what earlier commits wrote; the rest is owned
  std::vector<SegmentExtent> extents;  // ascending by segment
  std::optional<GroupRecord> group;    // none: saved by one process alone

  // Returns the bytes of its own frames, with the copies behind them, in whole blocks.
  uint64_t frame_bytes() const {
    uint64_t sum = 0;
    for (const SegmentExtent& extent : extents) sum += extent.frame_bytes;
    return sum;
  }
  bool operator==(const StepRecord&) const = default;
};

// ---- a leaf by itself ---------------------------------------------------------------------
// Without key and chunks: what processes tell each other of a leaf.
std::string EncodeLeafValue(const LeafRecord& record);
Result<LeafRecord> DecodeLeafValue(std::string_view key, ConstBytes bytes);

// ---- frame payloads -----------------------------------------------------------------------
struct SegmentHeader {
  Id128 store_id{};
  uint64_t segment = 0;
  Id128 nonce{};
  uint32_t part = 0;  // of a part of a group: the part, and the group's id
  Id128 group_id{};
  int64_t created_ns = 0;

  bool operator==(const SegmentHeader&) const = default;
};
struct LiveCommit {
  StepRecord step;   // with items, without metadata texts (those stay in the commit frame)
  FramePlace place;  // of its commit frame

  bool operator==(const LiveCommit&) const = default;
};
struct SegmentEntry {
  uint64_t segment = 0;
  Id128 nonce{};
  uint64_t length_bytes = 0;  // 0: not sealed yet

  bool operator==(const SegmentEntry&) const = default;
};
// Chain frames that recovery found damaged or missing: what they did is not known.
struct LossRecord {
  uint64_t first_commit = 0;
  uint64_t last_commit = 0;
  int64_t found_ns = 0;  // wall time
  std::string reason;    // for people
  bool accepted = false;

  bool operator==(const LossRecord&) const = default;
};
struct Catalog {
  uint64_t epoch = 0;
  uint64_t last_commit = 0;
  FramePlace last_place;  // of the frame with that commit number; length 0 when none
  std::vector<LiveCommit> live;
  std::vector<SegmentEntry> segments;
  // A catalog either names everything (a base), or what changed since `previous`.
  FramePlace previous;                  // length 0: this is a base
  std::vector<uint64_t> gone;           // commits that ended since
  std::vector<uint64_t> segments_gone;  // segments that went since
  std::vector<FramePlace> pages;        // more entries of `live` and `segments`
  uint64_t live_count = 0;              // the totals of the live set
  std::vector<LossRecord> losses = {};  // not accepted yet

  bool operator==(const Catalog&) const = default;
};
struct EpochRecord {
  uint64_t epoch = 0;
  uint64_t last_commit = 0;  // the last accepted commit of the epochs before
  FramePlace last_place;

  bool operator==(const EpochRecord&) const = default;
};
struct RecordsBlock {  // place of a records frame, in order
  FramePlace place;
  std::string first_key;
  uint64_t first_chunk = 0;

  bool operator==(const RecordsBlock&) const = default;
};
struct Commit {
  StepRecord step;
  std::vector<uint64_t> kills;       // commit numbers that this one replaces
  std::vector<RecordsBlock> blocks;  // earlier records of this step
  std::vector<LeafRecord> records;   // the last ones, sorted by (key, first_chunk)

  bool operator==(const Commit&) const = default;
};
struct Delete {
  std::vector<uint64_t> kills;
  std::vector<uint64_t> steps;  // of the killed commits, for people and readers

  bool operator==(const Delete&) const = default;
};
struct Decided {
  GroupRecord group;    // state kDecided
  uint64_t commit = 0;  // the prepared commit
  bool committed = false;
  std::vector<uint64_t> kills;  // commit numbers
  std::vector<uint64_t> steps;  // of the killed commits, for people and readers

  bool operator==(const Decided&) const = default;
};
struct MetaChange {
  uint64_t commit = 0;                    // the live commit that is changed
  std::optional<bool> pinned = {};        // its new pin
  std::optional<std::string> taint = {};  // its new taint; "": none
  std::optional<bool> verified = {};      // what verification has found

  bool operator==(const MetaChange&) const = default;
};
// Makes the change to the step's record; false: it says so already.
bool ApplyChange(const MetaChange& change, StepRecord* record);
struct Meta {
  std::vector<MetaChange> changes;

  bool operator==(const Meta&) const = default;
};
struct FooterEntry {
  uint16_t kind = 0;  // FrameKind
  uint64_t commit = 0;
  FramePlace place;

  bool operator==(const FooterEntry&) const = default;
};
struct Footer {
  std::vector<FooterEntry> frames;

  bool operator==(const Footer&) const = default;
};
struct Trailer {
  FramePlace footer;
  uint64_t commit_min = 0;  // of the chain frames in this segment; 0 when none
  uint64_t commit_max = 0;

  bool operator==(const Trailer&) const = default;
};

std::string EncodeSegmentHeader(const SegmentHeader&);
Result<SegmentHeader> DecodeSegmentHeader(ConstBytes);
std::string EncodeCatalog(const Catalog&);
Result<Catalog> DecodeCatalog(ConstBytes);
// A page is a catalog with nothing but `live` and `segments`, compressed.
Result<std::string> EncodeCatalogPage(const Catalog& entries);
Result<Catalog> DecodeCatalogPage(ConstBytes);
std::string EncodeEpoch(const EpochRecord&);
Result<EpochRecord> DecodeEpoch(ConstBytes);
std::string EncodeRecords(std::span<const LeafRecord>);
Result<std::vector<LeafRecord>> DecodeRecords(ConstBytes);
std::string EncodeCommit(const Commit&);
namespace internal {
class LeavesToWrite;
}
// Encodes a commit again and again, with other heads. Its records are compressed once; the length
// does not depend on numbers in the head.
class CommitEncoder {
 public:
  // `records`: those of the commit. They must outlive this.
  explicit CommitEncoder(std::span<const LeafRecord> records);
  ~CommitEncoder();
  CommitEncoder(const CommitEncoder&) = delete;
  CommitEncoder& operator=(const CommitEncoder&) = delete;

  std::string Encode(const Commit& commit) const;

 private:
  std::unique_ptr<internal::LeavesToWrite> leaves_;
};
Result<Commit> DecodeCommit(ConstBytes);
// A range of keys in a step's records, first <= key < end; an empty `end`: to the last.
struct KeyRange {
  std::string first;
  std::string end;
};
KeyRange KeysBelow(std::string_view key_prefix);  // everything that starts with it
KeyRange KeyAlone(std::string_view key);          // one leaf key, without what is below it
// Parts of frames, found by binary search: the work does not grow with the records left out.
// The head of a commit is all but its `records`; `first` is the place of those in the order.
struct CommitHead {
  Commit commit;
  std::string first_key;  // empty: it has no records of its own
  uint64_t first_chunk = 0;
};
Result<CommitHead> DecodeCommitHead(ConstBytes);
Result<std::vector<LeafRecord>> DecodeCommitRecordsIn(ConstBytes, const KeyRange& range);
Result<std::vector<LeafRecord>> DecodeRecordsIn(ConstBytes, const KeyRange& range);
std::string EncodeDelete(const Delete&);
Result<Delete> DecodeDelete(ConstBytes);
std::string EncodeDecided(const Decided&);
Result<Decided> DecodeDecided(ConstBytes);
std::string EncodeLoss(const LossRecord&);
Result<LossRecord> DecodeLoss(ConstBytes);
std::string EncodeMeta(const Meta&);
Result<Meta> DecodeMeta(ConstBytes);
std::string EncodeFooter(const Footer&);
Result<Footer> DecodeFooter(ConstBytes);
std::string EncodeTrailer(const Trailer&);
Result<Trailer> DecodeTrailer(ConstBytes);

// ---- the STEPWELL file --------------------------------------------------------------------
// kSlotCount slots of kSlotBytes, one behind the other; the valid one with the highest sequence
// counts. Magic, version and CRC are checked by DecodeSlot.
inline constexpr size_t kSlotBytes = 4096;
inline constexpr size_t kSlotCount = 3;
inline constexpr size_t kSlotTipBytesMax = 3964;
inline constexpr uint32_t kFormatVersion = 5;     // of what is written
inline constexpr uint32_t kFormatVersionMin = 4;  // of what is read
struct StoreSlot {
  uint64_t sequence = 0;
  Id128 store_id{};
  uint32_t format_version = kFormatVersion;
  bool clean = false;  // closed cleanly: no frame is newer than this slot
  uint64_t epoch = 0;
  uint64_t durable_commit = 0;  // the newest commit known flushed
  FramePlace durable_place;     // its frame
  FramePlace catalog_place;     // the newest catalog known flushed
  // A part of a group of stores: the store id of part 0, and the part's number. For part 0, a store
  // like any other, both are zero.
  Id128 group_id{};
  uint32_t part = 0;
  // A copy of the durable commit's frame (frame.h); empty where it does not fit.
  std::string tip;

  bool operator==(const StoreSlot&) const = default;
};
std::array<std::byte, kSlotBytes> EncodeSlot(const StoreSlot& slot);
// kUnimplemented: another magic, or another format version (the message says what to do);
// kDataLoss: torn or damaged.
Result<StoreSlot> DecodeSlot(ConstBytes bytes);

}  // namespace stepwell::format
