// SPDX-License-Identifier: Apache-2.0
// The border between code that may throw (the standard library when there is no memory, parsers)
// and threads of ours, where an exception would end the training process.
#pragma once

#include <exception>
#include <new>
#include <string_view>
#include <utility>

#include "io/bytes.h"
#include "io/result.h"

namespace stepwell::io {

// What `work`, a Status(), says; or what it threw, as an error. `what` is for the message: "encode
// a block".
template <typename Work>
Status Guarded(std::string_view what, Work&& work) {
  try {
    return std::forward<Work>(work)();
  } catch (const std::bad_alloc&) {
    return ResourceExhaustedError(StrCat("no memory to ", what));
  } catch (const std::exception& error) {
    return InternalError(StrCat("cannot ", what, ": ", error.what()));
  }
}

}  // namespace stepwell::io
