// SPDX-License-Identifier: Apache-2.0
#include "db/store/writer_store.h"

#include <unistd.h>

#include <algorithm>
#include <thread>

#include "db/commit/ballast.h"
#include "db/group.h"
#include "db/layout.h"
#include "db/log/footprint.h"
#include "db/log/lock.h"
#include "db/log/pins.h"
#include "db/log/step_records.h"
#include "db/read/step_reader.h"
#include "db/store/open_log.h"
#include "db/store/trace_file.h"
#include "io/guard.h"
#include "io/thread.h"

namespace stepwell::db {
namespace {

constexpr uint64_t kStagingBytesDefaultMax = uint64_t{1} << 30;
constexpr uint64_t kStagingShareOfMemory = 8;
// Enough for the first save of a small state, while the store opens.
constexpr size_t kPrefaultedBlocks = 4;

Result<size_t> StagingBlocks(const StoreOptions& options) {
  uint64_t bytes = options.staging_bytes;
  if (bytes == 0) {
    const uint64_t memory = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
                            static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    bytes = std::min(kStagingBytesDefaultMax, memory / kStagingShareOfMemory);
  }
  const size_t blocks = bytes / kBlockBytes;
  if (blocks < 4) {
    return InvalidArgumentError(StrCat("staging_bytes is ", bytes, "; at least ", 4 * kBlockBytes,
                                       " (four blocks of ", kBlockBytes, ") are needed"));
  }
  return blocks;
}

// Makes all blocks, some at a time: a save's work comes in between.
void WarmUp(const std::shared_ptr<io::Executor>& workers,
            const std::shared_ptr<io::BufferPool>& pool) {
  workers->Run([workers, pool] {
    if (pool->Prefault(kPrefaultedBlocks)) WarmUp(workers, pool);
  });
}

}  // namespace

WriterStore::WriterStore(std::string path, const StoreOptions& options, Environment environment,
                         std::unique_ptr<io::File> lock_file)
    : path_(std::move(path)),
      options_(options),
      pid_(getpid()),
      environment_(std::move(environment)),
      held_root_(std::exchange(environment_.held_root, nullptr)),
      lock_file_(std::move(lock_file)),
      core_(std::make_shared<ReadCore>()),
      instruments_(std::make_shared<Instruments>(environment_.clock, path_, options_.log)),
      changes_(ChangesOptions()) {
  core_->environment = environment_.ForReaders();
  core_->files = std::make_unique<SegmentFiles>(environment_.file_system, path_);
  core_->footprints = std::make_unique<FootprintCache>(core_->files.get());
  core_->restorer = std::make_unique<Restorer>(core_->files.get(), environment_.workers.get(),
                                               environment_.make_disk);
  core_->parts = std::make_shared<PartStores>(path_, core_->environment, core_->files.get());
  ScopeTasks();
}

ChangesInFlight::Options WriterStore::ChangesOptions() {
  ChangesInFlight::Options changes;
  changes.path = path_;
  changes.live = &core_->live;
  changes.instruments = instruments_.get();
  changes.callbacks = environment_.callbacks;
  if (environment_.inline_mode) changes.pump = [this] { engine_->Step(/*wait=*/false); };
  return changes;
}

// After readers took the workers: what they do there may go on behind Close.
void WriterStore::ScopeTasks() {
  const auto thrown = [this] {
    if (engine_ != nullptr) engine_->Panic(io::NoMemoryTo("go on in the background"));
  };
  const auto scope = [&](std::shared_ptr<io::Executor>* executor) {
    auto tasks = std::make_shared<io::TaskScope>(*executor, thrown);
    *executor = tasks;
    return tasks;
  };
  worker_tasks_ = scope(&environment_.workers);
  encoder_tasks_ = scope(&environment_.encoders);
  index_tasks_ = scope(&environment_.index_worker);
  reclaim_tasks_ = scope(&environment_.reclaim_worker);
}

WriterStore::~WriterStore() {
  if (getpid() != pid_) {
    LeakAfterFork();
    return;
  }
  io::Quietly([this] { Close().IgnoreError("call Close for the error"); });
}

// In a forked child no thread of the store exists and nothing of it may be touched: its memory is a
// copy of its own, its descriptors are closed already.
void WriterStore::LeakAfterFork() {
  (void)new Environment(std::move(environment_));
  (void)new auto(std::move(worker_tasks_));
  (void)new auto(std::move(encoder_tasks_));
  (void)new auto(std::move(index_tasks_));
  (void)new auto(std::move(reclaim_tasks_));
  (void)new auto(std::move(far_tasks_));
  (void)new std::shared_ptr<ReadCore>(std::move(core_));
  (void)lock_file_.release();
  (void)slot_file_.release();
  (void)new std::shared_ptr<Instruments>(std::move(instruments_));
  (void)recent_.release();
  (void)new std::shared_ptr<io::BufferPool>(std::move(pool_));
  (void)disk_.release();
  (void)engine_.release();
  (void)thread_.release();
  (void)mailbox_.release();
}

Result<std::unique_ptr<Store>> WriterStore::Open(const std::string& path,
                                                 const StoreOptions& options,
                                                 Environment environment,
                                                 std::unique_ptr<io::File> lock_file) {
  STEPWELL_ASSIGN_OR_RETURN(const size_t blocks, StagingBlocks(options));
  std::unique_ptr<WriterStore> store(
      new WriterStore(path, options, std::move(environment), std::move(lock_file)));
  CloseInForkedChild(store.get(), store->lock_file_->descriptor());
  // A few blocks stay for encoders of held arrays and for transcoding.
  store->pool_ = std::make_shared<io::BufferPool>(kBlockBytes, blocks, 2);
  if (options.delta) store->recent_ = std::make_unique<RecentChunks>(store->pool_.get());
  STEPWELL_ASSIGN_OR_RETURN(store->instruments_->trace,
                            OpenTrace(path, options.trace_path, store->environment_.file_system,
                                      store->environment_.clock));
  if (!store->environment_.inline_mode) {
    store->environment_.workers->Run([pool = store->pool_] { pool->Prefault(kPrefaultedBlocks); });
    // On all threads: the kernel clears memory on the one that touches it.
    const size_t threads = options.warm ? store->environment_.workers->parallelism() : 0;
    for (size_t i = 0; i < threads; ++i) WarmUp(store->environment_.workers, store->pool_);
  }
  STEPWELL_RETURN_IF_ERROR(store->Recover());  // the destructor closes what was started
  return std::unique_ptr<Store>(std::move(store));
}

Status WriterStore::Recover() {
  io::FileSystem* file_system = environment_.file_system;
  // Some may be missing in a store that is there: an unfinished creation, a copy without empty
  // ones.
  STEPWELL_RETURN_IF_ERROR(MakeStoreDirectories(file_system, path_));
  STEPWELL_RETURN_IF_ERROR(file_system->SyncDirectory(path_));
  STEPWELL_ASSIGN_OR_RETURN(slot_file_,
                            SlotFile::Open(file_system, path_, /*write=*/true, freeze_));
  STEPWELL_RETURN_IF_ERROR(LockSlotFile(slot_file_->file(), path_, options_.lock_timeout));
  CloseInForkedChild(this, slot_file_->file()->descriptor());
  STEPWELL_ASSIGN_OR_RETURN(slot_, slot_file_->Read());
  part_ = {slot_.group_id, slot_.part};
  STEPWELL_RETURN_IF_ERROR(CheckPart(path_, slot_, options_.group));
  if (slot_.part != 0 && !options_.group) {
    return FailedPreconditionError(StrCat(DescribePart(path_, part_),
                                          " and cannot be written to by itself; open ",
                                          ParentOf(path_), " for writing, or this for reading"));
  }
  STEPWELL_ASSIGN_OR_RETURN(const LogState state, ReadLog(path_, options_, slot_, *core_));
  recovery_ = state.report;
  // Losses of earlier sessions are reported until they are accepted.
  if (recovery_.clean) {
    for (const format::LossRecord& loss : state.losses) {
      recovery_.problems.push_back(DescribeLoss(loss));
    }
  }
  core_->live.Load(state);
  LogRecovery(path_, options_.log, recovery_, !core_->live.Losses().empty());
  MakeIndex();
  if (NeedsMetrics(options_.keep)) LoadMetrics(path_, options_.log, core_.get());
  STEPWELL_ASSIGN_OR_RETURN(disk_, environment_.make_disk());
  // Before anything that they show is erased. They have threads of their own.
  if (!environment_.inline_mode) views_.OpenRemembered(this, file_system, options_.log);
  STEPWELL_RETURN_IF_ERROR(StartEngine(state));
  views_.Start();
  core_->live.OnRelease([this] {
    if (getpid() != pid_) return;
    // In a destructor; else space is given back later.
    io::Quietly([this] { engine_->Post([this] { engine_->reclaim().PinReleased(); }); });
  });
  if (!options_.unpublished) KeepBallast(file_system, path_, /*anew=*/true);
  RewriteDamaged(state.damaged_frames);
  notices_ = std::make_unique<RetentionNotices>(RetentionNotices::Options{
      .path = path_,
      .keep = options_.keep,
      .is_part = part_.part != 0,
      .since = state.tip_commit,
      .log = options_.log,
      .live = &core_->live,
      .file_system = file_system,
  });
  notices_->WarnAtOpen();
  OpenMailbox();
  return OkStatus();
}

// Not of a group's part: what changes one part alone would part it from the others.
void WriterStore::OpenMailbox() {
  if (environment_.inline_mode || options_.group) return;
  auto mailbox = Mailbox::Start(this, options_.log, lock_file_.get());
  if (mailbox.ok()) {
    mailbox_ = std::move(*mailbox);
    return;
  }
  Log(options_.log, LogLevel::kWarning,
      StrCat(path_, ": requests of other processes are not served: ", mailbox.status().message()));
}

void WriterStore::MakeIndex() {
  IndexKeeper::Options index;
  index.environment = environment_;
  index.store_path = path_;
  index.store_id = slot_.store_id;
  index.files = core_->files.get();
  index.live = &core_->live;
  index.log = options_.log;
  index.instruments = instruments_;
  core_->index = std::make_unique<IndexKeeper>(std::move(index));
}

Status WriterStore::StartEngine(const LogState& state) {
  EngineOptions engine;
  engine.environment = environment_;
  engine.store_path = path_;
  engine.slot = slot_;
  engine.freeze = freeze_;
  engine.slot_file = slot_file_.get();
  engine.files = core_->files.get();
  engine.live = &core_->live;
  engine.index = core_->index.get();
  bases_ = std::make_unique<NewestBases>(&core_->live, core_->files.get());
  engine.bases = bases_.get();
  engine.instruments = instruments_.get();
  engine.pool = pool_.get();
  engine.disk = disk_.get();
  engine.keep = options_.keep;
  engine.on_nonfinite = options_.on_nonfinite;
  engine.reclaim_bytes_per_second = options_.reclaim_bytes_per_second;
  engine.footprints = core_->footprints.get();
  engine.segment_bytes_max = options_.segment_bytes;
  engine.log = options_.log;
  engine.slots_made_anew = [this](io::File* file) { CloseInForkedChild(this, file->descriptor()); };
  engine.end_changes = [this] { changes_.EndAll(); };
  engine_ = std::make_unique<Engine>(std::move(engine));

  if (!environment_.inline_mode) {
    thread_ = std::make_unique<std::thread>();
    auto thread = io::StartThread("stepwell-engine", [this] {
      while (!stop_.load()) engine_->Step(/*wait=*/true);
    });
    if (!thread.ok()) {
      engine_.reset();  // nothing to end: no thread would answer
      thread_.reset();
      return thread.status().WithContext(path_);
    }
    *thread_ = std::move(thread).value();
  }
  return OnEngine([&] {
    // The ring keeps the locks until its last write is done, even after SIGKILL.
    disk_->RegisterFile(lock_file_.get());
    disk_->RegisterFile(slot_file_->file());
    return engine_->Start(state);
  });
}

Status WriterStore::OnEngine(const std::function<Status()>& task) {
  if (environment_.inline_mode) return task();
  struct Call {
    io::Mutex mutex;
    io::CondVar done;
    bool finished STEPWELL_GUARDED_BY(mutex) = false;
    Status status STEPWELL_GUARDED_BY(mutex);
  } call;
  engine_->Post([&] {
    bool thrown = true;
    Status guarded = io::Guarded("run a call in the engine", [&] {
      Status outcome = task();
      thrown = false;
      return outcome;
    });
    if (thrown) engine_->Panic(guarded);
    const io::MutexLock lock(&call.mutex);
    call.status = std::move(guarded);
    call.finished = true;
    call.done.NotifyAll();
  });
  const io::MutexLock lock(&call.mutex);
  while (!call.finished) call.done.Wait(&call.mutex);
  return std::move(call.status);
}

Status WriterStore::NoStep(uint64_t step) const {
  std::vector<uint64_t> known;
  for (const auto& live : core_->live.All()) known.push_back(live->record.step);
  return StepNotFound(path_, step, known);
}

Status WriterStore::CheckUsable() const {
  STEPWELL_RETURN_IF_ERROR(CheckNotForked(pid_));
  const Status frozen = freeze_->Check();
  if (frozen.ok()) return frozen;
  return FailedPreconditionError(
      StrCat(path_,
             ": the store is frozen after an earlier error and can only be read; close it and open "
             "it again: ",
             freeze_->first_error().message()));
}

Status WriterStore::Wait() {
  STEPWELL_RETURN_IF_ERROR(CheckNotForked(pid_));
  changes_.WaitForChanges();
  return TakeError();
}

Status WriterStore::TakeError() { return changes_.TakeError(); }

}  // namespace stepwell::db
