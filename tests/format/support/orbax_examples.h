// SPDX-License-Identifier: Apache-2.0
// Every kind of file of format/orbax/ that is JSON, with texts that Orbax 0.12.8 and TensorStore
// 0.1.86 wrote: for hostile_test-like mutations, fuzz seeds, and the program that Python's tests
// run.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "io/result.h"

namespace stepwell::format::orbax {

struct FileKind {
  std::string_view name;
  // Decodes and encodes again. kInternal: what was decoded does not survive encoding and decoding.
  Result<std::string> (*reencode)(std::string_view file, std::string_view text);
  std::vector<std::string> examples;  // their re-encodings are the same bytes
};
const std::vector<FileKind>& FileKinds();

}  // namespace stepwell::format::orbax
