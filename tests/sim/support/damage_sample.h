// SPDX-License-Identifier: Apache-2.0
// Small stores to be damaged, and how they are looked at afterwards: each step gives the newest
// acknowledged version or an error, and what is missing is named.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/db/support/group_support.h"
#include "tests/sim/support/store_workload.h"

namespace stepwell::sim {

inline constexpr uint64_t kBlock = 4096;

// Seeds steps that lie in their commit frame alone, but for one payload of 28 bytes.
constexpr uint64_t SmallSeed(uint64_t i) { return kTiny | (3 * i + 2); }

struct SampleShape {
  uint64_t sessions = 1;
  bool clean = true;  // the last session is closed, else killed
  bool with_index = false;
  bool group = false;  // with steps of a group of one: prepared, committed, aborted, undecided
};
std::string NameOf(const SampleShape& shape);

// The files and what they hold, after an acknowledged change.
struct SampleState {
  Steps steps;
  std::set<uint64_t> undecided;  // numbers of saves that are prepared
  std::string slots;             // STEPWELL
  std::map<std::string, std::string> segments;
};

// A store, and what it must give.
struct Sample {
  std::string name;
  std::shared_ptr<SimWorld> world;
  Steps wanted;
  std::set<uint64_t> undecided;
  OpenSpec spec;                    // of its writer
  std::vector<SampleState> states;  // after each change; the last one is that of now
};

// STEPWELL, or a segment.
bool IsOfTheStore(const std::string& path);
// Which frame of a file a byte lies in: "commit", "payload", "padding", …
std::string RegionOf(const std::string& path, const std::string& bytes, uint64_t offset);
// Returns true for frames that are written twice (FORMAT.md, "Copies").
bool HasCopy(const std::string& region);

// Saves, replaces, deletes (of items, too), pins, in so many sessions.
Sample MakeSample(const SampleShape& shape);

// One look at the store: what is wrong with it, in a few words that stand for a class; "" where all
// is right or named. `opened` stays null where the store does not open.
std::string Look(StoreMachine* machine, const Steps& wanted, const OpenSpec& spec, bool* whole,
                 std::unique_ptr<db::Store>* opened, const std::set<uint64_t>& undecided = {});

struct Demands {
  bool with_writer = false;  // readers look, a writer opens and saves, readers look again
  bool has_copy = false;     // all must be there
  bool must_open = false;    // else an error of the open is as good as any
  OpenSpec spec = {};
  std::set<uint64_t> undecided = {};
};
std::string Examine(const std::shared_ptr<SimWorld>& world, Steps wanted, const Demands& demands);
// Counts the stores that did not open, in this process.
uint64_t& RefusedOpens();

}  // namespace stepwell::sim
