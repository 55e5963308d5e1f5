// SPDX-License-Identifier: Apache-2.0
// How the index sets RocksDB up. Private to db/index/index.cc.
#pragma once

#include <rocksdb/cache.h>
#include <rocksdb/convenience.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "db/index/env.h"

namespace stepwell::db {

inline constexpr size_t kWriteBufferBytes = size_t{64} << 20;  // the engine flushes long before

inline rocksdb::DBOptions MakeDbOptions(JobQueueEnv* env, std::shared_ptr<ErrorKeeper> errors) {
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

inline rocksdb::ColumnFamilyOptions MakeFamilyOptions(
    const std::shared_ptr<rocksdb::Cache>& cache) {
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

}  // namespace stepwell::db
