// SPDX-License-Identifier: Apache-2.0
// What the steps of a simulated store hold, from one seed each: saving it, and checking it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tests/db/support/store_support.h"
#include "tests/sim/support/store_model.h"

namespace stepwell::sim {

// Seeds of other than the usual steps.
inline constexpr uint64_t kTiny = uint64_t{1} << 60;
inline constexpr uint64_t kLarge = uint64_t{1} << 59;
// The shape of the state that is saved under a seed.
std::vector<db::LeafSpec> SpecsOf(uint64_t seed);
// Returns the contents of a save under this seed. Every other one has an item "extra" beside
// "state".
uint64_t HeldOf(uint64_t seed);
Result<db::SaveHandle> SaveStep(db::Store* store, uint64_t step, uint64_t seed,
                                db::IfExists if_exists = db::IfExists::kError,
                                const std::optional<db::GroupSave>& group = std::nullopt,
                                std::vector<uint64_t> retire = {});
// Wrong bytes are kInternal; what the store itself refuses has the store's code.
Status CheckStep(db::StepReader* reader, uint64_t held);
Status CheckStep(db::Store* store, uint64_t step, uint64_t held);
// Steps with what they hold as the store shows them; every byte is checked.
Result<Steps> ReadAll(db::Store* store);

}  // namespace stepwell::sim
