// SPDX-License-Identifier: Apache-2.0
// The caller's side of a save: checks, admission, and the snapshot that the training loop waits
// for.
#include <algorithm>
#include <set>
#include <utility>

#include "db/group.h"
#include "db/layout.h"
#include "db/log/lock.h"
#include "db/read/step_reader.h"
#include "db/store/writer_store.h"
#include "format/key.h"
#include "format/piece.h"
#include "io/guard.h"
#include "io/mutex.h"

namespace stepwell::db {
namespace {

constexpr uint64_t kStepMax = (uint64_t{1} << 63) - 1;
// Blocks that are to be on their way to the disk while others are still copied.
constexpr size_t kStagedAheadOfDisk = 4;
constexpr int64_t kAskNanos = 100'000'000;
// Below this a snapshot is copied by the caller alone: handing it to workers costs more.
constexpr uint64_t kParallelCopyBytesMin = uint64_t{8} << 20;
// Bounds a text that goes into a frame whole. It is far below the bound of a frame.
constexpr uint64_t kTextBytesMax = uint64_t{16} << 20;

// Refuses input that decoders would refuse: once committed, it would make the log unreadable.
// `prefix` is that of the item's keys.
Status CheckLeafInput(const ItemInput& item, std::string_view prefix,
                      const format::LeafRecord& record) {
  if (!std::string_view(record.key).starts_with(prefix)) {
    return InvalidArgumentError(
        StrCat(InputName(record), ": its key is not below item '", item.name, "'"));
  }
  if (Status status = format::CheckLeafKey(record.key); !status.ok()) {
    return InvalidArgumentError(status.message());
  }
  if (record.value_type > format::ValueType::kComplex ||
      record.container > format::ContainerKind::kObject) {
    return InvalidArgumentError(StrCat(InputName(record), ": unknown type of value or container"));
  }
  const uint64_t text_bytes = record.type_name.size() + record.variable_types.size() +
                              record.prng_impl.size() + record.sharding_json.size();
  if (text_bytes > kTextBytesMax) {
    return InvalidArgumentError(StrCat(InputName(record), ": ", text_bytes,
                                       " bytes of description; the limit is ", kTextBytesMax));
  }
  return OkStatus();
}

bool IsFarInput(const LeafInput& leaf) { return !leaf.shards.empty() && leaf.shards.front().far; }

// Refuses mistakes of the caller at once. The rest of planning may come later.
Status CheckArrayInput(const LeafInput& leaf, bool in_group, bool has_source) {
  if (leaf.record.kind != format::LeafKind::kArray) return OkStatus();
  const bool asks = leaf.chunk_bytes_max > 0 || !leaf.chunk_axes.empty();
  const bool is_far = IsFarInput(leaf);
  const auto differs = [&](const ShardInput& shard) { return shard.far.has_value() != is_far; };
  Status status;
  if (leaf.partial && !in_group) {
    status = InvalidArgumentError("only a part of a step of several processes has parts of arrays");
  } else if ((is_far && (!has_source || !leaf.payloads.empty())) ||
             std::any_of(leaf.shards.begin(), leaf.shards.end(), differs)) {
    status = InvalidArgumentError("nothing has the bytes of its shards");
  } else if (asks && leaf.payloads.empty()) {
    status = WantedChunkShape(leaf, leaf.record.shape, leaf.shard_shape).status();
  }
  return status.ok() ? status : status.WithContext(InputName(leaf.record));
}

Status CheckRequest(const SaveRequest& request) {
  if (request.step > kStepMax) {
    return InvalidArgumentError(StrCat("step ", request.step, " is out of range: 0 to 2^63 - 1"));
  }
  if (request.items.empty()) return InvalidArgumentError("a step needs at least one item");
  const uint64_t text_bytes = request.metadata_json.size() + request.metrics_json.size();
  if (text_bytes > kTextBytesMax) {
    return InvalidArgumentError(StrCat("metadata and metrics of ", text_bytes,
                                       " bytes; the limit is ", kTextBytesMax,
                                       "; save large things as items"));
  }
  for (const ItemInput& item : request.items) {
    if (item.kind < format::ItemKind::kTree || item.kind > format::ItemKind::kFiles) {
      return InvalidArgumentError(StrCat("item '", item.name, "' is of an unknown kind"));
    }
    if (item.name.size() > format::kPathBytesMax) {
      return InvalidArgumentError(StrCat("an item's name of ", item.name.size(),
                                         " bytes; the limit is ", format::kPathBytesMax));
    }
  }
  return OkStatus();
}

// A part of a store takes parts of steps only; others need not know of groups at all.
Status CheckGroupSave(const std::string& path, const StoreGroup& own, bool opened_as_part,
                      const SaveRequest& request) {
  if (!request.group) {
    if (own.part == 0) return OkStatus();
    return FailedPreconditionError(StrCat(
        DescribePart(path, own), " and takes only its parts of steps; save into ", ParentOf(path)));
  }
  if (!opened_as_part) {
    return FailedPreconditionError(
        StrCat(path,
               ": a part of a step of many processes needs a store that is opened as a "
               "part (StoreOptions::group)"));
  }
  if (!request.retire.empty()) {
    return InvalidArgumentError(StrCat(path, ": step ", request.step,
                                       " of several processes retires others when it is decided"));
  }
  const std::vector<uint32_t>& parts = request.group->parts;
  const auto not_ascending = [](uint32_t a, uint32_t b) { return a >= b; };
  if (parts.empty() || parts.front() != 0 || parts.size() > format::kPartStoresMax ||
      std::adjacent_find(parts.begin(), parts.end(), not_ascending) != parts.end() ||
      !std::binary_search(parts.begin(), parts.end(), own.part)) {
    return InvalidArgumentError(StrCat(path, ": step ", request.step,
                                       ": the parts of a step are ascending, begin with 0 and "
                                       "have this one, ",
                                       own.part));
  }
  if (request.group->save_id == format::Id128{}) {
    return InvalidArgumentError(StrCat(path, ": step ", request.step, " has no save id"));
  }
  return OkStatus();
}

// A leaf of a request.
struct GivenLeaf {
  LeafInput* input;
  uint32_t item;

