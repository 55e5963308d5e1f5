// SPDX-License-Identifier: Apache-2.0
#include "db/environment.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>

#include "io/mutex.h"
#include "io/open_disk.h"

namespace stepwell::db {
namespace {

constexpr size_t kWorkersDefaultMax = 4;

// One for the process and never destroyed: a user's callback may hold the last reference to a
// store.
Result<std::shared_ptr<io::Executor>> CallbackExecutor() {
  static io::Mutex mutex;
  static auto* const executor STEPWELL_PT_GUARDED_BY(mutex) = new std::shared_ptr<io::Executor>;
  const io::MutexLock lock(&mutex);
  if (*executor == nullptr) {
    STEPWELL_ASSIGN_OR_RETURN(*executor, io::MakeThreadPool(1, "stepwell-call"));
  }
  return *executor;
}

uint64_t Random() {
  static io::Mutex mutex;
  static std::random_device device STEPWELL_GUARDED_BY(mutex);
  const io::MutexLock lock(&mutex);
  return uint64_t{device()} << 32 | device();
}

}  // namespace

format::Id128 RandomId(const std::function<uint64_t()>& random) {
  format::Id128 id;
  for (size_t i = 0; i < id.size(); i += 8) {
    const uint64_t word = random();
    std::memcpy(id.data() + i, &word, 8);
  }
  return id;
}

Environment Environment::ForReaders() const {
  Environment readers = *this;
  readers.held_root = nullptr;
  readers.encoders = readers.index_worker = readers.reclaim_worker = readers.callbacks = nullptr;
  return readers;
}

Environment InlineEnvironment() {
  Environment environment;
  environment.workers = environment.encoders = environment.index_worker =
      environment.reclaim_worker = environment.callbacks = std::make_shared<io::InlineExecutor>();
  environment.inline_mode = true;
  return environment;
}

namespace {

Environment UnpublishedEnvironment() {
  Environment environment = InlineEnvironment();
  environment.file_system = io::LocalFileSystem();
  environment.make_disk = [] { return io::MakeInlineDisk(); };
  environment.without_index = true;
  environment.clock = io::SystemClock();
  environment.random = Random;
  return environment;
}

}  // namespace

Result<Environment> MakeEnvironment(const StoreOptions& options) {
  if (options.unpublished) return UnpublishedEnvironment();
  Environment environment;
  environment.file_system = io::LocalFileSystem();
  // The reason why io_uring is not used is logged once a store, by its first disk.
  auto logged = std::make_shared<std::once_flag>();
  io::DiskOptions disk;
  disk.kind = options.disk;
  disk.log = [log = options.log, logged](LogLevel level, std::string_view text) {
    std::call_once(*logged, [&] { Log(log, level, text); });
  };
  environment.make_disk = [disk] { return io::OpenDisk(disk); };
  const size_t cores = std::max(1U, std::thread::hardware_concurrency());
  const size_t threads =
      options.threads > 0 ? options.threads : std::min(kWorkersDefaultMax, cores);
  STEPWELL_ASSIGN_OR_RETURN(environment.workers, io::MakeThreadPool(threads));
  if (!options.read_only) {
    STEPWELL_ASSIGN_OR_RETURN(environment.encoders, io::MakeThreadPool(threads, "stepwell-enc",
                                                                       io::ThreadPriority::kLow));
    STEPWELL_ASSIGN_OR_RETURN(environment.index_worker, io::MakeThreadPool(1, "stepwell-index"));
    STEPWELL_ASSIGN_OR_RETURN(environment.reclaim_worker, io::MakeThreadPool(1, "stepwell-recl"));
    STEPWELL_ASSIGN_OR_RETURN(environment.callbacks, CallbackExecutor());
  }
  environment.steps_before_index = options.steps_before_index;
  environment.clock = io::SystemClock();
  environment.random = Random;
  return environment;
}

}  // namespace stepwell::db
