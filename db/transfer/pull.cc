// SPDX-License-Identifier: Apache-2.0
#include "db/transfer/pull.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <set>
#include <tuple>
#include <utility>

#include "db/read/restore_plan.h"
#include "db/transfer/chain.h"
#include "db/transfer/local.h"
#include "format/codec.h"
#include "format/hash.h"
#include "format/key.h"
#include "io/buffer.h"

namespace stepwell::db {
namespace {

using format::ChunkRecord;
using format::LeafKind;
using format::LeafRecord;
using transfer::ListedChunk;
using transfer::ListedChunks;
using transfer::LocalSteps;

constexpr uint64_t kRangeBytesMax = uint64_t{8} << 20;  // unless it is a single payload
constexpr uint64_t kGapBytesMax = uint64_t{64} << 10;   // fetched, and dropped
constexpr uint64_t kArrayAlignment = 64;

uint64_t MachineMemoryBytes() {
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
         static_cast<uint64_t>(sysconf(_SC_PAGE_SIZE));
}

}  // namespace

struct PullPlan::State {
  // A leaf on its way, and where its bytes go.
  struct Leaf {
    const LeafRecord* record = nullptr;
    const format::DTypeInfo* dtype = nullptr;  // of arrays
    std::string item;
    std::byte* out = nullptr;
    std::vector<uint64_t> value_offsets;  // of chunks, in a value
  };
  // A chunk that lacks payloads.
  struct Chunk {
    const Leaf* leaf = nullptr;
    size_t index = 0;
    ListedChunk listed;
    size_t first = 0;  // the first payload that is fetched: what is below it is in `out` already
    std::vector<std::string> payloads;
    std::atomic<size_t> missing{0};
  };
  struct Want {
    size_t object = 0;
    uint64_t offset_bytes = 0;
    uint64_t length_bytes = 0;
    Chunk* chunk = nullptr;
    size_t payload = 0;
    bool done = false;  // by the one thread that has its range
  };

  explicit State(format::PushedStep step) : list(std::move(step)), chunks_of(list) {}

  Status Plan(StoreReader& store, const PullOptions& options);
  Status Select(const std::vector<std::string>& names);
  Status TakeMemory(uint64_t bytes_max);
  Status PlanChunks(const Leaf& leaf, LocalSteps* local);
  void PlanRanges();
  void Put(const Leaf& leaf, size_t chunk, ConstBytes bytes) const;
  std::vector<std::byte> Base(const Chunk& chunk) const;
  Status Decode(Chunk* chunk) const;
  LeafInput Input(const Leaf& leaf) const;

