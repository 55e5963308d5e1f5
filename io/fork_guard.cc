// SPDX-License-Identifier: Apache-2.0
#include "io/fork_guard.h"

#include <pthread.h>
#include <unistd.h>

#include <mutex>
#include <set>

namespace stepwell::io {
namespace {

struct Registry {
  std::mutex mutex;
  std::set<int> descriptors;
};

// Never destroyed: a fork may come while the process exits.
Registry* TheRegistry() {
  static auto* registry = [] {
    auto* made = new Registry;
    // Held across the fork, so that the child finds the set whole.
    pthread_atfork([] { TheRegistry()->mutex.lock(); }, [] { TheRegistry()->mutex.unlock(); },
                   [] {
                     for (const int descriptor : TheRegistry()->descriptors) close(descriptor);
                     TheRegistry()->descriptors.clear();
                     TheRegistry()->mutex.unlock();
                   });
    return made;
  }();
  return registry;
}

// Made before main: a function's static that another thread is just making when a fork comes would
// stay half made in the child, whose first call would wait for ever.
[[maybe_unused]] Registry* const kMadeAtStart = TheRegistry();

}  // namespace

void ForkGuard::Add(int descriptor) {
  Registry* registry = TheRegistry();
  std::lock_guard lock(registry->mutex);
  registry->descriptors.insert(descriptor);
}

void ForkGuard::Remove(int descriptor) {
  Registry* registry = TheRegistry();
  std::lock_guard lock(registry->mutex);
  registry->descriptors.erase(descriptor);
}

}  // namespace stepwell::io
