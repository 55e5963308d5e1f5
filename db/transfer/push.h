// SPDX-License-Identifier: Apache-2.0
// Plans a push of a step to a run: the payloads that no list there has, in new objects, and the
// step's list (DESIGN.md, "Pushed runs"). Nothing is written here; the caller moves objects.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "db/log/chunk_source.h"
#include "db/log/segment_files.h"
#include "db/store.h"
#include "format/pushed.h"

namespace stepwell::db {

class PushPlan {
 public:
  // `there`: steps of the place, in the order in which their payloads are preferred. `store`
  // outlives this. kFailedPrecondition: several processes saved the step. Reads chunks that are
  // differences, and those that are known by no hash.
  static Result<PushPlan> Make(StoreReader& store, std::shared_ptr<StepReader> reader,
                               std::vector<format::PushedStep> there);

  // The objects to be made, and the most bytes of one unless it is a single payload.
  static constexpr uint64_t kObjectBytesMax = uint64_t{8} << 20;
  size_t object_count() const { return objects_.size(); }
  uint64_t object_bytes(size_t object) const { return objects_[object].size_bytes; }
  // The object's bytes, checked. Thread-safe; the same each time.
  Result<std::string> Read(size_t object) const;

  // Objects that are there and are needed.
  const std::vector<format::DataObject>& referred() const { return referred_; }
  // The list, once it is known what became of the objects to be made: one for each.
  // kInvalidArgument: it would be longer than readers take.
  Result<std::string> List(std::span<const format::DataObject> made) const;

 private:
  struct NewObject {
    std::vector<format::StoredPayload> payloads;  // places in the store
    uint64_t size_bytes = 0;
  };
  class Planner;

  PushPlan(StoreReader& store, std::shared_ptr<StepReader> reader);
  // The payload, checked; errors name its file and offset.
  Result<std::string> Fetch(const format::StoredPayload& payload) const;

  std::shared_ptr<StepReader> reader_;
  std::unique_ptr<SegmentFiles> files_;
  std::unique_ptr<ChunkSources> sources_;
  std::vector<NewObject> objects_;
  std::vector<format::DataObject> referred_;
  // The list. The `segment` of a payload is an index of `referred_`, or, with kNewObject, of
  // `objects_`.
  format::PushedStep list_;
};

}  // namespace stepwell::db
