// SPDX-License-Identifier: Apache-2.0
// What views need of a store that is open for writing.
#include <utility>

#include "db/log/lock.h"
#include "db/store/writer_store.h"

namespace stepwell::db {

Result<std::shared_ptr<const StoreSnapshot>> WriterStore::Snapshot() {
  STEPWELL_RETURN_IF_ERROR(CheckNotForked(pid_));
  struct Keep {
    std::shared_ptr<ReadCore> core;  // before the pin: the pin is let go first
    std::shared_ptr<LiveSteps::Pin> pin;
  };
  const auto own = [this]() -> Result<StoreSnapshot> {
    auto [live, pin] = core_->live.AllAndPin();
    StoreSnapshot snapshot;
    for (const auto& step : live) snapshot.steps.push_back(BriefOf(step->record));
    snapshot.pin = std::make_shared<Keep>(Keep{core_, std::move(pin)});
    return snapshot;
  };
  return SnapshotWithParts(*core_->parts, own);
}

void WriterStore::OnChange(const void* owner, std::function<void()> changed) {
  core_->live.OnCommit(owner, std::move(changed));
}

void WriterStore::OpenViews() {
  if (environment_.inline_mode) return;  // they have threads of their own
  views_.OpenRemembered(this, environment_.file_system, options_.log);
}

}  // namespace stepwell::db