  const std::string& key() const { return input->record.key; }
};

// Moves the request's leaves into the job, ascending by key, and checks what can be checked now.
Status FillJob(SaveRequest request, SaveJob* job) {
  STEPWELL_RETURN_IF_ERROR(CheckRequest(request));
  job->step = request.step;
  job->ticket = request.ticket;
  job->is_copy = request.is_copy;
  job->taint = std::move(request.taint);
  job->metadata_json = std::move(request.metadata_json);
  job->metrics_json = std::move(request.metrics_json);
  size_t leaf_count = 0;
  for (const ItemInput& item : request.items) leaf_count += item.leaves.size();
  // Leaves are large: these are sorted in their place, and each leaf is moved once.
  std::vector<GivenLeaf> given;
  given.reserve(leaf_count);
  std::set<std::string> names;
  for (ItemInput& item : request.items) {
    if (!names.insert(item.name).second) {
      return InvalidArgumentError(StrCat("two items are named '", item.name, "'"));
    }
    const std::string prefix = format::EncodeItem(item.name);
    for (LeafInput& leaf : item.leaves) {
      STEPWELL_RETURN_IF_ERROR(CheckLeafInput(item, prefix, leaf.record));
      STEPWELL_RETURN_IF_ERROR(
          CheckArrayInput(leaf, request.group.has_value(), request.far != nullptr));
      given.push_back({&leaf, static_cast<uint32_t>(job->items.size())});
    }
    job->items.push_back({.name = item.name, .kind = item.kind});
  }
  if (!std::ranges::is_sorted(given, {}, &GivenLeaf::key)) {
    std::ranges::sort(given, {}, &GivenLeaf::key);
  }
  const auto same = std::ranges::adjacent_find(given, {}, &GivenLeaf::key);
  if (same != given.end()) {
    return InvalidArgumentError(
        StrCat(InputName(same->input->record), ": there are two leaves with this path"));
  }
  job->leaves.reserve(leaf_count);
  for (const auto& [input, item] : given) {
    PlannedLeaf& planned = job->leaves.emplace_back();
    planned.input = std::move(*input);
    planned.item = item;
  }
  return OkStatus();
}

Status PlanAll(CodecPolicy policy, std::span<const uint32_t> which, SaveJob* job) {
  for (const uint32_t i : which) {
    PlannedLeaf& leaf = job->leaves[i];
    if (Status status = PlanLeaf(policy, &leaf); !status.ok()) {
      return status.WithContext(InputName(leaf.input.record));
    }
  }
  FindTwins(job->leaves, which);
  return OkStatus();
}

uint64_t BytesOf(const PlannedLeaf& leaf) {
  const auto& record = leaf.input.record;
  if (record.kind != format::LeafKind::kArray) return leaf.input.value.size();
  const auto* dtype = format::FindDType(record.dtype);
  const uint64_t item_bytes = dtype == nullptr ? 1 : dtype->item_bytes;
  const auto bytes = [item_bytes](std::span<const uint64_t> shape) {
    const auto count = format::ElementCount(shape, item_bytes);
    return count.ok() ? *count * item_bytes : 0;
  };
  if (!leaf.input.partial) return bytes(record.shape);
  uint64_t sum = 0;
  for (const ShardInput& shard : leaf.input.shards) sum += bytes(shard.shape);
  return sum;
}

// Waits until as many copies are done as were started. Shared with worker tasks.
struct CopyLatch {
  // Also when an exception leaves the caller: the copies read the caller's memory.
  struct Waiter {
    explicit Waiter(CopyLatch* latch_) : latch(latch_) {}
    ~Waiter() { latch->Wait(); }
    Waiter(const Waiter&) = delete;
    Waiter& operator=(const Waiter&) = delete;
    CopyLatch* const latch;
  };

