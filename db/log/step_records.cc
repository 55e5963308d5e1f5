// SPDX-License-Identifier: Apache-2.0
#include "db/log/step_records.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "db/log/recovery.h"
#include "format/key.h"

namespace stepwell::db {
namespace {

using format::KeyRange;
using format::LeafRecord;

// Blocks kept for the next look: the way down to a leaf goes through few.
constexpr size_t kRecentBlocksMax = 4;

// Appends records, joining those that continue the last one.
Status AppendRecords(std::vector<LeafRecord> records, std::vector<LeafRecord>* out) {
  for (LeafRecord& record : records) {
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

// Returns true if the elements before the record (`next_key`, `next_chunk`) may reach into the
// range.
bool ReachesInto(const KeyRange& range, const std::string& next_key, uint64_t next_chunk) {
  // A leaf that goes on in the next block begins before it.
  return next_chunk == 0 ? next_key > range.first : next_key >= range.first;
}

}  // namespace

Result<std::shared_ptr<StepRecords>> StepRecords::Open(SegmentFiles* files,
                                                       const format::FramePlace& commit_place) {
  std::shared_ptr<StepRecords> records(new StepRecords(files, commit_place));
  STEPWELL_ASSIGN_OR_RETURN(Frame frame, ReadFrame(*files, commit_place, format::FrameKind{}));
  if (frame.header.kind != format::FrameKind::kCommit &&
      frame.header.kind != format::FrameKind::kPrepared) {
    return DataLossError(StrCat(records->Where(commit_place), ": a frame of kind ",
                                static_cast<int>(frame.header.kind), ", expected a commit"));
  }
  records->payload_ = std::move(frame.payload);
  auto head = format::DecodeCommitHead(AsBytes(records->payload_));
  if (!head.ok()) return head.status().WithContext(records->Where(commit_place));
  records->head_ = std::move(*head);
  return records;
}

std::string StepRecords::Where(const format::FramePlace& place) const {
  return StrCat(files_->PathOf(place.segment), ": offset ", place.offset_bytes);
}

uint64_t StepRecords::bytes_read() const {
  const io::MutexLock lock(&mutex_);
  return bytes_read_;
}

Result<StepRecords::Block> StepRecords::ReadBlock(size_t number) {
  {
    const io::MutexLock lock(&mutex_);
    for (const auto& [known, block] : recent_) {
      if (known == number) return block;
    }
  }
  const format::FramePlace& place = head_.commit.blocks[number].place;
  STEPWELL_ASSIGN_OR_RETURN(Frame frame, ReadFrame(*files_, place, format::FrameKind::kRecords));
  auto block = std::make_shared<const std::string>(std::move(frame.payload));
  const io::MutexLock lock(&mutex_);
  bytes_read_ += place.length_bytes;
  recent_.emplace_back(number, block);
  if (recent_.size() > kRecentBlocksMax) recent_.pop_front();
  return Block(std::move(block));
}

// Every leaf must be there of an item that lies in the range as a whole.
Status StepRecords::CheckCounts(const KeyRange& range,
                                const std::vector<LeafRecord>& leaves) const {
  for (const format::ItemRecord& item : step().items) {
    const KeyRange own = format::KeysBelow(format::EncodeItem(item.name));
    if (own.first < range.first || (!range.end.empty() && own.end > range.end)) continue;
    uint64_t count = 0;
    auto it = std::lower_bound(
        leaves.begin(), leaves.end(), own.first,
        [](const LeafRecord& leaf, const std::string& key) { return leaf.key < key; });
    for (; it != leaves.end() && it->key.starts_with(own.first); ++it) {
      if (it->kind != format::LeafKind::kNode) ++count;
    }
    if (count == item.leaf_count) continue;
    return DataLossError(StrCat("there are records of ", count, " leaves of item '", item.name,
                                "', which has ", item.leaf_count));
  }
  return OkStatus();
}

Result<std::vector<LeafRecord>> StepRecords::In(const KeyRange& range) {
  std::vector<LeafRecord> leaves;
  const auto& blocks = head_.commit.blocks;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (!range.end.empty() && blocks[i].first_key >= range.end) break;
    const bool last = i + 1 == blocks.size();
    const std::string& next_key = last ? head_.first_key : blocks[i + 1].first_key;
    const uint64_t next_chunk = last ? head_.first_chunk : blocks[i + 1].first_chunk;
    if (!next_key.empty() && !ReachesInto(range, next_key, next_chunk)) continue;
    STEPWELL_ASSIGN_OR_RETURN(const Block block, ReadBlock(i));
    auto decoded = format::DecodeRecordsIn(AsBytes(*block), range);
    Status status = decoded.status();
    if (status.ok()) status = AppendRecords(std::move(*decoded), &leaves);
    if (!status.ok()) return status.WithContext(Where(blocks[i].place));
  }
  auto decoded = format::DecodeCommitRecordsIn(AsBytes(payload_), range);
  Status status = decoded.status();
  if (status.ok()) status = AppendRecords(std::move(*decoded), &leaves);
  if (!status.ok()) return status.WithContext(Where(place_));
  for (const LeafRecord& leaf : leaves) {
    if (leaf.chunks.size() != leaf.chunk_count) {
      return DataLossError(StrCat(Where(place_), ": a leaf has ", leaf.chunks.size(),
                                  " chunk records instead of ", leaf.chunk_count));
    }
  }
  status = CheckCounts(range, leaves);
  if (!status.ok()) return status.WithContext(Where(place_));
  return leaves;
}

Result<std::vector<LeafRecord>> ReadStepRecords(SegmentFiles& files,
                                                const format::FramePlace& commit_place,
                                                std::string_view key_prefix,
                                                format::StepRecord* step) {
  STEPWELL_ASSIGN_OR_RETURN(const auto records, StepRecords::Open(&files, commit_place));
  auto leaves = records->In(format::KeysBelow(key_prefix));
  if (leaves.ok() && step != nullptr) *step = records->step();
  return leaves;
}

}  // namespace stepwell::db
