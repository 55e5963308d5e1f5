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
#include <span>
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

// The row of the default family: version (4 bytes), store id (16). Versions 1 and 2 had rows of
// leaves and chunks.
constexpr char kMetaKey[] = "stepwell";
constexpr uint32_t kMetaVersion = 3;
constexpr size_t kMetaBytes = 20;

std::string EncodeMeta(const format::Id128& store_id) {
  std::array<std::byte, kMetaBytes> row{};
  format::StoreLittle(row.data(), kMetaVersion);
  std::transform(store_id.begin(), store_id.end(), row.begin() + 4,
                 [](uint8_t byte) { return std::byte{byte}; });
  return std::string(AsText(row));
}

Status CheckMetaRow(std::string_view row, const format::Id128& store_id) {
  if (row.size() < sizeof(kMetaVersion)) return DataLossError("index: its meta row is cut short");
  const auto version = format::LoadLittle<uint32_t>(AsBytes(row).data());
  if (version != kMetaVersion) {
    return DataLossError(StrCat("index: version ", version, "; this library has ", kMetaVersion));
  }
  if (row != EncodeMeta(store_id)) return DataLossError("index: it belongs to another store");
  return OkStatus();
}

// A row of `steps`, under the step's number (8 bytes, big-endian): commit (8 bytes), CRC of its
// frame (4), length of the metrics (4; kNoTexts: the texts are in the frame alone), metrics, and
// metadata up to the end.
constexpr size_t kRowHeadBytes = 16;
constexpr uint32_t kNoTexts = UINT32_MAX;

std::string EncodeRow(const IndexRow& row) {
  std::string value(kRowHeadBytes, '\0');
  std::byte* const at = std::as_writable_bytes(std::span(value)).data();
  format::StoreLittle(at, row.commit);
  format::StoreLittle(at + 8, row.frame_crc);
  format::StoreLittle(at + 12,
                      row.has_texts ? static_cast<uint32_t>(row.metrics_json.size()) : kNoTexts);
  if (row.has_texts) value.append(row.metrics_json).append(row.metadata_json);
  return value;
}

Result<IndexRow> DecodeRow(std::string_view key, std::string_view value) {
  IndexRow row;
  STEPWELL_ASSIGN_OR_RETURN(row.step, format::DecodeStep(key));
  if (value.size() < kRowHeadBytes) return DataLossError("index: a step's row is cut short");
  const std::byte* const at = AsBytes(value).data();
  row.commit = format::LoadLittle<uint64_t>(at);
  row.frame_crc = format::LoadLittle<uint32_t>(at + 8);
  const auto metrics_bytes = format::LoadLittle<uint32_t>(at + 12);
  const std::string_view texts = value.substr(kRowHeadBytes);
  row.has_texts = metrics_bytes != kNoTexts;
  if (row.has_texts ? metrics_bytes > texts.size() : !texts.empty()) {
    return DataLossError("index: a step's row has a wrong length");
  }
  if (!row.has_texts) return row;
  row.metrics_json = texts.substr(0, metrics_bytes);
  row.metadata_json = texts.substr(metrics_bytes);
  return row;
}

