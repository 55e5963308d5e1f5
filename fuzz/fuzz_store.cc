// SPDX-License-Identifier: Apache-2.0
// A whole store with damaged files, in memory: the first byte picks the store, the rest are edits.
#include "fuzz/support/edit.h"
#include "fuzz/support/exercise.h"
#include "fuzz/support/input.h"
#include "fuzz/support/memory.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stepwell::fuzz;
  const auto& stores = BaseStores();
  Input input(data, size);
  const BaseStore& base = stores[input.Below(stores.size())];
  const auto world = base.world->CrashImageProcessKill(1);
  Machine machine(world);
  const EditResult edits = ApplyEdits(machine.files(), kStorePath, &input);
  const MemoryLimit limit(edits.input_bytes, {size_t{16} << 20, 16}, {size_t{256} << 20, 512});
  Exercise([&](stepwell::db::StoreOptions options) { return machine.Open(std::move(options)); },
           base.history, DamageOf(edits, base.marked));
  return 0;
}
