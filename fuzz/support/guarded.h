// SPDX-License-Identifier: Apache-2.0
// Memory that ends at a page that cannot be touched: libraries that no sanitizer sees into crash
// at the first byte behind it.
#pragma once

#include <sys/mman.h>

#include <cstring>

#include "fuzz/support/check.h"
#include "io/bytes.h"

namespace stepwell::fuzz {

class GuardedBytes {
 public:
  explicit GuardedBytes(size_t size) : size_(size) {
    mapped_ = AlignUp(size, kPageBytes) + kPageBytes;
    void* memory =
        mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    Check(memory != MAP_FAILED, "no memory for the harness");
    begin_ = static_cast<std::byte*>(memory);
    Check(mprotect(begin_ + mapped_ - kPageBytes, kPageBytes, PROT_NONE) == 0, "mprotect");
  }
  explicit GuardedBytes(ConstBytes bytes) : GuardedBytes(bytes.size()) {
    if (!bytes.empty()) std::memcpy(this->bytes().data(), bytes.data(), bytes.size());
  }
  ~GuardedBytes() { munmap(begin_, mapped_); }
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;

  MutableBytes bytes() { return {begin_ + mapped_ - kPageBytes - size_, size_}; }

 private:
  static constexpr size_t kPageBytes = 4096;
  size_t size_;
  size_t mapped_ = 0;
  std::byte* begin_ = nullptr;
};

}  // namespace stepwell::fuzz
