// SPDX-License-Identifier: Apache-2.0
#include "db/read/part_merge.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "db/read/restore_plan.h"
#include "db/read/step_reader.h"
#include "format/key.h"
#include "format/piece.h"

namespace stepwell::db {
namespace {

using format::LeafRecord;

// Records of several parts, each list ascending by key, with the parts' numbers in their chunks.
Result<std::vector<LeafRecord>> Merge(std::vector<std::vector<LeafRecord>> lists) {
  std::map<std::string, std::vector<LeafRecord>> by_key;
  for (auto& list : lists) {
    for (LeafRecord& leaf : list) {
      const std::string key = leaf.key;
      by_key[key].push_back(std::move(leaf));
    }
  }
  std::vector<LeafRecord> merged;
  merged.reserve(by_key.size());
  for (auto& [key, records] : by_key) {
    STEPWELL_ASSIGN_OR_RETURN(LeafRecord leaf, MergeLeaf(std::move(records)));
    merged.push_back(std::move(leaf));
  }
  return merged;
}

class MergedReader final : public RestoringReader {
 public:
  struct Part {
    uint32_t part = 0;
    std::shared_ptr<StepReader> reader;
  };

  // The first part is part 0. Without a restorer only its chunks can be loaded.
  MergedReader(std::vector<Part> parts, std::shared_ptr<PartStores> group, Restorer* restorer,
               const std::string& root)
      : parts_(std::move(parts)), group_(std::move(group)), restorer_(restorer) {
    // Part 0 knows every leaf; what is stored is where it was written.
    step_ = parts_.front().reader->step();
    where_ = StrCat(root, ": step ", step_.step);
    for (size_t i = 1; i < parts_.size(); ++i) {
      const format::StepRecord& other = parts_[i].reader->step();
      step_.stored_bytes += other.stored_bytes;
      step_.referenced_bytes += other.referenced_bytes;
      step_.chunk_count += other.chunk_count;
      for (const format::ItemRecord& item : other.items) {
        for (format::ItemRecord& mine : step_.items) {
          if (mine.name != item.name) continue;
          mine.stored_bytes += item.stored_bytes;
          mine.nonfinite += item.nonfinite;
        }
      }
    }
    for (const format::ItemRecord& item : step_.items) {
      prefixes_.push_back(format::EncodeItem(item.name));
    }
  }

  const format::StepRecord& step() const override { return step_; }

  // Returns the commits of the parts' shares, part 0's first.
  std::vector<uint64_t> Commits() const {
    std::vector<uint64_t> commits;
    for (const Part& part : parts_) commits.push_back(part.reader->step().commit);
    return commits;
  }

  Status Explain(const Status& error) const override {
    // Each part knows what is gone of its own; the message names the file.
    Status explained = error;
    for (const Part& part : parts_) {
      explained = part.reader->Explain(error);
      if (explained.code() == StatusCode::kNotFound) return explained;
    }
    return explained;
  }

  Result<std::vector<LeafRecord>> Leaves(std::string_view key_prefix) override {
    std::vector<std::vector<LeafRecord>> lists;
    for (const Part& part : parts_) {
      STEPWELL_ASSIGN_OR_RETURN(auto leaves, part.reader->Leaves(key_prefix));
      lists.push_back(Take(part, std::move(leaves)));
    }
    auto merged = Merge(std::move(lists));
    if (!merged.ok()) return merged.status().WithContext(where_);
    return merged;
  }

  Result<std::optional<LeafRecord>> Find(std::string_view key) override {
    std::vector<LeafRecord> records;
    for (const Part& part : parts_) {
      STEPWELL_ASSIGN_OR_RETURN(auto leaf, part.reader->Find(key));
      std::vector<LeafRecord> one;
      if (leaf) one.push_back(std::move(*leaf));
      for (LeafRecord& record : Take(part, std::move(one))) records.push_back(std::move(record));
    }
    if (records.empty()) return std::optional<LeafRecord>();
    auto merged = MergeLeaf(std::move(records));
    if (!merged.ok()) return merged.status().WithContext(where_);
    return std::optional(std::move(*merged));
  }

  Result<LoadStats> Load(std::span<const LoadRequest> requests) override {
    if (restorer_ == nullptr) return parts_.front().reader->Load(requests);
    auto stats = restorer_->Load(requests);
    if (!stats.ok()) return Explain(stats.status());
    return stats;
  }

  Restorer* restorer() override { return restorer_; }

