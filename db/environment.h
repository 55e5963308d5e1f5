// SPDX-License-Identifier: Apache-2.0
// The engine's surroundings, injected: the machine in production, one seed in the simulation.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "db/store.h"
#include "io/clock.h"
#include "io/disk.h"
#include "io/executor.h"

namespace stepwell::db {

struct Environment {
  io::FileSystem* file_system = nullptr;
  std::shared_ptr<io::FileSystem> own_file_system;  // keeps that where it is the store's own
  // Set in a writer until it closes. It makes a store that is renamed under its writer stay the one
  // that it writes to.
  std::shared_ptr<const void> held_root;
  std::function<Result<std::unique_ptr<io::Disk>>()> make_disk;
  std::shared_ptr<io::Executor> workers;  // pure CPU work: copies, raw chunks, reads
  // Null in stores that are only read, as the next three.
  std::shared_ptr<io::Executor> encoders;      // of held arrays and codecs: threads of low priority
  std::shared_ptr<io::Executor> index_worker;  // one thread: RocksDB's blocking calls, in order
  std::shared_ptr<io::Executor> reclaim_worker;  // one thread: unlinks, punches, copies
  std::shared_ptr<io::Executor> callbacks;       // one thread: the user's callbacks
  io::Clock* clock = nullptr;
  std::function<uint64_t()> random;  // thread-safe
  // One thread for everything: the waiting thread runs the engine. For the simulation.
  bool inline_mode = false;
  // Serve from the log alone: RocksDB is not opened. For the simulation, where opening it would
  // take most of the time.
  bool without_index = false;
  size_t steps_before_index = 0;  // of StoreOptions
  // Readers make no pins, and nothing else: StoreOptions::untrusted.
  bool without_pins = false;

  // For stores that are only read, which may outlive this one: no threads of the engine.
  Environment ForReaders() const;
};

// 128 random bits: a store's id, a segment's nonce.
format::Id128 RandomId(const std::function<uint64_t()>& random);

// Everything on the calling thread; without file system, disk, clock and randomness, which the
// caller sets.
Environment InlineEnvironment();

Result<Environment> MakeEnvironment(const StoreOptions& options);

// Store::Open on a given environment.
Result<std::unique_ptr<Store>> OpenStore(const std::string& path, const StoreOptions& options,
                                         Environment environment);

}  // namespace stepwell::db
