// SPDX-License-Identifier: Apache-2.0
// The state that copies of a Step share.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <stepwell/store.h>

#include "api/cpp/core.h"
#include "api/cpp/leaf_info.h"
#include "api/cpp/leaf_table.h"
#include "io/mutex.h"

namespace stepwell {

struct [[gnu::visibility("hidden")]] Step::Impl {
  Impl(std::shared_ptr<Store::Core> store_core, std::shared_ptr<db::StepReader> step_reader)
      : core(std::move(store_core)),
        reader(std::move(step_reader)),
        info(ToPublic(reader->step())) {}
  ~Impl() {
    // A forked child owns neither the pin nor the files behind the reader.
    if (core->pid != getpid()) (void)new std::shared_ptr<db::StepReader>(std::move(reader));
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  // Reads the step's records at the first call; fails when the store is closed.
  Result<std::shared_ptr<const LeafTable>> Table();
  // Requests that have elements, checked, as the engine's; their leaves are the table's.
  static Result<std::vector<db::LoadRequest>> ToEngine(const LeafTable& leaves,
                                                       std::span<const ReadRequest> requests);
  Result<std::vector<LoadedLeaf>> Load(const std::vector<const format::LeafRecord*>& leaves) const;

  const std::shared_ptr<Store::Core> core;  // before the reader, which uses it to its end
  std::shared_ptr<db::StepReader> reader;
  const StepInfo info;
  io::Mutex mutex;
  // Null until it is asked for.
  std::shared_ptr<const LeafTable> table STEPWELL_GUARDED_BY(mutex);
};

}  // namespace stepwell
