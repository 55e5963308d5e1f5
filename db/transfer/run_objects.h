// SPDX-License-Identifier: Apache-2.0
// The objects of a pushed run (FORMAT.md, "Pushed runs"), to read: what a caller that knows the
// place gives the engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "io/bytes.h"
#include "io/result.h"

namespace stepwell::db {

// Implemented by api. Every call may come from several threads at once, and blocks.
class RunObjects {
 public:
  virtual ~RunObjects() = default;
  // The place, for messages: without what is secret in it.
  virtual const std::string& name() const = 0;
  // The numbers of the steps that have a list, ascending.
  virtual Result<std::vector<uint64_t>> Steps() = 0;
  // The beginning of a step's list, header and head at least; perhaps all of it. kNotFound: there
  // is none.
  virtual Result<std::string> ListHead(uint64_t step) = 0;
  // All of a step's list, as it was at one time. kNotFound: there is none.
  virtual Result<std::string> List(uint64_t step) = 0;
  // Reads an object of data/ into `out`; returns how many bytes, fewer only where it ends.
  // kNotFound: there is no such object.
  virtual Result<size_t> Read(const std::string& object, uint64_t offset_bytes,
                              MutableBytes out) = 0;
  // Forgets what was kept of an object: it was read wrong.
  virtual void DropCached(const std::string& object) = 0;
};

}  // namespace stepwell::db