  io::Mutex mutex;
  io::CondVar done;
  size_t pending STEPWELL_GUARDED_BY(mutex) = 0;
  void Start() {
    const io::MutexLock lock(&mutex);
    ++pending;
  }
  void Done() {
    const io::MutexLock lock(&mutex);
    if (--pending == 0) done.NotifyAll();
  }
  void Wait() {
    const io::MutexLock lock(&mutex);
    while (pending > 0) done.Wait(&mutex);
  }
};

}  // namespace

Result<SaveHandle> WriterStore::Save(SaveRequest request) {
  STEPWELL_RETURN_IF_ERROR(CheckUsable());
  STEPWELL_RETURN_IF_ERROR(CheckGroupSave(path_, part_, options_.group.has_value(), request));
  const IfExists if_exists = request.if_exists;
  FarCopies far{request.far, options_.far_window_bytes, {}};
  const bool far_behind = request.far_behind && !environment_.inline_mode;
  // Once it said no, it is not asked again.
  std::function<bool()> keep_waiting;
  if (request.keep_waiting) {
    keep_waiting = [ask = std::move(request.keep_waiting), going = true]() mutable {
      going = going && ask();
      return going;
    };
  }
  const TraceSpan span(instruments_->trace.get(), Trace::Lane::kCaller, "snapshot", request.step);
  auto job = std::make_shared<SaveJob>();
  job->steps = std::move(request.retire);
  if (request.group) {
    format::GroupRecord& group = job->group.emplace();
    group.group_id = part_.part == 0 ? slot_.store_id : part_.group_id;
    group.part = part_.part;
    group.save_id = request.group->save_id;
    group.parts = request.group->parts;
  }
  job->times.start_ns = instruments_->Now();
  notices_->RecordRules();
  notices_->WarnIfNotKept(request.step, request.metrics_json);
  STEPWELL_RETURN_IF_ERROR(FillJob(std::move(request), job.get()));
  // The newest base is the best, so it is taken when nothing is to be waited for any more.
  STEPWELL_RETURN_IF_ERROR(changes_.WaitForPlace(job->step, keep_waiting));
  job->base = bases_->Take();
  if (job->base != nullptr) ReferTo(job->base.get(), job->ticket, job->leaves);
  std::vector<uint32_t> staged;
  auto held = std::make_shared<std::vector<uint32_t>>();
  uint64_t staged_bytes = 0;
  for (uint32_t i = 0; i < job->leaves.size(); ++i) {
    PlannedLeaf& leaf = job->leaves[i];
    leaf.recent = recent_.get();
    leaf.takes_statistics = options_.statistics || options_.on_nonfinite != OnNonfinite::kIgnore;
    const uint64_t bytes = BytesOf(leaf);
    job->estimated_bytes += bytes;
    if (IsFarInput(leaf.input)) {
      far.leaves.push_back(i);
      if (!far_behind) staged_bytes += bytes;
      continue;
    }
    // Values own their bytes, so only arrays without a hold are copied.
    if (leaf.input.record.kind == format::LeafKind::kArray && leaf.input.hold == nullptr) {
      staged.push_back(i);
      staged_bytes += bytes;
    } else {
      held->push_back(i);
    }
  }
  STEPWELL_RETURN_IF_ERROR(PlanAll(options_.codec, staged, job.get()));
  STEPWELL_RETURN_IF_ERROR(PlanAll(options_.codec, far.leaves, job.get()));
  for (BlockTask& block : PlanBlocks(job->leaves, staged, /*stage=*/true)) {
    job->staged_blocks.push_back(std::move(block));
  }

  const PanicOnUnwind ends_if_thrown(engine_.get());
  bool skip = false;
  const auto usable = [this] { return CheckUsable(); };
  STEPWELL_ASSIGN_OR_RETURN(job->state,
                            changes_.AdmitSave(job->step, if_exists, keep_waiting, usable, &skip));
  if (skip) return SaveHandle(job->state);
  if (staged_bytes > pool_->block_bytes() * pool_->block_count_max() &&
      !warned_staging_.exchange(true)) {
    Log(options_.log, LogLevel::kInfo,
        StrCat(path_, ": a step copies ", staged_bytes >> 20,
               " MiB, more than the staging memory (",
               pool_->block_bytes() * pool_->block_count_max() >> 20,
               " MiB): save waits while the first part is written; staging_bytes sets it"));
  }
  const SaveHandle handle(job->state);
  engine_->Post([this, job] { engine_->Begin(job); });
  const auto plan_held = [this, job, held] {
    const Status status = io::Guarded("plan a save", [&] {
      STEPWELL_RETURN_IF_ERROR(PlanAll(options_.codec, *held, job.get()));
      job->held_blocks = PlanBlocks(job->leaves, *held, /*stage=*/false);
      return OkStatus();
    });
    engine_->Post([this, job, status] { engine_->HeldPlanned(job.get(), status); });
  };
  environment_.workers->Run(plan_held);
  size_t dispatched = 0;
  Status status = Stage(job, /*first=*/0, keep_waiting, &dispatched);
  const auto done = [this, job](size_t count, const Status& outcome) {
    engine_->Post([this, job, count, outcome] { engine_->StagingDone(job.get(), count, outcome); });
  };
  job->times.snapshot_end_ns = instruments_->Now();
  io::Executor* const far_thread = far_behind && !far.leaves.empty() ? FarThread() : nullptr;
  if (status.ok() && far_thread != nullptr) {
    far_thread->Run([this, job, far, dispatched, done]() mutable {
      const Status copied = io::Guarded("copy from far away", [&] {
        return StageFar(job, far, /*keep_waiting=*/{}, &dispatched);
      });
      done(dispatched, copied);
    });
    return handle;
  }
  // Save returns the error of a copy: its caller still waits, and the step was not saved.
  bool tell = status.code() == StatusCode::kCancelled;
  if (status.ok() && !far.leaves.empty()) {
    status = StageFar(job, far, keep_waiting, &dispatched);
    job->times.snapshot_end_ns = instruments_->Now();
    tell = !status.ok();
  }
  done(dispatched, status);
  if (environment_.inline_mode) engine_->Step(/*wait=*/false);
  if (tell) {
    changes_.Forget(job->state);
    return status;
  }
  return handle;
}

// Copies what may change into blocks: those from number `first` on. Blocks whose chunks are stored
// raw are laid out as they will be written, so this copy is the only one.
Status WriterStore::Stage(const std::shared_ptr<SaveJob>& job, size_t first,
                          const std::function<bool()>& keep_waiting, size_t* dispatched) {
  const CopiedInto here(this);
  auto latch = std::make_shared<CopyLatch>();
  const CopyLatch::Waiter waits(latch.get());
  std::function<void()> pump;
  if (environment_.inline_mode) pump = [this] { engine_->Step(/*wait=*/false); };
  Trace* const trace = instruments_->trace.get();
  const bool parallel =
      environment_.workers->parallelism() > 1 && job->estimated_bytes >= kParallelCopyBytesMin;
  int64_t ask_at_ns = instruments_->Now() + kAskNanos;
  Status status;
  for (size_t i = first; i < job->staged_blocks.size() && !job->failed.load(); ++i) {
    // A save in many blocks may never wait long for one.
    if (keep_waiting && instruments_->Now() >= ask_at_ns) {
      ask_at_ns = instruments_->Now() + kAskNanos;
      if (!keep_waiting()) {
        status = SaveCancelled(path_, job->step);
        break;
      }
    }
    io::BufferPool::Block* block = pool_->Acquire(pump, keep_waiting);
    if (block == nullptr) {
      status = freeze_->Check();
      if (status.ok() && keep_waiting && !keep_waiting()) status = SaveCancelled(path_, job->step);
      if (status.ok()) status = ResourceExhaustedError("no memory for staging");
      break;
    }
    ++*dispatched;
    const BlockTask* const planned = &job->staged_blocks[i];
    const auto copy = [job, planned, block, trace](Trace::Lane lane) {
      return io::Guarded("copy a block", [&] {
        const TraceSpan span(trace, lane, "copy", job->step, planned->logical_bytes());
        StageBlock(job->leaves, *planned, block->memory.data());
        return OkStatus();
      });
    };
    const auto encode = [this, job, planned, block](const Status& copied) {
      EncodedBlock encoded;
      encoded.status = copied;
      if (!planned->in_place && copied.ok()) {
        engine_->Post([this, job, planned, block] { engine_->NeedOutput(job, planned, block); });
        return;
      }
      if (copied.ok()) {
        const EncodeTimer timer(instruments_.get(), &job->times, job->step,
                                planned->logical_bytes());
        encoded.status = io::Guarded("encode a block", [&] {
          encoded = EncodeBlock(job->leaves, *planned, block->memory.data(), engine_->block_bytes(),
                                block->memory.bytes());
          return encoded.status;
        });
      }
      engine_->PostEncoded(job, /*held=*/false, planned, block, std::move(encoded));
    };
    if (!parallel) {
      const Status copied = copy(Trace::Lane::kCaller);
      environment_.workers->Run([encode, copied] { encode(copied); });
      continue;
    }
    std::function<void()> task = [this, job, latch, copy, encode] {
      const Status copied = copy(Trace::Lane::kWorker);
      latch->Done();
      // The disk gets its work while the copies go on. The rest comes behind the copies still
      // queued: the caller waits for those only.
      if (job->staged_ahead.load() < kStagedAheadOfDisk) return encode(copied);
      environment_.workers->Run([encode, copied] { encode(copied); });
    };
    latch->Start();
    try {
      environment_.workers->Run(std::move(task));
    } catch (const std::bad_alloc&) {
      latch->Done();
      throw;
    }
  }
  return status;
}

}  // namespace stepwell::db