std::string_view ToView(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

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

// RocksDB reads these into memory whole, however large they are.
constexpr uint64_t kTextFileBytesMax = uint64_t{1} << 20;

Status CheckTextFiles(io::FileSystem* file_system, const std::string& path) {
  const auto names = file_system->List(path);
  for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
    if (name != "CURRENT" && name != "IDENTITY" && !name.starts_with("OPTIONS-")) continue;
    const auto info = file_system->Stat(StrCat(path, "/", name));
    if (info.ok() && info->size_bytes > kTextFileBytesMax) {
      return DataLossError(StrCat("index ", path, ": ", name, " has ", info->size_bytes, " bytes"));
    }
  }
  return OkStatus();
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

Status Index::Scan(uint64_t first, const std::function<bool(const IndexRow&)>& visit) {
  if (broken_) return BrokenError();
  return Guard("read the index", [&] { return ScanGuarded(first, visit); });
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
  unflushed_rows_ = unflushed_bytes_ = 0;
  return OkStatus();
}

Status Index::CheckFrozen() const { return freeze_->Check().WithContext(StrCat("index ", path_)); }

Status Index::CheckUsable() const { return broken_ ? BrokenError() : CheckFrozen(); }

Status Index::Write(rocksdb::WriteBatch* batch) {
  rocksdb::WriteOptions options;
  options.disableWAL = true;
  return FromRocks(db_->Write(options, batch), "write to the index");
}

Status Index::OpenGuarded(bool to_read) {
  const auto cache = rocksdb::NewLRUCache(kBlockCacheBytes, /*num_shard_bits=*/0);
  const rocksdb::ColumnFamilyOptions family = MakeFamilyOptions(cache);
  const std::vector<rocksdb::ColumnFamilyDescriptor> families = {
      {rocksdb::kDefaultColumnFamilyName, family}, {"steps", family}};
  rocksdb::DBOptions options = MakeDbOptions(env_.get(), errors_);
  options.create_if_missing = options.create_missing_column_families = !to_read;
  // A secondary writes its info log, and nothing else, where its second path says: ours is silent.
  const rocksdb::Status opened =
      to_read ? rocksdb::DB::OpenAsSecondary(options, path_, path_, families, &handles_, &db_)
              : rocksdb::DB::Open(options, path_, families, &handles_, &db_);
  STEPWELL_RETURN_IF_ERROR(FromRocks(opened, StrCat("open the index ", path_)));
  GuardForkedChildren();
  meta_ = handles_[0];
  steps_ = handles_[1];
  return CheckMeta(to_read);
}

Status Index::CheckMeta(bool to_read) {
  std::string row;
  const rocksdb::Status got = db_->Get(rocksdb::ReadOptions(), meta_, kMetaKey, &row);
  if (got.ok()) return CheckMetaRow(row, store_id_);
  if (!got.IsNotFound()) return FromRocks(got, "read the index");
  // New. Every flush has the meta row, so without one there is nothing else either.
  bool empty = true;
  STEPWELL_RETURN_IF_ERROR(ScanGuarded(0, [&](const IndexRow&) { return empty = false; }));
  if (!empty) return DataLossError(StrCat("index ", path_, ": steps without a meta row"));
  if (to_read) return OkStatus();
  rocksdb::WriteBatch batch;
  batch.Put(meta_, kMetaKey, EncodeMeta(store_id_));
  return Write(&batch);
}

Status Index::ScanGuarded(uint64_t first, const std::function<bool(const IndexRow&)>& visit) {
  rocksdb::ReadOptions options;
  options.verify_checksums = true;
  options.total_order_seek = true;
  const std::unique_ptr<rocksdb::Iterator> rows(db_->NewIterator(options, steps_));
  for (rows->Seek(format::EncodeStep(first)); rows->Valid(); rows->Next()) {
    STEPWELL_ASSIGN_OR_RETURN(const IndexRow row,
                              DecodeRow(ToView(rows->key()), ToView(rows->value())));
    if (!visit(row)) break;
  }
  return FromRocks(rows->status(), "read the index");
}

Status Index::ApplyGuarded(const IndexBatch& batch) {
  rocksdb::WriteBatch rows;
  for (const uint64_t step : batch.removed_steps) {
    rows.Delete(steps_, format::EncodeStep(step));
  }
  for (const IndexRow& row : batch.rows) {
    rows.Put(steps_, format::EncodeStep(row.step), EncodeRow(row));
  }
  STEPWELL_RETURN_IF_ERROR(Write(&rows));
  unflushed_rows_ += batch.removed_steps.size() + batch.rows.size();
  unflushed_bytes_ += rows.GetDataSize();
  RunJobs();  // a memtable that grew too large may need them
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
  STEPWELL_RETURN_IF_ERROR(CheckTextFiles(options.file_system, options.path));
  std::unique_ptr<Index> index(new Index(options));
  STEPWELL_RETURN_IF_ERROR(
      index->Guard("open the index", [&] { return index->OpenGuarded(/*to_read=*/false); }));
  STEPWELL_RETURN_IF_ERROR(index->CheckFrozen());
  return index;
}

Result<std::unique_ptr<Index>> Index::OpenToRead(const Options& options) {
  STEPWELL_RETURN_IF_ERROR(CheckTextFiles(options.file_system, options.path));
  std::unique_ptr<Index> index(new Index(options));
  STEPWELL_RETURN_IF_ERROR(
      index->Guard("open the index", [&] { return index->OpenGuarded(/*to_read=*/true); }));
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
