// SPDX-License-Identifier: Apache-2.0
#include "io/guard.h"

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
  void* const memory = ::operator new(bytes, std::nothrow);
  ::operator delete(memory);
  return memory != nullptr;
}

Status CannotDo(std::string_view what, const std::exception& error) noexcept {
  try {
    return InternalError(StrCat("cannot ", what, ": ", error.what()));
  } catch (const std::exception&) {
    return kNoMemory;
  }
}

}  // namespace stepwell::io
