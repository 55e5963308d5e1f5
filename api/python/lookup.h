// SPDX-License-Identifier: Apache-2.0
// From the root of an item down to what a path may mean, reading no more than that.
#pragma once

#include <string>
#include <vector>

#include "db/store.h"

namespace stepwell::python {

// One way to read a path: an item, and for each component what its spelling may stand for.
struct Reading {
  std::string item;
  std::vector<std::vector<format::PathComponent>> levels;
};

// The records that the readings meet on their way, in key order: nodes, and what stands at the end;
// with `below`, also everything below nodes at the end.
Result<std::vector<format::LeafRecord>> Lookup(db::StepReader& reader,
                                               const std::vector<Reading>& readings, bool below);

}  // namespace stepwell::python
