// SPDX-License-Identifier: Apache-2.0
// Disks that fail: what fails is drawn from a seed, and recovery on such a disk is checked.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/prng.h"
#include "tests/sim/support/store_machine.h"
#include "tests/sim/support/store_model.h"

namespace stepwell::sim {

// One to three faults of reads, writes, syncs or space, soon, once or for ever.
void PlanFaults(SimWorld* world, Prng* prng);
// The same of reads, opens and looks alone: EIO, ENOMEM, EMFILE, or an early end; of the n-th one,
// or of a place.
Fault DrawReadFault(const SimWorld& world, Prng* prng);

// Opens the store for reading and for writing a few times while the disk fails; it may crash
// meanwhile. What is served must be legal, and what a writer has served stays. Then the disk is
// healthy again. Returns what went wrong; empty: nothing.
std::string RecoverFailing(std::shared_ptr<SimWorld>* world, std::vector<Steps>* legal,
                           uint64_t seed);

}  // namespace stepwell::sim
