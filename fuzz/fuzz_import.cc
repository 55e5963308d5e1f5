// SPDX-License-Identifier: Apache-2.0
// An Orbax checkpoint with damaged files, in memory: the first byte picks the checkpoint, the
// second says what is made right again afterwards, the rest are edits. It is described, imported
// whole and in shares, verified, and what was imported is saved. While the file of checksums is as
// it was, an import that succeeds gives what the undamaged checkpoint gives.
#include "db/export/orbax/digests.h"
#include "fuzz/support/check.h"
#include "fuzz/support/checkpoints.h"
#include "fuzz/support/edit.h"
#include "fuzz/support/frames.h"
#include "fuzz/support/input.h"
#include "fuzz/support/memory.h"
#include "tests/format/support/ocdbt_bytes.h"

namespace stepwell::fuzz {
namespace {

// The checksums at the ends of manifests, so that they do not hide what lies behind them.
void MendManifests(io::FileSystem* files, const std::string& path) {
  const auto names = files->List(path);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    const std::string manifest = path + "/" + name + "/manifest.ocdbt";
    std::string bytes = ReadFile(files, manifest);
    if (bytes.size() < 4) continue;
    bytes.resize(bytes.size() - 4);
    WriteFile(files, manifest, 0, format::orbax::WithCrc(std::move(bytes)));
  }
}

db::ImportOptions Options() {
  db::ImportOptions options;
  options.threads = 1;
  options.memory_bytes_max = kImportBytesMax;
  return options;
}

void Import(const BaseCheckpoint& base, io::FileSystem* files, bool checksums_hold) {
  const auto steps = db::FindOrbaxSteps(files, base.folder);
  if (steps.ok()) Check(steps->size() <= 1, "more steps than there were");
  (void)db::VerifyExport(files, base.path, nullptr);
  const auto checkpoint = db::OrbaxCheckpoint::Open(files, base.path);
  if (!checkpoint.ok()) return;
  for (const uint32_t count : {1U, 2U}) {
    auto plan = db::ImportPlan::Make(*checkpoint, Options());
    if (!plan.ok()) return;
    (void)plan->Identity();
    (void)plan->Read(1, {count - 1, count}, Options());
  }
  auto request = db::ImportRequest(*checkpoint, 1, Options());
  if (!request.ok()) return;
  const auto leaves = LeavesOf(*request);
  Check(!checksums_hold || (leaves.ok() && *leaves == base.imported),
        "an import whose checksums hold gives other values");
  Machine machine(sim::SimWorld::Make({}));
  const auto store = machine.Open({});
  Check(store.ok(), "making a store: ", store.status().ToString());
  const auto handle = (*store)->Save(std::move(*request));
  if (!handle.ok() || !handle->Wait().ok()) return;
  const Status same = db::VerifyImport(**store, 1, base.path, Options(), files);
  Check(same.ok() || !checksums_hold, "an import differs from its source: ", same.ToString());
}

}  // namespace
}  // namespace stepwell::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stepwell::fuzz;
  const auto& checkpoints = BaseCheckpoints();
  Input input(data, size);
  const BaseCheckpoint& base = checkpoints[input.Below(checkpoints.size())];
  const uint8_t flags = input.Byte();
  const auto world = base.world->CrashImageProcessKill(1);
  Machine machine(world);
  const std::string digests = stepwell::StrCat(base.path, "/", stepwell::db::kDigestsName);
  if ((flags & 1) != 0) machine.files()->Remove(digests).IgnoreError("it may have none");
  const EditResult edits = ApplyEdits(machine.files(), base.folder, &input);
  if ((flags & 2) != 0) MendManifests(machine.files(), base.path);
  const bool checksums_hold =
      !base.digests.empty() && ReadFile(machine.files(), digests) == base.digests;
  const MemoryLimit limit(edits.input_bytes, {size_t{16} << 20, 16}, {size_t{256} << 20, 512});
  Import(base, machine.files(), checksums_hold);
  return 0;
}
