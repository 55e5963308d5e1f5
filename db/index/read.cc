// SPDX-License-Identifier: Apache-2.0
// Reading steps out of the index's column families.
#include <rocksdb/db.h>

#include <memory>
#include <span>
#include <utility>

#include "db/index/env.h"
#include "db/index/index.h"
#include "format/endian.h"
#include "format/key.h"

namespace stepwell::db {
namespace {

constexpr size_t kStepBytes = 8;
constexpr size_t kFrameCrcBytes = 4;

std::string_view ToView(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

// A family's rows from `first` on and before `end` (empty: to the last), in order.
class RowScan {
 public:
  RowScan(rocksdb::DB* db, rocksdb::ColumnFamilyHandle* family, const rocksdb::Snapshot* snapshot,
          const std::string& first, std::string end)
      : end_(std::move(end)), end_slice_(end_) {
    rocksdb::ReadOptions options;
    options.snapshot = snapshot;
    options.verify_checksums = true;
    options.total_order_seek = true;
    if (!end_.empty()) options.iterate_upper_bound = &end_slice_;
    rows_.reset(db->NewIterator(options, family));
    rows_->Seek(first);
  }
  bool Valid() const { return rows_->Valid(); }
  std::string_view key() const { return ToView(rows_->key()); }
  std::string_view value() const { return ToView(rows_->value()); }
  void Next() { rows_->Next(); }
  Status status() const { return FromRocks(rows_->status(), "read the index"); }

 private:
  const std::string end_;
  const rocksdb::Slice end_slice_;
  std::unique_ptr<rocksdb::Iterator> rows_;
};

struct StepRow {
  uint32_t frame_crc = 0;
  format::StepRecord record;
};

Result<StepRow> DecodeStepRow(std::string_view key, std::string_view value) {
  StepRow row;
  STEPWELL_ASSIGN_OR_RETURN(const uint64_t step, format::DecodeStep(key));
  if (value.size() < kFrameCrcBytes) return DataLossError("index: a step's row is cut short");
  row.frame_crc = format::LoadLittle<uint32_t>(AsBytes(value).data());
  STEPWELL_ASSIGN_OR_RETURN(row.record,
                            format::DecodeStepRecord(AsBytes(value.substr(kFrameCrcBytes))));
  if (row.record.step != step) {
    return DataLossError(StrCat("index: the row of step ", step, " is of step ", row.record.step));
  }
  return row;
}

// The row of the step, if it is of this commit.
Result<std::optional<StepRow>> FindStepRow(rocksdb::DB* db, rocksdb::ColumnFamilyHandle* steps,
                                           const rocksdb::Snapshot* snapshot, uint64_t step,
                                           uint64_t commit, uint32_t frame_crc) {
  rocksdb::ReadOptions options;
  options.snapshot = snapshot;
  options.verify_checksums = true;
  std::string value;
  const std::string key = format::EncodeStep(step);
  const rocksdb::Status got = db->Get(options, steps, key, &value);
  if (got.IsNotFound()) return std::optional<StepRow>();
  STEPWELL_RETURN_IF_ERROR(FromRocks(got, "read the index"));
  STEPWELL_ASSIGN_OR_RETURN(StepRow row, DecodeStepRow(key, value));
  if (row.record.commit != commit || row.frame_crc != frame_crc) return std::optional<StepRow>();
  return std::optional(std::move(row));
}

// Takes the chunks of `leaf`, which come next in `chunks` or are missing.
Status TakeChunks(uint64_t step, RowScan* chunks, format::LeafRecord* leaf) {
  const auto bad = [&](const char* what) {
    return DataLossError(StrCat("index: step ", step, ": ", what));
  };
  std::string key = format::EncodeChunkKey(step, leaf->key, 0);
  const size_t fixed_bytes = key.size() - kStepBytes;  // all but the chunk's number
  while (chunks->Valid() && chunks->key().size() == key.size() &&
         chunks->key().substr(0, fixed_bytes) == std::string_view(key).substr(0, fixed_bytes)) {
    const uint64_t number = format::LoadBig64(chunks->key().data() + fixed_bytes);
    if (number != leaf->chunks.size()) return bad("a chunk is missing");
    STEPWELL_ASSIGN_OR_RETURN(const format::ChunkRecord chunk,
                              format::DecodeChunkRecord(AsBytes(chunks->value())));
    leaf->chunks.push_back(chunk);
    chunks->Next();
  }
  STEPWELL_RETURN_IF_ERROR(chunks->status());
  if (leaf->chunks.size() != leaf->chunk_count) return bad("a leaf's chunks are not all there");
  return OkStatus();
}

}  // namespace

std::string EncodeStepRow(const format::StepRecord& step, uint32_t frame_crc) {
  std::string row(kFrameCrcBytes, '\0');
  format::StoreLittle(std::as_writable_bytes(std::span(row)).data(), frame_crc);
  return row += format::EncodeStepRecord(step);
}

Result<std::string> RepinStepRow(std::string_view key, std::string_view row, bool pinned) {
  STEPWELL_ASSIGN_OR_RETURN(StepRow decoded, DecodeStepRow(key, row));
  decoded.record.pinned = pinned;
  return EncodeStepRow(decoded.record, decoded.frame_crc);
}

Result<std::optional<format::StepRecord>> Index::ReadStepRow(uint64_t step, uint64_t commit,
                                                             uint32_t frame_crc) {
  STEPWELL_ASSIGN_OR_RETURN(auto row, FindStepRow(db_, steps_, nullptr, step, commit, frame_crc));
  if (!row) return std::optional<format::StepRecord>();
  return std::optional(std::move(row->record));
}

Result<std::vector<IndexedStep>> Index::ReadSteps() {
  std::vector<IndexedStep> steps;
  RowScan rows(db_, steps_, nullptr, "", "");
  for (; rows.Valid(); rows.Next()) {
    STEPWELL_ASSIGN_OR_RETURN(const StepRow row, DecodeStepRow(rows.key(), rows.value()));
    steps.push_back({row.record.step, row.record.commit, row.frame_crc, row.record.pinned,
                     row.record.group.has_value()});
  }
  STEPWELL_RETURN_IF_ERROR(rows.status());
  return steps;
}

Result<std::optional<std::vector<format::LeafRecord>>> Index::ReadLeaves(
    uint64_t step, uint64_t commit, uint32_t frame_crc, const format::KeyRange& range) {
  rocksdb::ManagedSnapshot snapshot(db_);  // one for all families
  STEPWELL_ASSIGN_OR_RETURN(const auto row,
                            FindStepRow(db_, steps_, snapshot.snapshot(), step, commit, frame_crc));
  if (!row) return std::optional<std::vector<format::LeafRecord>>();

  // Chunks sort as their leaves do, and a leaf's chunks before anything below the leaf, so the same
  // range selects both and one pass over both families does it.
  const std::string first = format::EncodeIndexKey(step, range.first);
  const std::string end = range.end.empty() ? format::PrefixEnd(format::EncodeStep(step))
                                            : format::EncodeIndexKey(step, range.end);
  RowScan rows(db_, leaves_, snapshot.snapshot(), first, end);
  RowScan chunks(db_, chunks_, snapshot.snapshot(), first, end);
  std::vector<format::LeafRecord> leaves;
  for (; rows.Valid(); rows.Next()) {
    STEPWELL_ASSIGN_OR_RETURN(
        format::LeafRecord leaf,
        format::DecodeLeafValue(rows.key().substr(kStepBytes), AsBytes(rows.value())));
    STEPWELL_RETURN_IF_ERROR(TakeChunks(step, &chunks, &leaf));
    leaves.push_back(std::move(leaf));
  }
  STEPWELL_RETURN_IF_ERROR(rows.status());
  STEPWELL_RETURN_IF_ERROR(chunks.status());
  if (chunks.Valid()) return DataLossError(StrCat("index: step ", step, ": chunks of no leaf"));
  return std::optional(std::move(leaves));
}

}  // namespace stepwell::db
