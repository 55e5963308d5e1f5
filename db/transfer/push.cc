// SPDX-License-Identifier: Apache-2.0
#include "db/transfer/push.h"

#include <map>
#include <optional>

#include "db/group.h"
#include "db/read/restore_plan.h"
#include "db/transfer/chain.h"
#include "format/codec.h"
#include "format/hash.h"

namespace stepwell::db {
namespace {

using format::ChunkRecord;
using format::DataObject;
using format::Hash128;
using format::LeafRecord;
using format::StoredPayload;
using transfer::ListedChunk;
using transfer::ListedChunks;

constexpr uint64_t kNewObject = uint64_t{1} << 63;

Status SavedBySeveral(uint64_t step) {
  return FailedPreconditionError(
      StrCat("step ", step,
             " was saved by several processes, each of which has a part: it cannot "
             "be pushed to a run; push it as an Orbax checkpoint"));
}

}  // namespace

class PushPlan::Planner {
 public:
  Planner(PushPlan* plan, const std::vector<format::PushedStep>& there) : plan_(plan) {
    for (const format::PushedStep& step : there) there_.emplace_back(step);
  }

  Status Run() {
    STEPWELL_ASSIGN_OR_RETURN(plan_->list_.leaves, plan_->reader_->Leaves(""));
    for (LeafRecord& leaf : plan_->list_.leaves) STEPWELL_RETURN_IF_ERROR(PlanLeaf(&leaf));
    format::StepRecord step = plan_->reader_->step();
    step.extents.clear();
    step.group.reset();
    step.verified = false;  // of these bytes, not of their copy
    step.stored_bytes = stored_bytes_;
    step.referenced_bytes = referred_bytes_;
    plan_->list_.step = std::move(step);
    return OkStatus();
  }

 private:
  // The chunk's payloads as the list has them.
  struct Chain {
    std::vector<StoredPayload> payloads;
    std::vector<Hash128> hashes;  // of what each decodes to
  };

  Status PlanLeaf(LeafRecord* leaf) {
    Status status = CheckLeaf(*leaf);
    if (!status.ok()) return plan_->reader_->Explain(status);
    if (leaf->partial || !leaf->pieces.empty()) return SavedBySeveral(plan_->reader_->step().step);
    std::vector<std::pair<const ListedChunks*, const LeafRecord*>> same;  // there
    for (const ListedChunks& step : there_) {
      const LeafRecord* const found = step.Find(leaf->key);
      if (found != nullptr && transfer::AreOnOneGrid(*found, *leaf)) same.push_back({&step, found});
    }
    for (size_t i = 0; i < leaf->chunks.size(); ++i) {
      std::vector<ListedChunk> chunks;
      for (const auto& [step, found] : same) chunks.push_back(step->At(*found, i));
      status = CheckChunk(*leaf, i);
      if (status.ok()) status = PlanChunk(chunks, &leaf->chunks[i]);
      if (!status.ok()) {
        return plan_->reader_->Explain(
            status.WithContext(StrCat("leaf ", LeafName(*leaf), " chunk ", i)));
      }
    }
    return OkStatus();
  }

  Status PlanChunk(std::span<const ListedChunk> there, ChunkRecord* chunk) {
    if (chunk->part != 0) return SavedBySeveral(plan_->reader_->step().step);
    Chain chain;
    if (!chunk->hash.known() || !TakeWhole(there, *chunk, &chain)) {
      STEPWELL_ASSIGN_OR_RETURN(const std::vector<Hash128> hashes, HashesOf(chunk));
      if (!TakeWhole(there, *chunk, &chain)) TakeNew(there, *chunk, hashes, &chain);
    }
    static_cast<StoredPayload&>(*chunk) = chain.payloads.back();
    chunk->bases.assign(chain.payloads.begin(), chain.payloads.end() - 1);
    auto& hashes = plan_->list_.base_hashes;
    hashes.insert(hashes.end(), chain.hashes.begin(), chain.hashes.end() - 1);
    return OkStatus();
  }

  // Takes from the place what decodes to `content`, however it is encoded there, with room for
  // `behind` more payloads; whether there is such a thing.
  bool Take(std::span<const ListedChunk> there, uint32_t logical_bytes, const Hash128& content,
            size_t behind, Chain* chain) {
    for (const ListedChunk& listed : there) {
      if (listed.chunk->logical_bytes != logical_bytes) continue;
      for (size_t i = 0; i < listed.payloads() && i + behind <= format::kBasesMax; ++i) {
        if (listed.hash(i) != content) continue;
        Refer(listed, i + 1, chain);
        return true;
      }
    }
    return false;
  }
  bool TakeWhole(std::span<const ListedChunk> there, const ChunkRecord& chunk, Chain* chain) {
    return Take(there, chunk.logical_bytes, chunk.hash, /*behind=*/0, chain);
  }

