// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/support/store_machine.h"

#include <sys/prctl.h>

#include <cstdlib>
#include <iostream>
#include <utility>
#include <vector>

#include "db/save/plan.h"

namespace stepwell::sim {
namespace {

constexpr std::string_view kSegmentsPrefix = "/store/segments/";

// Thousands of stores open and close for each second of a soak; the kernel would zero 2 MiB for the
// first byte of each of their buffers, a fifth of the time.
[[maybe_unused]] const int no_huge_pages = prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);

// Completes syncs that never happened.
class LyingDisk final : public io::Disk {
 public:
  explicit LyingDisk(std::shared_ptr<SimWorld> world) : disk_(std::move(world)) {}

  void Submit(io::Op* op) override {
    if (op->kind != io::Op::Kind::kSync) return disk_.Submit(op);
    op->status = OkStatus();
    lies_.push_back(op);
  }
  size_t Poll(bool wait) override {
    const std::vector<io::Op*> lies = std::move(lies_);
    lies_.clear();
    for (io::Op* op : lies) op->OnComplete();
    return lies.size() + disk_.Poll(wait && lies.empty());
  }
  void Wake() override {}
  size_t in_flight() const override { return disk_.in_flight() + lies_.size(); }
  size_t depth() const override { return disk_.depth(); }
  int RegisterBuffer(MutableBytes buffer) override { return disk_.RegisterBuffer(buffer); }
  std::string Describe() const override { return "lies"; }

 private:
  SimDisk disk_;
  std::vector<io::Op*> lies_;
};

}  // namespace

StoreMachine::StoreMachine(std::shared_ptr<SimWorld> world, uint64_t seed, io::FileSystem* files)
    : world_(std::move(world)),
      own_files_(world_),
      files_(files != nullptr ? files : &own_files_),
      prng_(seed) {}

Result<std::unique_ptr<db::Store>> StoreMachine::Open(const OpenSpec& spec) {
  db::Environment environment = db::InlineEnvironment();
  environment.file_system = files_;
  environment.reclaim_worker = reclaim_worker_;
  environment.make_disk = [this]() -> Result<std::unique_ptr<io::Disk>> {
    if (lies_) return std::unique_ptr<io::Disk>(std::make_unique<LyingDisk>(world_));
    return std::unique_ptr<io::Disk>(std::make_unique<SimDisk>(world_));
  };
  environment.clock = &clock_;
  environment.random = [this] { return prng_.Next(); };
  environment.without_index = !spec.with_index;

  db::StoreOptions options;
  options.read_only = spec.read_only;
  options.unpublished = spec.unpublished;
  if (spec.keep_latest) options.keep = {{.count = *spec.keep_latest}};
  if (spec.keep_last_verified) options.keep.push_back(KeepRule::LastVerified());
  options.staging_bytes = spec.staging_blocks * db::kBlockBytes;
  options.segment_bytes = spec.segment_bytes;
  options.delta = spec.delta.value_or(opens_ % 2 == 0);
  options.statistics = spec.statistics.value_or(opens_ % 3 != 2);
  ++opens_;
  options.lock_timeout = std::chrono::milliseconds(0);
  options.log = [this](LogLevel, std::string_view text) {
    log_ += StrCat(text, "\n");
    if (std::getenv("STEPWELL_SIM_TRACE") != nullptr) std::cerr << "log: " << text << "\n";
  };
  options.group = spec.group;
  const std::string path = db::PartPath(spec.path, spec.group ? spec.group->part : 0);
  return db::OpenStore(path, options, std::move(environment));
}

std::string DescribeSegments(const SimWorld& world, const std::string& path) {
  const std::string prefix = path + "/segments/";
  std::string text;
  for (const auto& [name, size] : world.Files()) {
    if (name.starts_with(prefix)) text += StrCat(" ", name.substr(prefix.size()), ":", size);
  }
  return text;
}

size_t CountSegments(const SimWorld& world) {
  size_t count = 0;
  for (const auto& [path, size] : world.Files()) count += path.starts_with(kSegmentsPrefix) ? 1 : 0;
  return count;
}

std::shared_ptr<SimWorld> OldSlotImageOf(const SimWorld& world, uint64_t seed) {
  return world.Crash({seed, SectorOdds{1, 0, 0, 0}, NameLoss::kNone, "/STEPWELL"});
}

std::shared_ptr<SimWorld> ImageOf(const SimWorld& world, uint64_t seed) {
  static constexpr SectorOdds kNothing{0, 1, 0, 0};
  static constexpr SectorOdds kAll{1, 0, 0, 0};
  static constexpr SectorOdds kTorn{2, 2, 1, 1};
  switch (seed % 7) {
    case 0:
      return world.CrashImageProcessKill(seed);
    case 1:
      return world.Crash({seed, kNothing, NameLoss::kPrefix});
    case 2:
      return world.Crash({seed, kAll, NameLoss::kIndependent});
    case 3:
      return world.Crash({seed, kTorn, {}});
    case 4:
      return OldSlotImageOf(world, seed);
    default:
      return world.Crash({seed, {}, {}});
  }
}

}  // namespace stepwell::sim