 private:
  // A part's records with its number in their chunks. An item that was taken out of the step on
  // part 0 may still be there on another.
  std::vector<LeafRecord> Take(const Part& part, std::vector<LeafRecord> leaves) const {
    for (LeafRecord& leaf : leaves) {
      for (format::ChunkRecord& chunk : leaf.chunks) chunk.part = part.part;
    }
    if (part.part == 0) return leaves;
    std::erase_if(leaves, [this](const LeafRecord& leaf) {
      return std::none_of(prefixes_.begin(), prefixes_.end(), [&](const std::string& prefix) {
        return std::string_view(leaf.key).starts_with(prefix);
      });
    });
    return leaves;
  }

  const std::vector<Part> parts_;
  const std::shared_ptr<PartStores> group_;
  Restorer* const restorer_;
  format::StepRecord step_;
  std::string where_;
  std::vector<std::string> prefixes_;  // of the step's items
};

std::shared_ptr<const StoreSnapshot> WithShares(StoreSnapshot snapshot,
                                                std::map<uint32_t, PartShares> shares) {
  for (StoreSnapshot::Step& step : snapshot.steps) {
    if (!step.group) continue;
    for (const uint32_t part : step.group->parts) {
      const auto& by_save = shares[part].by_save;
      const auto it = by_save.find(step.group->save_id);
      step.shares.push_back(part == 0 ? step.commit : it == by_save.end() ? 0 : it->second);
    }
  }
  auto pins = std::make_shared<std::vector<std::shared_ptr<const void>>>();
  if (snapshot.pin != nullptr) pins->push_back(std::move(snapshot.pin));
  for (auto& [part, each] : shares) pins->insert(pins->end(), each.pins.begin(), each.pins.end());
  if (!pins->empty()) snapshot.pin = std::move(pins);
  return std::make_shared<const StoreSnapshot>(std::move(snapshot));
}

// Pins shares of the step that came after the parts were pinned. What is still not there has gone
// since (then from part 0, too), or is not to be had.
void PinNewShares(PartStores& parts, const StoreSnapshot::Step& step,
                  std::map<uint32_t, PartShares>* known) {
  if (!step.group) return;
  for (const uint32_t part : step.group->parts) {
    if (part == 0) continue;
    PartShares& shares = known->at(part);
    if (shares.by_save.contains(step.group->save_id)) continue;
    format::StepRecord record;
    record.step = step.step;
    record.group = step.group;
    auto newer = parts.Shares(part, record);
    if (!newer.ok()) continue;
    // The older pins go on keeping their steps.
    newer->pins.insert(newer->pins.end(), shares.pins.begin(), shares.pins.end());
    newer->by_save.merge(shares.by_save);
    shares = std::move(*newer);
  }
}

Status Contradiction(const LeafRecord& leaf, const std::string& what) {
  return DataLossError(
      StrCat("leaf ", LeafName(leaf), ": the parts of several processes do not fit: ", what));
}

}  // namespace

Result<LeafRecord> MergeLeaf(std::vector<LeafRecord> records) {
  LeafRecord leaf = std::move(records.front());
  if (records.size() == 1 && !leaf.partial) return leaf;
  const bool whole = !leaf.partial;
  for (size_t i = 1; i < records.size(); ++i) {
    LeafRecord& other = records[i];
    if (whole) {
      // Nodes and values are part 0's, and others may repeat them; so may they have arrays of
      // their own by this name.
      if (!other.partial) continue;
      return Contradiction(leaf, "one has all of it and another some");
    }
    if (!other.partial || other.dtype != leaf.dtype || other.shape != leaf.shape) {
      return Contradiction(leaf, "they disagree about its type or shape");
    }
    if (other.pieces.empty()) continue;
    if (leaf.pieces.empty()) {
      leaf.statistics = other.statistics;
    } else if (leaf.statistics && other.statistics) {
      leaf.statistics->Add(*other.statistics);
    } else {
      leaf.statistics.reset();  // of some elements only
    }
    if (leaf.pieces.empty()) leaf.chunk_shape = other.chunk_shape;
    if (other.chunk_shape != leaf.chunk_shape) {
      return Contradiction(leaf, "they disagree about its chunks");
    }
    for (format::PieceRecord& piece : other.pieces) {
      piece.first_chunk += leaf.chunk_count;
      leaf.pieces.push_back(std::move(piece));
    }
    leaf.chunk_count += other.chunk_count;
    leaf.chunks.insert(leaf.chunks.end(), std::make_move_iterator(other.chunks.begin()),
                       std::make_move_iterator(other.chunks.end()));
  }
  if (whole) return leaf;
  if (Status status = format::JoinPieces(&leaf); !status.ok()) {
    return Contradiction(leaf, status.message());
  }
  return leaf;
}

Result<std::shared_ptr<StepReader>> ReadWithParts(std::shared_ptr<StepReader> own,
                                                  const std::shared_ptr<PartStores>& parts,
                                                  Restorer* restorer, const std::string& root,
                                                  const std::function<bool()>& is_there) {
  const format::StepRecord step = own->step();
  std::vector<MergedReader::Part> readers;
  readers.push_back({0, std::move(own)});
  for (const uint32_t part : step.group->parts) {
    if (part == 0) continue;
    auto reader = parts->Read(part, step);
    if (!reader.ok() && !is_there()) {
      return NotFoundError(StrCat(root, ": step ", step.step,
                                  " was deleted while it was being read; load another step"));
    }
    if (!reader.ok()) return reader.status().WithContext(root);
    readers.push_back({part, std::move(*reader)});
  }
  return std::shared_ptr<StepReader>(
      std::make_shared<MergedReader>(std::move(readers), parts, restorer, root));
}

bool IsReadAs(const StepReader& reader, const StoreSnapshot::Step& step) {
  if (reader.step().commit != step.commit) return false;
  const auto* merged = dynamic_cast<const MergedReader*>(&reader);
  return merged == nullptr || merged->Commits() == step.shares;
}

std::shared_ptr<StepReader> ReadWithRecords(std::shared_ptr<StepReader> own,
                                            std::map<uint32_t, std::vector<LeafRecord>> others,
                                            const std::string& root) {
  std::vector<MergedReader::Part> readers;
  format::StepRecord step;
  step.step = own->step().step;
  readers.push_back({0, std::move(own)});
  for (auto& other : others) {
    const auto records = std::make_shared<const std::vector<LeafRecord>>(std::move(other.second));
    const auto source =
        [records](const format::KeyRange& range) -> Result<std::vector<LeafRecord>> {
      std::vector<LeafRecord> found;
      for (const LeafRecord& leaf : *records) {
        if (leaf.key >= range.first && (range.end.empty() || leaf.key < range.end)) {
          found.push_back(leaf);
        }
      }
      return found;
    };
    readers.push_back(
        {other.first, MakeStepReader(step, source, /*restorer=*/nullptr, root, ExplainPinned,
                                     /*keep=*/nullptr)});
  }
  return std::make_shared<MergedReader>(std::move(readers), /*group=*/nullptr,
                                        /*restorer=*/nullptr, root);
}

// Steps go from part 0 first, and the others' pins come first: what part 0 has afterwards cannot
// have gone from a part before its pin. What a part has prepared since then is pinned by a second
// look: a pin keeps nothing that is saved later.
Result<std::shared_ptr<const StoreSnapshot>> SnapshotWithParts(PartStores& parts,
                                                               const SnapshotOwn& own) {
  std::map<uint32_t, PartShares> known;  // the shares found; empty for parts that are not to be had
  for (;;) {
    STEPWELL_ASSIGN_OR_RETURN(StoreSnapshot snapshot, own());
    std::map<uint32_t, format::StepRecord> missing;
    for (const StoreSnapshot::Step& step : snapshot.steps) {
      if (!step.group) continue;
      for (const uint32_t part : step.group->parts) {
        if (part == 0 || known.contains(part)) continue;
        missing[part].step = step.step;
        missing[part].group = step.group;
      }
    }
    for (const auto& [part, step] : missing) {
      auto shares = parts.Shares(part, step);
      known[part] = shares.ok() ? std::move(*shares) : PartShares{};
    }
    if (!missing.empty()) continue;
    for (const StoreSnapshot::Step& step : snapshot.steps) PinNewShares(parts, step, &known);
    return WithShares(std::move(snapshot), std::move(known));
  }
}

Status VerifyOtherParts(const std::vector<LiveStep>& steps, PartStores& parts, const ReadStep& read,
                        const VerifyOptions& options, VerifyReport* report) {
  for (const LiveStep& step : steps) {
    if (!HasOtherParts(step.record)) continue;
    const uint64_t number = step.record.step;
    const auto add = [&](const Status& status) {
      VerifyProblem problem;
      problem.step = number;
      problem.message = status.message();
      problem.unchecked = !IsDamage(status);
      report->problems.push_back(std::move(problem));
    };
    Status first;
    for (const uint32_t part : step.record.group->parts) {
      if (part == 0) continue;
      const Status status = parts.Verify(part, step.record, options, report);
      if (status.code() == StatusCode::kCancelled) return status;
      if (!status.ok()) add(status);
      if (first.ok()) first = status;
    }
    if (!first.ok()) continue;
    const auto reader = read(number);
    Status status = reader.status();
    if (status.ok()) status = (*reader)->Leaves("").status();
    if (status.code() != StatusCode::kNotFound && !status.ok()) add(status);  // else deleted
  }
  return OkStatus();
}

}  // namespace stepwell::db
