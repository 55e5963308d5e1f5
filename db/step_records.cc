// SPDX-License-Identifier: Apache-2.0
// A step's leaf records, read from the log.
#include <iterator>

#include "db/recovery.h"
#include "format/key.h"

namespace stepwell::db {
namespace {

using format::LeafRecord;

// Appends the records below `key_prefix`, joining those that continue the last one. Moves them from
// a vector that is not const.
template <typename Records>
Status AppendRecords(Records& records, std::string_view key_prefix, std::vector<LeafRecord>* out) {
  for (auto& record : records) {
    if (!std::string_view(record.key).starts_with(key_prefix)) continue;
    if (record.first_chunk == 0) {
      if (!out->empty() && out->back().key >= record.key) {
        return DataLossError("leaf records out of order");
      }
      out->push_back(std::move(record));
      continue;
    }
    if (out->empty() || out->back().key != record.key ||
        out->back().chunks.size() != record.first_chunk) {
      return DataLossError("a leaf's chunk records do not follow each other");
    }
    auto& chunks = out->back().chunks;
    chunks.insert(chunks.end(), std::make_move_iterator(record.chunks.begin()),
                  std::make_move_iterator(record.chunks.end()));
  }
  return OkStatus();
}

// `Commit` may be const: then its records are copied.
template <typename Commit>
Result<std::vector<LeafRecord>> RecordsOf(SegmentFiles& files, Commit& commit,
                                          const format::FramePlace& commit_place,
                                          std::string_view key_prefix) {
  const std::string where =
      StrCat(files.PathOf(commit_place.segment), ": offset ", commit_place.offset_bytes);
  const std::string prefix_end = format::PrefixEnd(std::string(key_prefix));
  std::vector<LeafRecord> leaves;
  for (size_t i = 0; i < commit.blocks.size(); ++i) {
    const auto& block = commit.blocks[i];
    if (!prefix_end.empty() && block.first_key >= prefix_end) break;
    // Everything in this block sorts before (or is) the first key of what follows.
    const std::string* next = nullptr;
    if (i + 1 < commit.blocks.size()) {
      next = &commit.blocks[i + 1].first_key;
    } else if (!commit.records.empty()) {
      next = &commit.records.front().key;
    }
    if (next != nullptr && std::string_view(*next) < key_prefix) continue;
    STEPWELL_ASSIGN_OR_RETURN(const Frame records,
                              ReadFrame(files, block.place, format::FrameKind::kRecords));
    auto decoded = format::DecodeRecords(AsBytes(records.payload));
    const std::string block_where =
        StrCat(files.PathOf(block.place.segment), ": offset ", block.place.offset_bytes);
    if (!decoded.ok()) return decoded.status().WithContext(block_where);
    if (Status status = AppendRecords(*decoded, key_prefix, &leaves); !status.ok()) {
      return status.WithContext(block_where);
    }
  }
  if (Status status = AppendRecords(commit.records, key_prefix, &leaves); !status.ok()) {
    return status.WithContext(where);
  }
  for (const LeafRecord& leaf : leaves) {
    if (leaf.chunks.size() != leaf.chunk_count) {
      return DataLossError(StrCat(where, ": a leaf has ", leaf.chunks.size(),
                                  " chunk records instead of ", leaf.chunk_count));
    }
  }
  return leaves;
}

}  // namespace

Result<format::Commit> ReadCommit(SegmentFiles& files, const format::FramePlace& place) {
  STEPWELL_ASSIGN_OR_RETURN(const Frame frame, ReadFrame(files, place, format::FrameKind::kCommit));
  auto commit = format::DecodeCommit(AsBytes(frame.payload));
  if (!commit.ok()) {
    return commit.status().WithContext(
        StrCat(files.PathOf(place.segment), ": offset ", place.offset_bytes));
  }
  return commit;
}

Result<std::vector<LeafRecord>> RecordsBelow(SegmentFiles& files, const format::Commit& commit,
                                             const format::FramePlace& commit_place,
                                             std::string_view key_prefix) {
  return RecordsOf(files, commit, commit_place, key_prefix);
}

Result<std::vector<LeafRecord>> ReadStepRecords(SegmentFiles& files,
                                                const format::FramePlace& commit_place,
                                                std::string_view key_prefix,
                                                format::StepRecord* step) {
  STEPWELL_ASSIGN_OR_RETURN(format::Commit commit, ReadCommit(files, commit_place));
  auto leaves = RecordsOf(files, commit, commit_place, key_prefix);
  if (leaves.ok() && step != nullptr) *step = std::move(commit.step);
  return leaves;
}

}  // namespace stepwell::db
