// SPDX-License-Identifier: Apache-2.0
// Steps to and from pushed runs, for stepwell/_remote/.
#pragma once

#include <nanobind/nanobind.h>
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/python/reader.h"
#include "db/store.h"
#include "db/transfer/pull.h"
#include "db/transfer/push.h"

namespace stepwell::python {

// Plans what a push of a step sends. It uses the store only while it is made; afterwards it holds
// the step.
class PushPlan {
 public:
  // `lists`: of the place.
  PushPlan(db::StoreReader* store, const Reader& reader, const std::vector<nanobind::bytes>& lists);
  ~PushPlan();
  PushPlan(const PushPlan&) = delete;
  PushPlan& operator=(const PushPlan&) = delete;

  std::vector<uint64_t> Sizes() const;
  nanobind::bytes Read(size_t object) const;
  std::vector<format::DataObject> Referred() const { return plan_->referred(); }
  // `made`: the objects that the new ones became, in their order.
  nanobind::bytes List(const std::vector<format::DataObject>& made) const;

 private:
  std::unique_ptr<db::PushPlan> plan_;
  const pid_t pid_;
};

// Plans what a pull of a step fetches.
class PullPlan {
 public:
  PullPlan(db::StoreReader* store, const nanobind::bytes& list, std::vector<std::string> items);

  // The objects' indices, offsets and lengths.
  std::vector<std::tuple<size_t, uint64_t, uint64_t>> Ranges() const;
  void Accept(size_t range, const nanobind::bytes& bytes);
  db::SaveHandle Save(db::StoreWriter* store, const db::SaveRequest& request);

 private:
  std::unique_ptr<db::PullPlan> plan_;
};

}  // namespace stepwell::python
