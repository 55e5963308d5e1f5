// SPDX-License-Identifier: Apache-2.0
// The objects of a pushed run as the segments of a store, so that what reads a log reads a run.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "db/log/segment_files.h"
#include "db/transfer/run_objects.h"
#include "format/pushed.h"
#include "io/mutex.h"

namespace stepwell::db {

// Thread-safe.
class ObjectFiles final : public SegmentFiles {
 public:
  explicit ObjectFiles(std::shared_ptr<RunObjects> objects);

  // Names the objects of a list by numbers that are the same in every list of the run, and makes
  // its records say these. They lead to the objects while the result lives. kDataLoss: two objects
  // have one number.
  Result<std::shared_ptr<const void>> Number(format::PushedStep* step);

  std::string PathOf(uint64_t segment) const override;
  void DropCached(uint64_t segment) override;

 private:
  using Object = std::shared_ptr<const format::DataObject>;

  Result<std::unique_ptr<io::File>> Open(uint64_t segment) override;
  Object Find(uint64_t segment) const;

  const std::shared_ptr<RunObjects> objects_;
  mutable io::Mutex mutex_;
  std::map<uint64_t, std::weak_ptr<const format::DataObject>> by_number_
      STEPWELL_GUARDED_BY(mutex_);
};

}  // namespace stepwell::db
