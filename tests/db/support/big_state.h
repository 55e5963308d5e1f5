// SPDX-License-Identifier: Apache-2.0
// States of many MiB that are quick to make and to check.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "db/store.h"
#include "tests/db/support/store_support.h"

namespace stepwell::db {

inline std::vector<uint32_t> BigData(uint64_t seed, uint64_t bytes) {
  std::vector<uint32_t> data(bytes / sizeof(uint32_t));
  auto word = static_cast<uint32_t>(seed * 0x9E3779B1U);
  for (uint32_t& value : data) value = word += 0x85EBCA6BU;
  return data;
}

// One held array, as JAX hands them over.
inline SaveRequest BigRequest(uint64_t step,
                              const std::shared_ptr<const std::vector<uint32_t>>& data) {
  LeafInput leaf;
  leaf.record.key = KeyOf("state", "big");
  leaf.record.kind = format::LeafKind::kArray;
  leaf.record.dtype = format::DType::kUInt32;
  leaf.record.shape = {data->size()};
  leaf.data = reinterpret_cast<const std::byte*>(data->data());
  leaf.hold = data;
  SaveRequest request;
  request.step = step;
  ItemInput item;
  item.name = "state";
  item.leaves.push_back(std::move(leaf));
  request.items.push_back(std::move(item));
  return request;
}

inline SaveRequest BigRequest(uint64_t step, uint64_t bytes) {
  return BigRequest(step, std::make_shared<const std::vector<uint32_t>>(BigData(step, bytes)));
}

inline Status CheckBig(Store* store, uint64_t step, uint64_t bytes) {
  STEPWELL_ASSIGN_OR_RETURN(const auto reader, store->Read(step));
  STEPWELL_ASSIGN_OR_RETURN(const auto leaves, reader->Leaves(""));
  if (leaves.size() != 1) return DataLossError(StrCat("step ", step, ": not one leaf"));
  std::vector<uint32_t> out(bytes / sizeof(uint32_t));
  LoadRequest request;
  request.leaf = &leaves.front();
  request.box = format::WholeArray(leaves.front().shape);
  request.out = reinterpret_cast<std::byte*>(out.data());
  STEPWELL_ASSIGN_OR_RETURN(const LoadStats stats, reader->Load({&request, 1}));
  (void)stats;
  if (out != BigData(step, bytes)) return DataLossError(StrCat("step ", step, " is wrong"));
  return OkStatus();
}

// The state that the tests that kill processes save: most steps small, every third of some MiB, in
// part held and in part copied.
inline std::vector<LeafSpec> KillState(uint64_t step) {
  const uint64_t rows = step % 3 == 0 ? 500 : 20;
  return {
      {"w", {rows, 1000}, true, false}, {"v", {rows, 200}, false, false}, {"n", {}, false, false}};
}

}  // namespace stepwell::db
