// SPDX-License-Identifier: Apache-2.0
#include "io/fork_guard.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <vector>

#include "io/mutex.h"

namespace stepwell::io {
namespace {

struct ForkRegistry {
  struct Entry {
    const void* owner;
    int descriptor;
  };
  Mutex mutex;
  std::vector<Entry> entries STEPWELL_GUARDED_BY(mutex);
};

// In the child, where only async-signal-safe calls are allowed. Each descriptor is replaced rather
// than closed: a destructor that runs here later must not close another owner's new file.
void CloseAll(ForkRegistry* registry) STEPWELL_REQUIRES(registry->mutex) {
  const int nowhere = open("/dev/null", O_RDONLY | O_CLOEXEC);
  for (const ForkRegistry::Entry& entry : registry->entries) {
    if (nowhere < 0 || dup3(nowhere, entry.descriptor, O_CLOEXEC) < 0) close(entry.descriptor);
  }
  if (nowhere >= 0) close(nowhere);
  registry->entries.clear();
}

ForkRegistry* TheRegistry();

// The mutex is held across the fork, so that the child finds the entries whole and the mutex free.
void BeforeFork() STEPWELL_ACQUIRE(TheRegistry()->mutex) { TheRegistry()->mutex.Lock(); }
void InParent() STEPWELL_RELEASE(TheRegistry()->mutex) { TheRegistry()->mutex.Unlock(); }
void InChild() STEPWELL_RELEASE(TheRegistry()->mutex) {
  CloseAll(TheRegistry());
  TheRegistry()->mutex.Unlock();
}

// Never destroyed: a fork may come while the process exits.
ForkRegistry* TheRegistry() {
  static ForkRegistry* const registry = [] {
    auto* made = new ForkRegistry;
    pthread_atfork(BeforeFork, InParent, InChild);
    return made;
  }();
  return registry;
}

// Made before main: a function's static that another thread is just making when a fork comes would
// stay half made in the child, whose first call would wait for ever.
[[maybe_unused]] ForkRegistry* const kMadeAtStart = TheRegistry();

}  // namespace

void CloseInForkedChild(const void* owner, int descriptor) {
  if (descriptor < 0) return;
  ForkRegistry* registry = TheRegistry();
  const MutexLock lock(&registry->mutex);
  registry->entries.push_back({owner, descriptor});
}

void ForgetForkDescriptors(const void* owner) {
  ForkRegistry* registry = TheRegistry();
  const MutexLock lock(&registry->mutex);
  std::erase_if(registry->entries, [&](const auto& entry) { return entry.owner == owner; });
}

}  // namespace stepwell::io
