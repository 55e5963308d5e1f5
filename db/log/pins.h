// SPDX-License-Identifier: Apache-2.0
// Readers' pins: a reader process holds an OFD-locked file readers/<id> that names the
// commit it reads; reclaim keeps everything that was live at a pinned commit, and nothing that was
// born later. Locks go with the process, so dead readers release by themselves.
//
// RECLAIM is held exclusively around [read pins, unlink] and shared around [read the durable slot,
// write the pin].
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "io/disk.h"

namespace stepwell::db {

// RAII for RECLAIM. Retries until it has the lock, but no longer than `timeout`: a process that is
// stopped may hold it. Then kUnavailable, which names the holder. kPermissionDenied on read-only
// media.
class ReclaimLock {
 public:
  static constexpr std::chrono::milliseconds kTimeout{5000};
  // kCancelled as soon as `*stop` (may be null) is set.
  static Result<std::unique_ptr<ReclaimLock>> Acquire(io::FileSystem* file_system,
                                                      const std::string& store_path,
                                                      io::LockKind kind,
                                                      const std::atomic<bool>* stop = nullptr,
                                                      std::chrono::milliseconds timeout = kTimeout);
  ~ReclaimLock();

 private:
  explicit ReclaimLock(std::unique_ptr<io::File> file) : file_(std::move(file)) {}
  std::unique_ptr<io::File> file_;
};

// A reader's pin file. Made unlocked-named by a random id; removed by the destructor.
class ReaderPin {
 public:
  // kPermissionDenied where readers/ cannot be written: the caller reads without a pin.
  static Result<std::unique_ptr<ReaderPin>> Create(io::FileSystem* file_system,
                                                   const std::string& store_path,
                                                   uint64_t random_id);
  ~ReaderPin();
  // Moves the pin; the caller holds RECLAIM shared.
  Status Set(uint64_t commit);
  // Pins nothing from here on, until it is Set again. Needs no lock.
  Status Rest();

 private:
  ReaderPin(io::FileSystem* file_system, std::unique_ptr<io::File> file)
      : file_system_(file_system), file_(std::move(file)) {}
  io::FileSystem* const file_system_;
  std::unique_ptr<io::File> file_;
};

struct ReaderPins {
  std::vector<uint64_t> commits;  // ascending, each once
  // A live reader's file names no commit (it is being made, or damaged): keep everything.
  bool unknown = false;

  bool any() const { return unknown || !commits.empty(); }
  bool operator==(const ReaderPins&) const = default;
};
// The pins of live readers (other processes and this one's pin files); removes the files of dead
// ones. The caller holds RECLAIM exclusively.
Result<ReaderPins> ReadPins(io::FileSystem* file_system, const std::string& store_path);

// The pins of live readers below commit `tip`, in words: which file, of which process, for how
// long. Takes no lock and removes nothing.
std::vector<std::string> DescribeOldPins(io::FileSystem* file_system, const std::string& store_path,
                                         uint64_t tip, int64_t now_ns);

}  // namespace stepwell::db
