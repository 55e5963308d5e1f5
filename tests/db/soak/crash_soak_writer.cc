// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <random>
#include <sstream>

#include "db/export/export.h"
#include "tests/db/soak/crash_soak.h"
#include "tests/db/support/big_state.h"

namespace stepwell::db::soak {
namespace {

constexpr const char* kNames[] = {"save", "delete", "pin", "unpin"};
constexpr size_t kLiveMax = 8;

// One write: a line is there whole or not at all, also when this process is killed.
void PrintLine(const std::string& text) {
  const std::string line = text + "\n";
  if (write(STDOUT_FILENO, line.data(), line.size()) < 0) _exit(3);
}

void ReportOutcome(uint64_t number, const Status& status) {
  if (status.ok()) return PrintLine(StrCat("ack ", number));
  if (status.code() != StatusCode::kOutcomeUnknown) PrintLine(StrCat("fail ", number));
  PrintLine("error " + status.ToString());
}

class Writer {
 public:
  Writer(std::string path, std::string exports, uint64_t seed)
      : path_(std::move(path)), exports_(std::move(exports)), random_(seed), next_seed_(seed) {}

  Status Run() {
    STEPWELL_RETURN_IF_ERROR(Open());
    PrintLine("open");
    for (;;) STEPWELL_RETURN_IF_ERROR(Next());
  }

 private:
  uint64_t Below(uint64_t bound) { return random_() % bound; }

  Status Open() {
    STEPWELL_ASSIGN_OR_RETURN(store_, Store::Open(path_, SoakOptions(random_())));
    STEPWELL_ASSIGN_OR_RETURN(const auto steps, store_->Steps());
    const std::lock_guard lock(mutex_);
    live_.clear();
    for (const format::StepRecord& step : steps) {
      live_[step.step] = {.seed = 0, .pinned = step.pinned};
      next_step_ = std::max(next_step_, step.step + 1);
    }
    return OkStatus();
  }

  // A live step whose save is acknowledged and that is pinned or not; none: false.
  bool Pick(bool pinned, uint64_t* step) {
    const std::lock_guard lock(mutex_);
    std::vector<uint64_t> steps;
    for (const auto& [number, live] : live_) {
      if (live.pinned == pinned) steps.push_back(number);
    }
    if (steps.empty()) return false;
    *step = steps[Below(steps.size())];
    return true;
  }

  size_t LiveCount() {
    const std::lock_guard lock(mutex_);
    return live_.size();
  }

  uint64_t Begin(const Change& change) {
    PrintLine(StrCat("begin ", ++number_, " ", kNames[static_cast<size_t>(change.kind)], " ",
                     change.step, " ", change.seed));
    return number_;
  }

  Status Save(uint64_t step) {
    const Change change{Change::Kind::kSave, step, ++next_seed_};
    {
      const std::lock_guard lock(mutex_);
      live_.erase(step);  // not to be touched until this is acknowledged
    }
    const uint64_t number = Begin(change);
    const auto handle =
        SaveSeeded(store_.get(), step, change.seed, KillState(step), IfExists::kReplace);
    if (!handle.ok()) {
      ReportOutcome(number, handle.status());
      return handle.status();
    }
    handle->OnComplete([this, number, change](const Status& status) {
      ReportOutcome(number, status);
      const std::lock_guard lock(mutex_);
      live_[change.step] = {change.seed, false};
    });
    return Below(3) == 0 ? handle->Wait() : OkStatus();
  }

  Status ChangeNow(Change::Kind kind, uint64_t step) {
    const Change change{kind, step, 0};
    const uint64_t number = Begin(change);
    const Status status = kind == Change::Kind::kDelete
                              ? store_->Delete({&step, 1})
                              : store_->SetPinned({&step, 1}, kind == Change::Kind::kPin);
    ReportOutcome(number, status);
    STEPWELL_RETURN_IF_ERROR(status);
    const std::lock_guard lock(mutex_);
    change.ApplyTo(&live_);
    return OkStatus();
  }

  Status ExportStep(uint64_t step) {
    // The step's name gives its expected contents (crash_soak_check.cc).
    STEPWELL_ASSIGN_OR_RETURN(const auto reader, store_->Read(step));
    const std::string& text = reader->step().metadata_json;  // {"seed": N}
    if (text.size() < 10) return InternalError("metadata " + text);
    const std::string name =
        StrCat("export", ++number_of_exports_, "_", step, "_", std::stoull(text.substr(9)));
    ExportOptions options;
    options.mode = Below(2) == 0 ? ExportMode::kLink : ExportMode::kCopy;
    const auto report = Export(*store_, step, exports_ + "/" + name, options);
    if (!report.ok()) return report.status();
    PrintLine("exported " + name);
    return OkStatus();
  }

