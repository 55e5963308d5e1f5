// SPDX-License-Identifier: Apache-2.0
#include "db/index/index.h"

#include <rocksdb/cache.h>
#include <rocksdb/convenience.h>
#include <rocksdb/db.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <utility>

#include "db/index/env.h"
#include "format/endian.h"
#include "format/key.h"
#include "io/guard.h"
#include "io/rocks_file_system.h"

namespace stepwell::db {
namespace {

constexpr size_t kBlockCacheBytes = size_t{8} << 20;
// RocksDB 7.8.3 aborts when opened on a full disk; the adapter keeps it from seeing that, but an
// index that cannot be written is of no use.
constexpr uint64_t kFreeBytesMin = uint64_t{8} << 20;
constexpr size_t kJobsMax = 10000;  // of one flush; far beyond what any needs

// RocksDB ends the process where some of its functions meet no memory: it is only entered while
// there is more than they take.
constexpr size_t kSpareBytes = size_t{16} << 20;

// The row of the default family: version (4 bytes), store id (16), applied commit (8) and its
// frame's CRC (4), complete (1). Version 1 had neither of the last two, and no pins in its rows.
constexpr char kMetaKey[] = "stepwell";
constexpr uint32_t kMetaVersion = 2;
constexpr size_t kMetaBytes = 33;

struct Meta {
  uint64_t applied_commit = 0;
  uint32_t applied_crc = 0;
  bool complete = false;
};

std::string EncodeMeta(const format::Id128& store_id, const Meta& meta) {
  std::array<std::byte, kMetaBytes> row{};
  format::StoreLittle(row.data(), kMetaVersion);
  std::transform(store_id.begin(), store_id.end(), row.begin() + 4,
                 [](uint8_t byte) { return std::byte{byte}; });
  format::StoreLittle(row.data() + 20, meta.applied_commit);
  format::StoreLittle(row.data() + 28, meta.applied_crc);
  row[32] = std::byte{meta.complete};
  return std::string(AsText(row));
}

Result<Meta> DecodeMeta(std::string_view row, const format::Id128& store_id) {
  if (row.size() < sizeof(kMetaVersion)) return DataLossError("index: its meta row is cut short");
  const auto version = format::LoadLittle<uint32_t>(AsBytes(row).data());
  if (version != kMetaVersion) {
    return DataLossError(StrCat("index: version ", version, "; this library has ", kMetaVersion));
  }
  if (row.size() != kMetaBytes) return DataLossError("index: its meta row has a wrong length");
  const std::byte* const fields = AsBytes(row).data() + 20;
  const Meta meta{format::LoadLittle<uint64_t>(fields), format::LoadLittle<uint32_t>(fields + 8),
                  row.back() != 0};
  if (row != EncodeMeta(store_id, meta)) {
    return DataLossError("index: it belongs to another store");
  }
  return meta;
}

// RocksDB 7.8.3 keeps one thread of its own, a timer that flushes the info log; no option turns it
// off. Its static destructor waits for ever for that thread in a forked child that leaves by
// exit(). Registered after the timer is made, this runs right before it goes, and leaves such a
// child.
void LeaveForkedChild(int exit_status, void* opener) {
  if (static_cast<intptr_t>(getpid()) == reinterpret_cast<intptr_t>(opener)) return;
  std::fflush(nullptr);
  _exit(exit_status);
}

void GuardForkedChildren() {
  static const int registered =
      // It carries a number: NOLINTNEXTLINE(performance-no-int-to-ptr)
      on_exit(LeaveForkedChild, reinterpret_cast<void*>(static_cast<intptr_t>(getpid())));
  static_cast<void>(registered);
}

bool IsRocksName(std::string_view name) {
  const auto starts = [&](std::string_view prefix) { return name.starts_with(prefix); };
  if (name == "CURRENT" || name == "IDENTITY" || name == "LOCK" || name == "LOG") return true;
  if (starts("LOG.old") || starts("MANIFEST-") || starts("OPTIONS-")) return true;
  const size_t digits = name.find_first_not_of("0123456789");
  if (digits == 0 || digits == std::string_view::npos) return false;
  const std::string_view suffix = name.substr(digits);
  return suffix == ".sst" || suffix == ".log" || suffix == ".dbtmp" || suffix == ".blob";
}

Status BrokenError() { return FailedPreconditionError("index: given up after an exception in it"); }

constexpr size_t kWriteBufferBytes = size_t{64} << 20;  // the engine flushes long before

rocksdb::DBOptions MakeDbOptions(JobQueueEnv* env, std::shared_ptr<ErrorKeeper> errors) {
  rocksdb::DBOptions options;
  options.env = env;
  options.create_if_missing = true;
  options.create_missing_column_families = true;
  options.atomic_flush = true;
  options.paranoid_checks = true;
  options.avoid_flush_during_shutdown = true;  // would wait for a job that no thread runs
  options.max_bgerror_resume_count = 0;
  options.max_background_jobs = 2;
  options.max_file_opening_threads = 1;  // the calling one
  options.max_open_files = -1;           // so a missing table is found at open
  options.max_manifest_file_size = size_t{4} << 20;
  options.info_log = std::make_shared<SilentLogger>();
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  options.skip_stats_update_on_db_open = true;
  options.allow_concurrent_memtable_write = false;
  options.enable_write_thread_adaptive_yield = false;
  options.allow_fallocate = false;
  options.allow_mmap_reads = false;
  options.allow_mmap_writes = false;
  options.delete_obsolete_files_period_micros = uint64_t{1} << 60;  // nothing depends on time
  options.listeners = {std::move(errors)};
  return options;
}

rocksdb::ColumnFamilyOptions MakeFamilyOptions(const std::shared_ptr<rocksdb::Cache>& cache) {
  rocksdb::ColumnFamilyOptions options;
  options.write_buffer_size = kWriteBufferBytes;
  options.arena_block_size = size_t{1} << 20;
  options.target_file_size_base = uint64_t{32} << 20;
  // Nothing may stall: the thread that would wait is the one that runs the jobs.
  options.max_write_buffer_number = 16;
  options.level0_slowdown_writes_trigger = 1 << 20;
  options.level0_stop_writes_trigger = 1 << 20;
  options.soft_pending_compaction_bytes_limit = 0;
  options.hard_pending_compaction_bytes_limit = 0;
  options.ttl = 0;
  options.periodic_compaction_seconds = 0;
  options.compression = rocksdb::kNoCompression;
  for (const rocksdb::CompressionType type : rocksdb::GetSupportedCompressions()) {
    if (type == rocksdb::kLZ4Compression) options.compression = type;
  }
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = cache;
  table.block_size = size_t{16} << 10;
  table.checksum = rocksdb::kXXH3;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

}  // namespace

// RocksDB is not exception-safe: after one (memory) the index is not used any more.
template <typename Call>
Status Index::Guard(const char* what, Call call) noexcept {
  if (!io::HasMemory(kSpareBytes)) return io::NoMemoryTo(what);
  try {
    return call();
  } catch (const std::exception& error) {
    broken_ = true;
    return io::CannotDo(what, error);
  }
}

template <typename T, typename Call>
Result<T> Index::GuardRead(Call call) {
  if (broken_) return BrokenError();
  try {
    return call();
  } catch (const std::exception& error) {
    broken_ = true;
    return io::CannotDo("read the index", error);
  }
}

Index::Index(const Options& options)
    : path_(options.path),
      store_id_(options.store_id),
      freeze_(options.freeze ? options.freeze : std::make_shared<io::Freeze>()),
      errors_(std::make_shared<ErrorKeeper>()),
      env_(std::make_unique<JobQueueEnv>(io::MakeRocksFileSystem(options.file_system, freeze_))) {}

Index::~Index() {
  if (!broken_ && io::HasMemory(kSpareBytes)) {
    const Status closed = Guard("close the index", [&] {
      for (rocksdb::ColumnFamilyHandle* handle : handles_) {
        if (handle != nullptr) db_->DestroyColumnFamilyHandle(handle).PermitUncheckedError();
      }
      delete db_;
      return OkStatus();
    });
    if (!broken_) return;
  }
  // An exception went through RocksDB: its locks are in an unknown state, so leave it all be. Or
  // there is no memory to close it.
  static_cast<void>(env_.release());
}

Result<std::vector<IndexedStep>> Index::Steps() {
  return GuardRead<std::vector<IndexedStep>>([&] { return ReadSteps(); });
}

Result<std::optional<std::vector<format::LeafRecord>>> Index::Read(uint64_t step, uint64_t commit,
                                                                   uint32_t frame_crc,
                                                                   const format::KeyRange& range) {
  return GuardRead<std::optional<std::vector<format::LeafRecord>>>(
      [&] { return ReadLeaves(step, commit, frame_crc, range); });
}

Result<std::optional<format::StepRecord>> Index::ReadStep(uint64_t step, uint64_t commit,
                                                          uint32_t frame_crc) {
  return GuardRead<std::optional<format::StepRecord>>(
      [&] { return ReadStepRow(step, commit, frame_crc); });
}

Status Index::Apply(const IndexBatch& batch) {
  STEPWELL_RETURN_IF_ERROR(CheckUsable());
  STEPWELL_RETURN_IF_ERROR(
      Guard("apply a commit to the index", [&] { return ApplyGuarded(batch); }));
  return CheckFrozen();
}

Status Index::Flush() {
  STEPWELL_RETURN_IF_ERROR(CheckUsable());
  const Status flushed = Guard("flush the index", [&] { return FlushGuarded(); });
  STEPWELL_RETURN_IF_ERROR(CheckFrozen());  // says more than what followed from it
  STEPWELL_RETURN_IF_ERROR(flushed);
  unflushed_bytes_ = 0;
  return OkStatus();
}

Status Index::CheckFrozen() const { return freeze_->Check().WithContext(StrCat("index ", path_)); }

Status Index::CheckUsable() const { return broken_ ? BrokenError() : CheckFrozen(); }

Status Index::Write(rocksdb::WriteBatch* batch) {
  rocksdb::WriteOptions options;
  options.disableWAL = true;
  return FromRocks(db_->Write(options, batch), "write to the index");
}

Status Index::OpenGuarded() {
  const auto cache = rocksdb::NewLRUCache(kBlockCacheBytes, /*num_shard_bits=*/0);
  const rocksdb::ColumnFamilyOptions family = MakeFamilyOptions(cache);
  STEPWELL_RETURN_IF_ERROR(FromRocks(rocksdb::DB::Open(MakeDbOptions(env_.get(), errors_), path_,
                                                       {{rocksdb::kDefaultColumnFamilyName, family},
                                                        {"steps", family},
                                                        {"leaves", family},
                                                        {"chunks", family}},
                                                       &handles_, &db_),
                                     StrCat("open the index ", path_)));
  GuardForkedChildren();
  meta_ = handles_[0];
  steps_ = handles_[1];
  leaves_ = handles_[2];
  chunks_ = handles_[3];

  std::string row;
  const rocksdb::Status got = db_->Get(rocksdb::ReadOptions(), meta_, kMetaKey, &row);
  if (got.ok()) {
    STEPWELL_ASSIGN_OR_RETURN(const Meta meta, DecodeMeta(row, store_id_));
    applied_commit_ = meta.applied_commit;
    applied_crc_ = meta.applied_crc;
    complete_ = meta.complete;
    return OkStatus();
  }
  if (!got.IsNotFound()) return FromRocks(got, "read the index");
  // New. Every batch has a meta row, so without one there is nothing else either.
  STEPWELL_ASSIGN_OR_RETURN(const std::vector<IndexedStep> steps, ReadSteps());
  if (!steps.empty()) return DataLossError(StrCat("index ", path_, ": steps without a meta row"));
  rocksdb::WriteBatch batch;
  batch.Put(meta_, kMetaKey, EncodeMeta(store_id_, {}));
  return Write(&batch);
}

Status Index::RemoveStep(uint64_t step, rocksdb::WriteBatch* batch) {
  const std::string begin = format::EncodeStep(step);
  const std::string end = format::PrefixEnd(begin);
  batch->Delete(steps_, begin);
  for (rocksdb::ColumnFamilyHandle* family : {leaves_, chunks_}) {
    if (!end.empty()) {
      batch->DeleteRange(family, begin, end);
      continue;
    }
    // The last possible step has no end: key by key.
    const std::unique_ptr<rocksdb::Iterator> rows(db_->NewIterator(rocksdb::ReadOptions(), family));
    for (rows->Seek(begin); rows->Valid(); rows->Next()) batch->Delete(family, rows->key());
    STEPWELL_RETURN_IF_ERROR(FromRocks(rows->status(), "read the index"));
  }
  return OkStatus();
}

Status Index::AddPins(const IndexBatch& changes, rocksdb::WriteBatch* batch) {
  for (const auto& [step, pinned] : changes.pins) {
    std::string row;
    const std::string key = format::EncodeStep(step);
    const rocksdb::Status got = db_->Get(rocksdb::ReadOptions(), steps_, key, &row);
    if (got.IsNotFound()) continue;  // then the index is not complete
    STEPWELL_RETURN_IF_ERROR(FromRocks(got, "read the index"));
    STEPWELL_ASSIGN_OR_RETURN(const std::string repinned, RepinStepRow(key, row, pinned));
    batch->Put(steps_, key, repinned);
  }
  return OkStatus();
}

Status Index::ApplyGuarded(const IndexBatch& batch) {
  // One batch, or it would not be atomic; up to about 150 MB for a million chunks, allocated once.
  size_t reserve_bytes = 4096 + batch.removed_steps.size() * 128;
  for (const IndexBatch::Add& add : batch.added) {
    reserve_bytes += 4096;
    for (const format::LeafRecord& leaf : *add.leaves) {
      reserve_bytes += 512 + 2 * leaf.key.size() + leaf.chunks.size() * (leaf.key.size() + 128);
    }
  }
  rocksdb::WriteBatch rows(reserve_bytes);
  for (const uint64_t step : batch.removed_steps) {
    STEPWELL_RETURN_IF_ERROR(RemoveStep(step, &rows));
  }
  for (const IndexBatch::Add& add : batch.added) {
    const uint64_t step = add.step->step;
    if (std::find(batch.removed_steps.begin(), batch.removed_steps.end(), step) ==
        batch.removed_steps.end()) {
      // Also when the caller does not say that it replaces one: never a mixture.
      std::string old_row;
      const rocksdb::Status got =
          db_->Get(rocksdb::ReadOptions(), steps_, format::EncodeStep(step), &old_row);
      if (got.ok()) STEPWELL_RETURN_IF_ERROR(RemoveStep(step, &rows));
      if (!got.ok() && !got.IsNotFound()) return FromRocks(got, "read the index");
    }
    rows.Put(steps_, format::EncodeStep(step), EncodeStepRow(*add.step, add.frame_crc));
    for (const format::LeafRecord& leaf : *add.leaves) {
      if (leaf.first_chunk == 0) {  // else it only goes on with the chunks of one before
        rows.Put(leaves_, format::EncodeIndexKey(step, leaf.key), format::EncodeLeafValue(leaf));
      }
      for (size_t i = 0; i < leaf.chunks.size(); ++i) {
        rows.Put(chunks_, format::EncodeChunkKey(step, leaf.key, leaf.first_chunk + i),
                 format::EncodeChunkRecord(leaf.chunks[i]));
      }
    }
  }
  STEPWELL_RETURN_IF_ERROR(AddPins(batch, &rows));
  rows.Put(meta_, kMetaKey,
           EncodeMeta(store_id_, {batch.through_commit, batch.through_crc, batch.complete}));
  STEPWELL_RETURN_IF_ERROR(Write(&rows));
  applied_commit_ = batch.through_commit;
  applied_crc_ = batch.through_crc;
  complete_ = batch.complete;
  unflushed_bytes_ += rows.GetDataSize();
  RunJobs();  // of a memtable that grew too large
  return OkStatus();
}

// RocksDB flushes all families up to one point, with one entry of its MANIFEST.
Status Index::FlushGuarded() {
  rocksdb::FlushOptions options;
  options.wait = false;  // the job is ours to run
  options.allow_write_stall = true;
  const rocksdb::Status asked = db_->Flush(options, handles_);
  RunJobs();
  STEPWELL_RETURN_IF_ERROR(FromRocks(errors_->first(), "flush the index"));
  STEPWELL_RETURN_IF_ERROR(FromRocks(asked, "flush the index"));
  for (rocksdb::ColumnFamilyHandle* handle : handles_) {
    uint64_t left = 0;
    if (!db_->GetIntProperty(handle, rocksdb::DB::Properties::kNumImmutableMemTable, &left) ||
        left != 0) {
      return InternalError("index: a flush left data in memory");
    }
  }
  return OkStatus();
}

void Index::RunJobs() {
  size_t count = 0;
  env_->RunJobs([&] { return ++count <= kJobsMax && errors_->first().ok(); });
}

Status FromRocks(const rocksdb::Status& status, std::string_view context) {
  if (status.ok()) return OkStatus();
  const std::string message = StrCat(context, ": ", status.ToString());
  if (status.IsNoSpace()) return ResourceExhaustedError(message);
  if (status.IsAborted() || status.IsShutdownInProgress()) return AbortedError(message);
  if (status.IsBusy() || status.IsTryAgain()) return UnavailableError(message);
  return DataLossError(message);
}

Result<std::unique_ptr<Index>> Index::Open(const Options& options) {
  const Status made = options.file_system->CreateDirectory(options.path);
  if (!made.ok() && made.code() != StatusCode::kAlreadyExists) return made;
  if (made.ok()) {  // else a power cut takes the directory with all that was flushed into it
    const std::string parent = options.path.substr(0, options.path.rfind('/') + 1);
    STEPWELL_RETURN_IF_ERROR(options.file_system->SyncDirectory(parent.empty() ? "." : parent));
  }
  STEPWELL_ASSIGN_OR_RETURN(const uint64_t free_bytes,
                            options.file_system->FreeBytes(options.path));
  if (free_bytes < kFreeBytesMin) {
    return ResourceExhaustedError(StrCat("index ", options.path, ": ", free_bytes,
                                         " bytes free; opening it takes ", kFreeBytesMin));
  }
  std::unique_ptr<Index> index(new Index(options));
  STEPWELL_RETURN_IF_ERROR(index->Guard("open the index", [&] { return index->OpenGuarded(); }));
  STEPWELL_RETURN_IF_ERROR(index->CheckFrozen());
  return index;
}

Status Index::Destroy(io::FileSystem* file_system, const std::string& path) {
  Result<std::vector<std::string>> names = file_system->List(path);
  if (names.status().code() == StatusCode::kNotFound) return OkStatus();
  STEPWELL_RETURN_IF_ERROR(names.status());
  for (const std::string& name : *names) {
    if (!IsRocksName(name)) continue;
    const Status removed = file_system->Remove(StrCat(path, "/", name));
    if (!removed.ok() && removed.code() != StatusCode::kNotFound) return removed;
  }
  return file_system->SyncDirectory(path);
}

}  // namespace stepwell::db
