// SPDX-License-Identifier: Apache-2.0
// One writer a store, and what a forked child must let go of.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "io/disk.h"
#include "io/fork_guard.h"

namespace stepwell::db {

// Takes LOCK exclusively (OFD lock) and writes into it which process has it, for which directory.
// If LOCK or STEPWELL has another name, as after `cp -al` of a store, this store gets files of its
// own first (DESIGN.md, "Trust and waits"). While the recorded holder is dead (its io_uring writes
// may still be landing) it retries for `timeout`, then, or at once when the holder lives, fails
// with kUnavailable naming the pid and whether it lives.
Result<std::unique_ptr<io::File>> AcquireLock(io::FileSystem* file_system,
                                              const std::string& store_path,
                                              std::chrono::milliseconds timeout);

// Tries for the lock every `interval`; false: not within `timeout`. What `go_on`, asked after each
// failure, says ends it.
Result<bool> LockWithin(io::File* file, io::LockKind kind, std::chrono::milliseconds timeout,
                        std::chrono::milliseconds interval,
                        const std::function<Status()>& go_on = {});

// Takes STEPWELL's lock, which the holder of LOCK has, too: a LOCK that was removed admits no other
// beside the writer that made it. Waits like AcquireLock; kUnavailable names the holder.
Status LockSlotFile(io::File* slot_file, const std::string& store_path,
                    std::chrono::milliseconds timeout);

// Tells how to reach the holder of LOCK (db/store/mailbox.h). It is written in LOCK, so that only
// processes that can read the store's files can send requests. The texts have no white space, and
// the keys are random.
struct LockContact {
  std::string socket;
  std::string request_key;  // proves a request
  std::string reply_key;    // proves a reply
};
Status WriteContact(io::File* lock_file, const LockContact& contact);
// kNotFound: the holder gives none, or none yet.
Result<LockContact> ReadContact(io::FileSystem* file_system, const std::string& store_path);

// The processes that have a lock on the file, as far as this process can see, for people:
// "process 12, which is stopped". Reads /proc, so it is for errors only.
std::string DescribeLockHolders(io::File* file);

// Returns the id of this boot of the machine; "" where it is unknown.
std::string BootId();

// Fork safety: the descriptors of locks are closed in every forked child, never unlocked.
using io::CloseInForkedChild;
using io::ForgetForkDescriptors;
// kFailedPrecondition naming fork when this process is not `pid` (the one that opened the store).
Status CheckNotForked(int pid);

}  // namespace stepwell::db
