// SPDX-License-Identifier: Apache-2.0
// Tells a process when another one has changed something in a directory.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "io/beneath.h"
#include "io/result.h"

namespace stepwell::io {

// A watch by inotify. What changes between two calls of Wait() ends the second one at once, so a
// caller that looks at the directory after each Wait() misses nothing. One thread waits at a time.
class DirectoryWatch {
 public:
  // Watches one entry of the directory, or all for an empty `name`. Writing, making, renaming and
  // removing an entry change it. It fails if there is no such directory, or no descriptor left.
  static Result<std::unique_ptr<DirectoryWatch>> Open(const std::string& directory,
                                                      const std::string& name);

  // Waits until the watch has something to tell, for at most `timeout`; true: an entry has changed
  // since the call before, or Wake() was called. A signal that comes to this thread ends the wait.
  bool Wait(std::chrono::milliseconds timeout);
  // From any thread: the wait under way, or the next one, ends.
  void Wake();

  // OK while the kernel tells of changes. Otherwise the reason why it does not: other machines
  // change the file system, the system has no watch to give, or the directory is gone. Then Wait()
  // only waits, and the caller looks now and then.
  const Status& status() const { return status_; }

 private:
  DirectoryWatch(std::string name, Descriptor wake)
      : name_(std::move(name)), wake_(std::move(wake)) {}
  Status Watch(const std::string& directory);
  // Takes all events that are there; true: one of them is about the entry.
  bool TakeEvents();

  const std::string name_;
  const Descriptor wake_;   // an eventfd
  Descriptor inotify_{-1};  // negative: none
  Status status_;
};

}  // namespace stepwell::io
