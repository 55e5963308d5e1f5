// SPDX-License-Identifier: Apache-2.0
// io::Disk over a SimWorld. An op takes effect at a random moment between Submit and its
// completion, and ops complete in random order; the world's seed decides both. A sync covers every
// write that completed before the sync was submitted, and others by chance. Poll(true) with
// nothing in flight returns 0 at once: nothing could ever wake a single thread.
#pragma once

#include <list>
#include <memory>
#include <string>
#include <vector>

#include "io/disk.h"
#include "tests/sim/support/sim_file_system.h"

namespace stepwell::sim {

class SimDisk final : public io::Disk {
 public:
  explicit SimDisk(std::shared_ptr<SimWorld> world, size_t depth = 32)
      : world_(std::move(world)), depth_(depth) {}
  ~SimDisk() override;  // completes what is in flight

  void Submit(io::Op* op) override;
  size_t Poll(bool wait) override;
  void Wake() override {}
  size_t in_flight() const override { return ops_.size(); }
  size_t depth() const override { return depth_; }
  int RegisterBuffer(MutableBytes buffer) override;
  std::string Describe() const override { return "simulation"; }

 private:
  struct Pending {
    io::Op* op = nullptr;
    SimFile* file = nullptr;
    uint64_t length = 0;
    bool applied = false;
    SimWorld::InFlightWrite write;     // kWrite only
    bool listed = false;               // in world_->in_flight_
    std::vector<ByteRange> uncovered;  // kSync only: writes that it need not cover
  };

  // World's mutex held.
  void Apply(Pending* pending);
  Status Perform(Pending* pending);
  Status CheckOp(const Pending& pending) const;

  const std::shared_ptr<SimWorld> world_;
  const size_t depth_;
  std::list<Pending> ops_;  // in order of submission
  std::vector<MutableBytes> buffers_;
};

}  // namespace stepwell::sim
