// SPDX-License-Identifier: Apache-2.0
// Tells what a directory is to the store beside it: a step that the store's view shows, the remains
// of one, or neither (DESIGN.md, "The view"). It only looks: no lock is taken, nothing is made.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "io/result.h"

namespace stepwell::db {

struct ShownStep {
  std::string store_path;
  uint64_t step = 0;
  // The commit of the step as the store has it now. It differs from the directory's while the view
  // has yet to follow a change of the same save.
  uint64_t commit = 0;
  // False: the store has another save under this number, or none; the view will remove the
  // directory, or make it anew.
  bool is_live = false;
};

// None: the directory is not one that the view of a store beside it made. So it is a checkpoint
// with data of its own: of another program, a copy of a step under any name and in any place, a
// symbolic link to one; or it is nothing at all.
Result<std::optional<ShownStep>> FindShownStep(const std::string& path);

}  // namespace stepwell::db
