// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/support/store_faults.h"

#include <algorithm>
#include <cerrno>

#include "tests/sim/support/store_workload.h"

namespace stepwell::sim {
namespace {

constexpr uint64_t kBlockBytes = 4096;

std::string APath(Prng* prng) {
  static const std::vector<std::string> kPaths = {"/segments/", "/segments/", "STEPWELL", "/store"};
  return kPaths[prng->Below(kPaths.size())];
}

// For ever, on a block of a file: a medium that went bad.
Fault DrawBadBlock(const SimWorld& world, Prng* prng) {
  Fault fault{.kind = OpKind::kRead, .forever = true};
  std::vector<std::pair<std::string, uint64_t>> files = world.Files();
  std::erase_if(files, [](const auto& file) {
    return file.second == 0 || file.first.find("/index/") != std::string::npos;
  });
  if (files.empty()) return fault;
  const auto& [path, size] = files[prng->Below(files.size())];
  fault.path_contains = path;
  // Frames stand at the beginnings of segments.
  const uint64_t blocks = (size + kBlockBytes - 1) / kBlockBytes;
  const uint64_t block = prng->Below(prng->Coin() ? std::min<uint64_t>(blocks, 8) : blocks);
  fault.range = {block * kBlockBytes, kBlockBytes};
  return fault;
}

Fault DrawFault(const SimWorld& world, Prng* prng) {
  if (prng->OneIn(3)) return DrawReadFault(world, prng);
  Fault fault{.nth = 1 + prng->Below(12), .forever = prng->OneIn(3), .path_contains = APath(prng)};
  switch (prng->Below(6)) {
    case 0:
      fault.kind = OpKind::kSync;
      fault.effect = Fault::Effect::kDoAndFail;
      break;
    case 1:
      fault.kind = OpKind::kSync;
      break;
    case 2:
      fault.kind = OpKind::kSyncDirectory;
      if (prng->Coin()) fault.effect = Fault::Effect::kDoAndFail;
      break;
    case 3:
      fault.kind = OpKind::kWrite;
      break;
    case 4: {
      static constexpr OpKind kGrowing[] = {OpKind::kWrite, OpKind::kAllocate, OpKind::kCreate,
                                            OpKind::kRename};
      fault.kind = kGrowing[prng->Below(std::size(kGrowing))];
      fault.os_error = ENOSPC;
      break;
    }
    default:  // any operation
      fault.nth = 1 + prng->Below(40);
      break;
  }
  return fault;
}

// Errors are to be expected, wrong bytes and states are not.
std::string CheckServed(db::Store* store, bool is_a_promise, std::vector<Steps>* legal) {
  const auto seen = ReadAll(store);
  if (seen.status().code() == StatusCode::kInternal) return seen.status().ToString();
  if (!seen.ok()) return "";
  if (std::find(legal->begin(), legal->end(), *seen) != legal->end()) {
    if (is_a_promise) *legal = {*seen};
    return "";
  }
  std::string problem = StrCat("found ", ToText(*seen), ", legal is");
  for (const Steps& steps : *legal) problem += StrCat(" ", ToText(steps));
  return problem;
}

}  // namespace

Fault DrawReadFault(const SimWorld& world, Prng* prng) {
  if (prng->OneIn(4)) return DrawBadBlock(world, prng);
  static constexpr OpKind kKinds[] = {OpKind::kRead, OpKind::kRead, OpKind::kOpen, OpKind::kLook};
  Fault fault{.kind = kKinds[prng->Below(std::size(kKinds))],
              .nth = 1 + prng->Below(prng->Coin() ? 60 : 10),
              .forever = prng->OneIn(4),
              .os_error = prng->OneIn(3) ? ENOMEM : EIO,
              .path_contains = APath(prng)};
  if (fault.kind == OpKind::kOpen && prng->Coin()) fault.os_error = EMFILE;
  if (fault.kind == OpKind::kRead && prng->OneIn(5)) fault.effect = Fault::Effect::kShort;
  return fault;
}

void PlanFaults(SimWorld* world, Prng* prng) {
  if (prng->OneIn(3)) world->ClearFaults();
  for (uint64_t i = prng->Below(3) + 1; i > 0; --i) world->AddFault(DrawFault(*world, prng));
}

std::string RecoverFailing(std::shared_ptr<SimWorld>* world, std::vector<Steps>* legal,
                           uint64_t seed) {
  Prng prng(seed ^ 0xFA17);
  std::string problem;
  for (uint64_t i = prng.Below(3) + 1; i > 0 && problem.empty(); --i) {
    SimWorld& disk = **world;
    disk.AddFault(prng.OneIn(4) ? DrawFault(disk, &prng) : DrawReadFault(disk, &prng));
    const bool read_only = prng.OneIn(3);
    if (!read_only && prng.OneIn(3)) disk.FreezeAt(disk.mutating_ops() + 1 + prng.Below(40));
    {
      StoreMachine machine(*world, prng.Next());
      const auto store = machine.Open({.read_only = read_only});
      const bool running = !disk.frozen();
      if (store.ok()) problem = CheckServed(store->get(), !read_only && running, legal);
      if (!problem.empty()) {
        problem = StrCat("opened ", read_only ? "for reading " : "", "on a failing disk: ", problem,
                         "\nlog: ", machine.log());
      }
      if (prng.Coin()) disk.FreezeNow();  // else what closing does is there, too
    }
    disk.FreezeAt(0);
    if (prng.Coin()) disk.ClearFaults();
    if (disk.frozen()) *world = ImageOf(disk, prng.Next() % 1'000'000);
  }
  (*world)->ClearFaults();
  return problem;
}

}  // namespace stepwell::sim
