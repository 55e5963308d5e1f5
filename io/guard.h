// SPDX-License-Identifier: Apache-2.0
// The border between code that may throw (the standard library when there is no memory, parsers)
// and threads of ours, where an exception would end the training process.
#pragma once

#include <cstddef>
#include <exception>
#include <new>
#include <string_view>
#include <utility>

#include "io/bytes.h"
#include "io/result.h"

namespace stepwell::io {

// The errors of the two below; without `what` where there is no memory for it.
Status NoMemoryTo(std::string_view what) noexcept;
Status CannotDo(std::string_view what, const std::exception& error) noexcept;

// Returns true if this much memory can be had just now, for libraries that end the process without
// it. Others of the process may take it meanwhile.
bool HasMemory(size_t bytes) noexcept;

// Returns the status of `work`, a Status(), or the exception that it threw, as an error. `what` is
// for the message: "encode a block".
template <typename Work>
Status Guarded(std::string_view what, Work&& work) {
  try {
    return std::forward<Work>(work)();
  } catch (const std::bad_alloc&) {
    return NoMemoryTo(what);
  } catch (const std::exception& error) {
    return CannotDo(what, error);
  }
}

// For destructors, where what cannot be done is left: for want of memory, too.
template <typename Work>
void Quietly(Work&& work) noexcept {
  try {
    std::forward<Work>(work)();
  } catch (const std::exception&) {
    return;
  }
}

}  // namespace stepwell::io