  Status Next() {
    const uint64_t draw = Below(100);
    uint64_t step = 0;
    if (LiveCount() >= kLiveMax || draw < 15) {
      if (Pick(/*pinned=*/false, &step)) return ChangeNow(Change::Kind::kDelete, step);
      if (Pick(/*pinned=*/true, &step)) return ChangeNow(Change::Kind::kUnpin, step);
      return store_->Wait();
    }
    if (draw < 30 && Pick(false, &step)) return Save(step);
    if (draw < 36 && Pick(false, &step)) return ChangeNow(Change::Kind::kPin, step);
    if (draw < 40 && Pick(true, &step)) return ChangeNow(Change::Kind::kUnpin, step);
    if (draw < 43 && Pick(false, &step)) return ExportStep(step);
    if (draw < 45) return store_->Reclaim().status();
    if (draw < 46) {
      STEPWELL_RETURN_IF_ERROR(store_->Close());
      return Open();
    }
    return Save(next_step_++);
  }

  const std::string path_, exports_;
  std::mt19937_64 random_;
  std::mutex mutex_;  // callbacks come on a thread of the store
  State live_;        // acknowledged
  uint64_t next_step_ = 0;
  uint64_t next_seed_;
  uint64_t number_ = 0;
  uint64_t number_of_exports_ = 0;
  std::unique_ptr<Store> store_;  // last: its callbacks use the rest
};

}  // namespace

StoreOptions SoakOptions(uint64_t seed) {
  StoreOptions options;
  options.disk = seed % 4 == 0 ? io::DiskKind::kPosix : io::DiskKind::kUring;
  options.segment_bytes = seed % 3 == 0 ? 256 << 10 : 4 << 20;
  options.staging_bytes = 32 << 20;
  options.threads = 2;
  if (seed % 2 == 0) options.steps_before_index = 0;  // an index at any size
  return options;
}

int RunWriter(const std::string& store, const std::string& exports, uint64_t seed) {
  const Status status = Writer(store, exports, seed).Run();
  PrintLine("error " + status.ToString());
  return 1;
}

void Change::ApplyTo(State* state) const {
  switch (kind) {
    case Kind::kSave:
      (*state)[step] = {seed, false};
      break;
    case Kind::kDelete:
      state->erase(step);
      break;
    case Kind::kPin:
    case Kind::kUnpin:
      if (const auto found = state->find(step); found != state->end()) {
        found->second.pinned = kind == Kind::kPin;
      }
      break;
  }
}

bool History::Take(const std::string& line) {
  std::istringstream words(line);
  std::string what, name;
  uint64_t number = 0;
  words >> what >> number;
  if (what == "ack") {
    last_ack_ = std::max(last_ack_, number);
    ++acknowledged_;
    return true;
  }
  if (what == "fail") {
    failed_.insert(number);
    return true;
  }
  Change change;
  if (what != "begin" || !(words >> name >> change.step >> change.seed)) return false;
  const auto* found = std::find(std::begin(kNames), std::end(kNames), name);
  change.kind = static_cast<Change::Kind>(found - std::begin(kNames));
  changes_.push_back(change);
  return number == begun();
}

std::vector<std::pair<uint64_t, State>> History::NumberedLegal() const {
  std::vector<std::pair<uint64_t, State>> legal;
  State state = before_;
  for (uint64_t number = 0; number <= begun(); ++number) {
    if (number > 0 && failed_.contains(number)) continue;
    if (number > 0) changes_[number - 1].ApplyTo(&state);
    if (number >= last_ack_) legal.emplace_back(number, state);
  }
  return legal;
}

std::vector<State> History::Legal() const {
  std::vector<State> legal;
  for (auto& [number, state] : NumberedLegal()) legal.push_back(std::move(state));
  return legal;
}

void History::Served(const State& found) {
  for (const auto& [number, state] : NumberedLegal()) {
    if (state != found) continue;
    last_ack_ = number;
    return;
  }
}

std::string History::Check(const State& found) const {
  const std::vector<State> legal = Legal();
  if (std::find(legal.begin(), legal.end(), found) != legal.end()) return "";
  std::string text = StrCat("found ", ToText(found), ", legal is");
  for (const State& state : legal) text += " " + ToText(state);
  return text;
}

std::string ToText(const State& state) {
  std::string text = "{";
  for (const auto& [step, live] : state) {
    text += StrCat(text.size() > 1 ? " " : "", step, ":", live.seed, live.pinned ? "p" : "");
  }
  return text + "}";
}

}  // namespace stepwell::db::soak
