// SPDX-License-Identifier: Apache-2.0
// Reports a property that does not hold and aborts the fuzz target, in either mode.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

#include "io/bytes.h"

namespace stepwell::fuzz {

[[noreturn]] inline void Fail(const std::string& what) {
  std::fprintf(stderr, "property broken: %s\n", what.c_str());
  std::abort();
}

template <typename... Args>
void Check(bool holds, const Args&... what) {
  if (!holds) [[unlikely]]
    Fail(StrCat(what...));
}

}  // namespace stepwell::fuzz
