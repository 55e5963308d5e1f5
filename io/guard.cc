// SPDX-License-Identifier: Apache-2.0
#include "io/guard.h"

#include <sys/mman.h>

#include <new>

namespace stepwell::io {
namespace {

// Made ahead, when there is memory.
const Status kNoMemory = ResourceExhaustedError("no memory");

}  // namespace

Status NoMemoryTo(std::string_view what) noexcept {
  try {
    return ResourceExhaustedError(StrCat("no memory to ", what));
  } catch (const std::exception&) {
    return kNoMemory;
  }
}

bool HasMemory(size_t bytes) noexcept {
  // The allocator is asked for a byte only: glibc would take later blocks of this size from its
  // heap, and a sanitizer would mark each byte.
  void* const byte = ::operator new(1, std::nothrow);
  ::operator delete(byte);
  if (byte == nullptr) return false;
  void* const memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return false;
  ::munmap(memory, bytes);
  return true;
}

Status CannotDo(std::string_view what, const std::exception& error) noexcept {
  try {
    return InternalError(StrCat("cannot ", what, ": ", error.what()));
  } catch (const std::exception&) {
    return kNoMemory;
  }
}

}  // namespace stepwell::io