  // Returns the hashes of what each payload decodes to. Reads nothing where they are known.
  Result<std::vector<Hash128>> HashesOf(ChunkRecord* chunk) {
    if (chunk->bases.empty() && chunk->hash.known()) return std::vector<Hash128>{chunk->hash};
    std::vector<Hash128> hashes;
    scratch_.resize(chunk->logical_bytes);
    STEPWELL_RETURN_IF_ERROR(transfer::DecodePayloads(
        *chunk, 0, [this](size_t, const StoredPayload& payload) { return plan_->Fetch(payload); },
        [&hashes](size_t, const Hash128& hash) { hashes.push_back(hash); }, scratch_));
    if (chunk->hash.known() && hashes.back() != chunk->hash) {
      return DataLossError("its differences lead to other bytes than were saved");
    }
    chunk->hash = hashes.back();
    return hashes;
  }

  // Sends what comes behind the last content that the place has.
  void TakeNew(std::span<const ListedChunk> there, const ChunkRecord& chunk,
               const std::vector<Hash128>& hashes, Chain* chain) {
    size_t next = hashes.size() - 1;  // the first payload to be sent
    while (next > 0 &&
           !Take(there, chunk.logical_bytes, hashes[next - 1], hashes.size() - next, chain)) {
      --next;
    }
    for (size_t i = next; i < hashes.size(); ++i) {
      chain->payloads.push_back(Send(i < chunk.bases.size() ? chunk.bases[i] : chunk));
      chain->hashes.push_back(hashes[i]);
    }
  }

  void Refer(const ListedChunk& listed, size_t count, Chain* chain) {
    for (size_t i = 0; i < count; ++i) {
      StoredPayload payload = listed.payload(i);
      payload.segment = IndexOf(listed.step->objects[payload.segment]);
      payload.referenced = true;
      stored_bytes_ += payload.stored_bytes;
      referred_bytes_ += payload.stored_bytes;
      chain->payloads.push_back(payload);
      chain->hashes.push_back(listed.hash(i));
    }
  }

  uint64_t IndexOf(const DataObject& object) {
    const auto [found, is_new] = indices_.emplace(object, plan_->referred_.size());
    if (is_new) plan_->referred_.push_back(object);
    return found->second;
  }

  StoredPayload Send(StoredPayload payload) {
    auto& objects = plan_->objects_;
    if (objects.empty() || objects.back().size_bytes + payload.stored_bytes > kObjectBytesMax) {
      objects.emplace_back();
    }
    NewObject& object = objects.back();
    object.payloads.push_back(payload);
    payload.segment = kNewObject | (objects.size() - 1);
    payload.offset_bytes = object.size_bytes;
    payload.referenced = false;
    object.size_bytes += payload.stored_bytes;
    stored_bytes_ += payload.stored_bytes;
    return payload;
  }

  PushPlan* const plan_;
  std::vector<ListedChunks> there_;
  std::map<DataObject, uint64_t> indices_;  // in referred_
  std::vector<std::byte> scratch_;
  uint64_t stored_bytes_ = 0;
  uint64_t referred_bytes_ = 0;
};

PushPlan::PushPlan(StoreReader& store, std::shared_ptr<StepReader> reader)
    : reader_(std::move(reader)),
      files_(std::make_unique<SegmentFiles>(store.file_system(), store.path(), /*direct=*/false)),
      sources_(std::make_unique<ChunkSources>(files_.get())) {}

Result<PushPlan> PushPlan::Make(StoreReader& store, std::shared_ptr<StepReader> reader,
                                std::vector<format::PushedStep> there) {
  if (HasOtherParts(reader->step())) return SavedBySeveral(reader->step().step);
  PushPlan plan(store, std::move(reader));
  STEPWELL_RETURN_IF_ERROR(Planner(&plan, there).Run());
  return plan;
}

Result<std::string> PushPlan::Fetch(const StoredPayload& payload) const {
  Result<std::string> bytes = sources_->Fetch(payload, /*part=*/0);
  if (bytes.ok()) return bytes;
  return bytes.status().WithContext(
      StrCat(files_->PathOf(payload.segment), ": offset ", payload.offset_bytes));
}

Result<std::string> PushPlan::Read(size_t object) const {
  std::string bytes;
  bytes.reserve(objects_[object].size_bytes);
  for (const StoredPayload& payload : objects_[object].payloads) {
    const Result<std::string> fetched = Fetch(payload);
    if (!fetched.ok()) return reader_->Explain(fetched.status());
    bytes += *fetched;
  }
  return bytes;
}

Result<std::string> PushPlan::List(std::span<const DataObject> made) const {
  format::PushedStep list = list_;
  list.objects = referred_;
  list.objects.insert(list.objects.end(), made.begin(), made.end());
  for (LeafRecord& leaf : list.leaves) {
    for (ChunkRecord& chunk : leaf.chunks) {
      format::EachPayload(chunk, [this](StoredPayload& payload) {
        if ((payload.segment & kNewObject) == 0) return;
        payload.segment = (payload.segment & ~kNewObject) + referred_.size();
      });
    }
  }
  std::string encoded = format::EncodePushedStep(list);
  if (encoded.size() > format::kPushedPartBytesMax) {
    return InvalidArgumentError(StrCat("the list of step ", list.step->step, " would take ",
                                       encoded.size(), " bytes, and a run's takes at most ",
                                       format::kPushedPartBytesMax,
                                       ": push the step as an Orbax checkpoint, or a part of it"));
  }
  return encoded;
}

}  // namespace stepwell::db
