// SPDX-License-Identifier: Apache-2.0
#include "fuzz/support/memory.h"

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#define STEPWELL_FUZZ_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define STEPWELL_FUZZ_ASAN 1
#endif
#endif

namespace stepwell::fuzz {
namespace {

std::atomic<bool> armed{false};
std::atomic<size_t> single_max{0};
std::atomic<size_t> total_max{0};
std::atomic<size_t> total{0};
std::atomic<size_t> largest{0};

// No allocation here. Stops at the first breach, so that the stack says who asked.
void Count(size_t size) {
  if (!armed.load(std::memory_order_relaxed)) return;
  const size_t sum = total.fetch_add(size, std::memory_order_relaxed) + size;
  if (size > largest.load(std::memory_order_relaxed)) largest = size;
  if (size <= single_max && sum <= total_max) return;
  armed = false;
  std::fprintf(stderr,
               "property broken: %zu bytes allocated at once (limit %zu), %zu in all (limit %zu)\n",
               size, single_max.load(), sum, total_max.load());
  std::abort();
}

size_t Bound(const MemoryBudget& budget, size_t input_bytes) {
  return budget.fixed_bytes + budget.per_input_byte * input_bytes;
}

// STEPWELL_FUZZ_MEMORY in the environment: says what each limited piece of code took.
bool Talks() {
  static const bool talks = std::getenv("STEPWELL_FUZZ_MEMORY") != nullptr;
  return talks;
}

}  // namespace
}  // namespace stepwell::fuzz

#if defined(STEPWELL_FUZZ_ASAN)

extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*malloc_hook)(const volatile void*,
                                                                             size_t),
                                                         void (*free_hook)(const volatile void*));

namespace stepwell::fuzz {
namespace {
void Install() {
  static const int installed = __sanitizer_install_malloc_and_free_hooks(
      [](const volatile void*, size_t size) { Count(size); }, [](const volatile void*) {});
  (void)installed;
}
}  // namespace
}  // namespace stepwell::fuzz

#else

void* operator new(size_t size) {
  stepwell::fuzz::Count(size);
  void* memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace stepwell::fuzz {
namespace {
void Install() {}
}  // namespace
}  // namespace stepwell::fuzz

#endif

namespace stepwell::fuzz {

MemoryLimit::MemoryLimit(size_t input_bytes, const MemoryBudget& single,
                         const MemoryBudget& whole) {
  Install();
  single_max = Bound(single, input_bytes);
  total_max = Bound(whole, input_bytes);
  total = 0;
  largest = 0;
  armed = true;
}

MemoryLimit::~MemoryLimit() {
  armed = false;
  if (Talks()) {
    std::fprintf(stderr, "memory: largest %zu of %zu, in all %zu of %zu\n", largest.load(),
                 single_max.load(), total.load(), total_max.load());
  }
}

}  // namespace stepwell::fuzz