  format::PushedStep list;
  ListedChunks chunks_of;
  bool selected = false;  // some of its items only
  std::vector<const format::ItemRecord*> items;
  std::deque<Leaf> leaves;
  std::shared_ptr<io::AlignedBuffer> memory;
  std::deque<Chunk> chunks;
  std::vector<Want> wants;  // by place
  std::vector<PullRange> ranges;
  std::vector<std::pair<size_t, size_t>> range_wants;  // begin and end in `wants`
  std::atomic<size_t> chunks_left{0};
};

// Which items are wanted, and their leaves.
Status PullPlan::State::Select(const std::vector<std::string>& names) {
  selected = !names.empty();
  std::set<std::string> wanted(names.begin(), names.end());
  std::set<std::string> there;
  for (const format::ItemRecord& item : list.step->items) {
    if (!there.insert(item.name).second) return DataLossError("an item is listed twice");
    if (!selected || wanted.contains(item.name)) items.push_back(&item);
  }
  for (const std::string& name : wanted) {
    if (!there.contains(name)) return NotFoundError(StrCat("there is no item \"", name, "\""));
  }
  for (const LeafRecord& record : list.leaves) {
    STEPWELL_RETURN_IF_ERROR(CheckLeaf(record));
    STEPWELL_ASSIGN_OR_RETURN(const format::LeafKey key, format::DecodeLeafKey(record.key));
    if (!there.contains(key.item)) return DataLossError("a leaf of an item that is not listed");
    if (selected && !wanted.contains(key.item)) continue;
    Leaf& leaf = leaves.emplace_back();
    leaf.record = &record;
    leaf.item = key.item;
    if (record.kind == LeafKind::kArray) {
      leaf.dtype = format::FindDType(record.dtype);
      const uint64_t item_bytes = leaf.dtype->item_bytes;
      STEPWELL_ASSIGN_OR_RETURN(const uint64_t count,
                                format::ElementCount(record.shape, item_bytes));
      if (record.logical_bytes != count * item_bytes) {
        return DataLossError(StrCat("leaf ", LeafName(record), ": ", record.logical_bytes,
                                    " bytes where its shape has ", count * item_bytes));
      }
    }
    uint64_t offset = 0;
    for (size_t i = 0; i < record.chunks.size(); ++i) {
      STEPWELL_RETURN_IF_ERROR(CheckChunk(record, i));
      if (record.kind != LeafKind::kValue) continue;
      leaf.value_offsets.push_back(offset);
      offset += record.chunks[i].logical_bytes;
    }
  }
  return OkStatus();
}

Status PullPlan::State::TakeMemory(uint64_t bytes_max) {
  uint64_t total = 0;
  for (const Leaf& leaf : leaves) {
    const uint64_t bytes = leaf.record->chunks.empty() ? 0 : leaf.record->logical_bytes;
    if (bytes > bytes_max || total > bytes_max - bytes) {
      return ResourceExhaustedError(
          StrCat("the step needs more memory than the ", bytes_max, " bytes that there are"));
    }
    total += AlignUp(bytes, kArrayAlignment);
  }
  memory = std::make_shared<io::AlignedBuffer>(std::max<uint64_t>(total, kArrayAlignment));
  if (!*memory) return ResourceExhaustedError(StrCat("no memory for a step of ", total, " bytes"));
  std::byte* at = memory->data();
  for (Leaf& leaf : leaves) {
    if (leaf.record->chunks.empty()) continue;
    leaf.out = at;
    at += AlignUp(leaf.record->logical_bytes, kArrayAlignment);
  }
  return OkStatus();
}

// A decoded chunk to where it belongs. Different chunks go to different bytes.
void PullPlan::State::Put(const Leaf& leaf, size_t chunk, ConstBytes bytes) const {
  const LeafRecord& record = *leaf.record;
  if (leaf.dtype == nullptr) {
    std::copy(bytes.begin(), bytes.end(), leaf.out + leaf.value_offsets[chunk]);
    return;
  }
  const auto strides = format::CStrides(record.shape, leaf.dtype->item_bytes);
  format::ScatterChunk(bytes, *leaf.dtype, record.shape, record.chunk_shape, chunk,
                       format::WholeArray(record.shape), {leaf.out, record.shape, strides});
}

// The chunk's bytes as Put has got them.
std::vector<std::byte> PullPlan::State::Base(const Chunk& chunk) const {
  const Leaf& leaf = *chunk.leaf;
  const LeafRecord& record = *leaf.record;
  std::vector<std::byte> bytes(chunk.listed.chunk->logical_bytes);
  if (chunk.first == 0) return bytes;  // a keyframe comes first: nothing is below it
  if (leaf.dtype == nullptr) {
    const std::byte* const from = leaf.out + leaf.value_offsets[chunk.index];
    std::copy(from, from + bytes.size(), bytes.begin());
    return bytes;
  }
  const auto strides = format::CStrides(record.shape, leaf.dtype->item_bytes);
  format::GatherChunk({leaf.out, record.shape, strides}, *leaf.dtype, record.chunk_shape,
                      chunk.index, bytes.data());
  return bytes;
}

Status PullPlan::State::PlanChunks(const Leaf& leaf, LocalSteps* local) {
  const LeafRecord& record = *leaf.record;
  for (size_t i = 0; i < record.chunks.size(); ++i) {
    const ListedChunk listed = chunks_of.At(record, i);
    size_t first = 0;
    // From the content of the chunk itself down to that of its keyframe.
    for (size_t have = listed.payloads(); have > 0 && first == 0; --have) {
      const auto bytes = local->Find(record, i, listed.hash(have - 1));
      if (!bytes) continue;
      Put(leaf, i, AsBytes(*bytes));
      first = have;
    }
    if (first == listed.payloads()) continue;
    Chunk& chunk = chunks.emplace_back();
    chunk.leaf = &leaf;
    chunk.index = i;
    chunk.listed = listed;
    chunk.first = first;
    chunk.payloads.resize(listed.payloads());
    chunk.missing = listed.payloads() - first;
    for (size_t j = first; j < listed.payloads(); ++j) {
      const format::StoredPayload& payload = listed.payload(j);
      wants.push_back(
          {payload.segment, payload.offset_bytes, payload.stored_bytes, &chunk, j, false});
    }
  }
  return OkStatus();
}

void PullPlan::State::PlanRanges() {
  const auto place = [](const Want& want) {
    return std::tuple(want.object, want.offset_bytes, want.length_bytes);
  };
  std::ranges::stable_sort(wants, {}, place);
  for (size_t i = 0; i < wants.size(); ++i) {
    const Want& want = wants[i];
    const uint64_t end = want.offset_bytes + want.length_bytes;
    if (!ranges.empty() && ranges.back().object == want.object) {
      PullRange& range = ranges.back();
      const uint64_t range_end = range.offset_bytes + range.length_bytes;
      const bool is_near =
          want.offset_bytes <= range_end || want.offset_bytes - range_end <= kGapBytesMax;
      const uint64_t both = std::max(range_end, end) - range.offset_bytes;
      // What overlaps is fetched once, whatever a forged list says.
      if (want.offset_bytes < range_end || (is_near && both <= kRangeBytesMax)) {
        range.length_bytes = both;
        range_wants.back().second = i + 1;
        continue;
      }
    }
    ranges.push_back({want.object, want.offset_bytes, want.length_bytes});
    range_wants.emplace_back(i, i + 1);
  }
  chunks_left = chunks.size();
}

Status PullPlan::State::Plan(StoreReader& store, const PullOptions& options) {
  STEPWELL_RETURN_IF_ERROR(Select(options.items));
  const uint64_t bytes_max =
      options.memory_bytes_max > 0 ? options.memory_bytes_max : MachineMemoryBytes();
  STEPWELL_RETURN_IF_ERROR(TakeMemory(bytes_max));
  STEPWELL_ASSIGN_OR_RETURN(auto local, LocalSteps::Near(store, list.step->step));
  for (const Leaf& leaf : leaves) STEPWELL_RETURN_IF_ERROR(PlanChunks(leaf, local.get()));
  PlanRanges();
  return OkStatus();
}

Status PullPlan::State::Decode(Chunk* chunk) const {
  std::vector<std::byte> bytes = Base(*chunk);
  format::Hash128 hash;
  STEPWELL_RETURN_IF_ERROR(transfer::DecodePayloads(
      *chunk->listed.chunk, chunk->first,
      [chunk](size_t i, const format::StoredPayload&) -> Result<std::string> {
        return std::move(chunk->payloads[i]);
      },
      [&hash](size_t, const format::Hash128& decoded) { hash = decoded; }, bytes));
  if (hash != chunk->listed.chunk->hash) {
    return DataLossError("its payloads lead to other bytes than were pushed");
  }
  Put(*chunk->leaf, chunk->index, bytes);
  chunk->payloads = {};
  return OkStatus();
}

LeafInput PullPlan::State::Input(const Leaf& leaf) const {
  LeafInput input;
  input.record = *leaf.record;
  input.record.chunks.clear();
  input.record.chunk_count = 0;
  if (leaf.dtype != nullptr) {  // on the same grid, so that chunks are compared one by one
    input.data = leaf.out;
    input.shard_shape = input.record.shard_shape;
    input.hold = memory;
  } else if (input.record.kind == LeafKind::kValue) {
    input.value = std::move(input.record.inline_value);
    input.record.inline_value.clear();
    if (leaf.out != nullptr) {
      input.value.assign(reinterpret_cast<const char*>(leaf.out), input.record.logical_bytes);
    }
  }
  return input;
}

PullPlan::PullPlan(std::unique_ptr<State> state) : state_(std::move(state)) {}
PullPlan::PullPlan(PullPlan&&) noexcept = default;
PullPlan& PullPlan::operator=(PullPlan&&) noexcept = default;
PullPlan::~PullPlan() = default;

Result<PullPlan> PullPlan::Make(StoreReader& store, format::PushedStep list,
                                const PullOptions& options) {
  auto state = std::make_unique<State>(std::move(list));
  STEPWELL_RETURN_IF_ERROR(state->Plan(store, options));
  return PullPlan(std::move(state));
}

const format::PushedStep& PullPlan::list() const { return state_->list; }
const std::vector<PullRange>& PullPlan::ranges() const { return state_->ranges; }

Status PullPlan::Accept(size_t range, ConstBytes bytes) {
  const PullRange& wanted = state_->ranges[range];
  if (bytes.size() != wanted.length_bytes) {
    return DataLossError(
        StrCat("an object ends early: ", bytes.size(), " of ", wanted.length_bytes, " bytes"));
  }
  const auto [begin, end] = state_->range_wants[range];
  for (size_t i = begin; i < end; ++i) {
    State::Want& want = state_->wants[i];
    if (want.done) continue;
    State::Chunk& chunk = *want.chunk;
    const auto name = [&] {
      return StrCat("leaf ", LeafName(*chunk.leaf->record), " chunk ", chunk.index);
    };
    const ConstBytes payload =
        bytes.subspan(want.offset_bytes - wanted.offset_bytes, want.length_bytes);
    STEPWELL_RETURN_IF_ERROR(
        format::CheckPayload(payload, chunk.listed.payload(want.payload).crc).WithContext(name()));
    chunk.payloads[want.payload] = AsText(payload);
    want.done = true;
    if (chunk.missing.fetch_sub(1) > 1) continue;
    STEPWELL_RETURN_IF_ERROR(state_->Decode(&chunk).WithContext(name()));
    state_->chunks_left.fetch_sub(1);
  }
  return OkStatus();
}

Result<SaveRequest> PullPlan::Request() {
  if (state_->chunks_left != 0) {
    return FailedPreconditionError("some of the step was not fetched, or is damaged");
  }
  SaveRequest request;
  request.step = state_->list.step->step;
  request.is_copy = true;
  request.taint = state_->list.step->taint;
  request.metadata_json = state_->list.step->metadata_json;
  if (!state_->selected) request.metrics_json = state_->list.step->metrics_json;
  for (const format::ItemRecord* record : state_->items) {
    ItemInput& item = request.items.emplace_back();
    item.name = record->name;
    item.kind = record->kind;
    for (const State::Leaf& leaf : state_->leaves) {
      if (leaf.item == record->name) item.leaves.push_back(state_->Input(leaf));
    }
  }
  state_->memory.reset();
  return request;
}

}  // namespace stepwell::db
