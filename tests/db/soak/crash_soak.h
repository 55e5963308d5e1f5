// SPDX-License-Identifier: Apache-2.0
// The messages of the writer of crash_soak.cc, and the states that a crash may leave of it.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "db/store.h"

namespace stepwell::db::soak {

// A live step.
struct ModelStep {
  uint64_t seed = 0;
  bool pinned = false;

  bool operator==(const ModelStep&) const = default;
};
using State = std::map<uint64_t, ModelStep>;

std::string ToText(const State& state);

// One change of the store. On a line: its number, its name, step and seed.
struct Change {
  enum class Kind { kSave, kDelete, kPin, kUnpin };
  Kind kind = Kind::kSave;
  uint64_t step = 0;
  uint64_t seed = 0;  // kSave, also in the place of a step that is there

  void ApplyTo(State* state) const;
};

// The changes of one writer in the order in which it began them, which is that of their commits.
class History {
 public:
  explicit History(State before) : before_(std::move(before)) {}

  // "begin NUMBER KIND STEP SEED", "ack NUMBER" and "fail NUMBER", of one that was not done; other
  // lines are not its own: false.
  bool Take(const std::string& line);

  // Empty, or what is wrong: the state must be that of all changes up to one, and no acknowledged
  // one may be behind that.
  std::string Check(const State& found) const;

  // Somebody read that state: from now on it is durable, as if it were acknowledged.
  void Served(const State& found);

  uint64_t durable() const { return last_ack_; }  // the number of a change
  uint64_t begun() const { return changes_.size(); }
  uint64_t acknowledged() const { return acknowledged_; }
  // The acknowledged state and all that may be instead.
  std::vector<State> Legal() const;

 private:
  // The states that Legal() gives, each with the number of the change that it is behind.
  std::vector<std::pair<uint64_t, State>> NumberedLegal() const;

  State before_;
  std::vector<Change> changes_;
  std::set<uint64_t> failed_;
  uint64_t last_ack_ = 0;  // changes up to this one are acknowledged, or ordered before one
  uint64_t acknowledged_ = 0;
};

// Opens the store, reads every byte of it, compares that with the history and verifies it. Wrong
// bytes, a state that is not legal and what recovery reports are errors. (A reader of a store that
// is not there finds nothing.)
Status CheckStore(const std::string& store, const History& history, const StoreOptions& options,
                  State* found, uint64_t* steps_checked);
// Reads the live steps. Wrong bytes are kInternal, so that no caller takes them for an error that
// the store reports.
Status ReadState(Store* store, State* found, uint64_t* steps_checked);
// Each export in the directory is whole, and those that were finished are there.
Status CheckExports(const std::string& directory, const std::vector<std::string>& finished,
                    uint64_t* exports_checked);

// Saves, replaces, deletes, pins, exports into `exports`, reclaims and reopens until it is killed
// or a call fails.
int RunWriter(const std::string& store, const std::string& exports, uint64_t seed);

// Small segments, so that all of the life of a segment happens.
StoreOptions SoakOptions(uint64_t seed);

}  // namespace stepwell::db::soak
