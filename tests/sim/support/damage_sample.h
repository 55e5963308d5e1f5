// SPDX-License-Identifier: Apache-2.0
// Small stores to be damaged, and how they are looked at afterwards: each step gives the newest
// acknowledged version or an error, and what is missing is named.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/sim/support/store_workload.h"

namespace stepwell::sim {

inline constexpr uint64_t kBlock = 4096;
inline constexpr uint64_t kNewStep = 1'000'000;

// Of steps that lie in their commit frame alone, but for one payload of 28 bytes.
constexpr uint64_t SmallSeed(uint64_t i) { return kTiny | (3 * i + 2); }

// A store, and what it must give.
struct Sample {
  std::string name;
  std::shared_ptr<SimWorld> world;
  Steps wanted;
  std::vector<std::string> older_slots;  // STEPWELL as it was after each acknowledged change
  bool with_index = false;
};

// STEPWELL, or a segment.
bool IsOfTheStore(const std::string& path);
// Which frame of a file a byte lies in: "commit", "payload", "padding", …
std::string RegionOf(const std::string& path, const std::string& bytes, uint64_t offset);
// Of frames that are written twice (FORMAT.md, "Copies").
bool HasCopy(const std::string& region);

// Saves, replaces, deletes, pins, in so many sessions; the last one is closed, or killed.
Sample MakeSample(uint64_t sessions, bool clean, bool with_index = false);

// One look at the store: what is wrong with it, in a few words that stand for a class; "" where all
// is right or named.
std::string Look(StoreMachine* machine, const Steps& wanted, const OpenSpec& spec, bool* whole,
                 std::unique_ptr<db::Store>* opened);

// Readers look, a writer opens and saves, readers look again. With `has_copy` all must be there.
std::string Examine(const std::shared_ptr<SimWorld>& world, Steps wanted, bool with_writer,
                    bool has_copy = false);

}  // namespace stepwell::sim
