// SPDX-License-Identifier: Apache-2.0
// A step with all of its records, as comparisons and updates take it.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "db/read/compare.h"
#include "db/store.h"
#include "format/records.h"

namespace stepwell::db {

struct OpenedStep {
  std::shared_ptr<StepReader> reader;
  std::vector<format::LeafRecord> records;

  ComparedStep compared() const { return {reader.get(), records}; }
};

inline OpenedStep OpenStep(Store* store, uint64_t number) {
  OpenedStep step;
  auto reader = store->Read(number);
  EXPECT_TRUE(reader.ok()) << reader.status().ToString();
  step.reader = *reader;
  auto leaves = step.reader->Leaves("");
  EXPECT_TRUE(leaves.ok()) << leaves.status().ToString();
  step.records = *std::move(leaves);
  return step;
}

}  // namespace stepwell::db
