// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <sstream>

#include "db/export/export.h"
#include "db/export/orbax/digests.h"
#include "db/import/import.h"
#include "tests/db/soak/crash_soak.h"
#include "tests/db/support/big_state.h"
#include "tests/db/support/nth.h"
#include "tests/db/support/store_support.h"

namespace stepwell::db::nth {
namespace {

using soak::Change;
using soak::LiveStep;
using soak::State;

constexpr uint64_t kImported = 50;
constexpr uint64_t kBig = 60;  // whose seed is its size

std::vector<LeafSpec> Leaves() {
  return {{"held", {70, 300}, true, false},
          {"copied", {90, 100}, false, false},
          {"flat", {30000}, false, true},
          {"none", {0}, false, false}};
}

StoreOptions OptionsOf(io::DiskKind disk) {
  StoreOptions options;
  options.disk = disk;
  options.segment_bytes = 256 << 10;  // a few steps
  options.staging_bytes = 32 << 20;
  options.threads = 2;
  return options;
}

class Workload {
 public:
  Workload(const std::string& folder, io::DiskKind disk, const Fault& fault, int out)
      : path_(folder + "/store"),
        exports_(folder + "/exports"),
        disk_(disk),
        fault_(fault),
        out_(out) {}

  void Run() {
    Open(/*read_only=*/false);
    for (uint64_t step = 0; step < 3; ++step) Save(step, 100 + step);
    Save(1, 201);
    Make({Change::Kind::kPin, 0, 0});
    Check();
    Make({Change::Kind::kDelete, 2, 0});
    Save(3, 103);
    ExportStep(3, ExportMode::kCopy);
    ExportStep(1, ExportMode::kLink);
    Import();
    Use([&] { return store_->Reclaim().status(); });
    Use([&] { return store_->Verify({}).status(); });
    Use([&] {
      store_->Stats();
      return store_->Wait();
    });
    Make({Change::Kind::kUnpin, 0, 0});
    Make({Change::Kind::kDelete, 0, 0});
    Close();
    Open(/*read_only=*/true);
    Check();
    Use([&] { return store_->Verify({}).status(); });
    Close();
    Open(/*read_only=*/false);
    Save(4, 104);
    Check();
    if (fault_.kind == Fault::Kind::kMemory) SaveBig();
    Close();
    Say(StrCat("done ", Counted()));
  }

 private:
  // One write: a line is there whole or not at all, also when this process is killed.
  void Say(const std::string& text) {
    const std::string line = text + "\n";
    if (write(out_, line.data(), line.size()) < 0) _exit(3);
  }

  // What the store says, or throws: that is for the caller's side of an interface to turn into an
  // error (api/c, api/python).
  template <typename Call>
  Status Of(Call&& call, bool has_json = false) {
    // nlohmann's JSON ends the process where its destructor has no memory, here and there.
    std::optional<StoresOwn> own;
    if (!has_json || fault_.kind != Fault::Kind::kAlloc) own.emplace();
    try {
      return call();
    } catch (const std::bad_alloc&) {
      threw_ = true;
    }
    return OkStatus();
  }
  template <typename Call>
  void Use(Call&& call) {
    if (store_ != nullptr) Of(call).IgnoreError("it changes nothing");
    threw_ = false;
  }

  void Open(bool read_only) {
    StoreOptions options = OptionsOf(disk_);
    options.read_only = read_only;
    const Status status = Of([&] {
      auto store = Store::Open(path_, options);
      if (store.ok()) store_ = std::move(*store);
      return store.status();
    });
    Say(threw_ ? "open threw" : "open " + status.ToString());
    threw_ = false;
  }

  void Close() {
    if (store_ == nullptr) return;
    const Status status = Of([&] { return store_->Close(); });
    Say(threw_ ? "close threw" : "close " + status.ToString());
    threw_ = false;
    const StoresOwn own;
    store_.reset();
  }

  // `change` is there, is not, or nobody knows.
  void Outcome(const Status& status) {
    if (std::exchange(threw_, false)) {
      Say("unknown it threw");
    } else if (status.ok()) {
      Say("ok");
    } else {
      Say((status.code() == StatusCode::kOutcomeUnknown ? "unknown " : "no ") + status.ToString());
    }
  }
  void Begin(const Change& change) {
    Say(StrCat("begin ", static_cast<int>(change.kind), " ", change.step, " ", change.seed));
  }

  void SaveRequested(const Change& change, SaveRequest request) {
    if (store_ == nullptr) return;
    Begin(change);
    request.if_exists = IfExists::kReplace;
    Outcome(Of([&] {
      const auto handle = store_->Save(std::move(request));
      return handle.ok() ? handle->Wait() : handle.status();
    }));
  }
  void Save(uint64_t step, uint64_t seed) {
    std::vector<std::vector<float>> scratch;
    scratch.reserve(Leaves().size());
    SaveRequested({Change::Kind::kSave, step, seed}, MakeRequest(step, seed, Leaves(), &scratch));
  }

  // Copied, not held: with the copy it is more than the process may have, or about that.
  void SaveBig() {
    SaveRequest request = BigRequest(kBig, fault_.n << 19);
    request.items[0].leaves[0].hold.reset();
    const std::vector<uint32_t> data = BigData(kBig, fault_.n << 19);
    request.items[0].leaves[0].data = reinterpret_cast<const std::byte*>(data.data());
    request.metadata_json = StrCat("{\"seed\": ", fault_.n << 19, "}");
    SaveRequested({Change::Kind::kSave, kBig, fault_.n << 19}, std::move(request));
  }

  void Make(const Change& change) {
    if (store_ == nullptr) return;
    Begin(change);
    Outcome(Of([&] {
      return change.kind == Change::Kind::kDelete
                 ? store_->Delete({&change.step, 1})
                 : store_->SetPinned({&change.step, 1}, change.kind == Change::Kind::kPin);
    }));
  }

  void ExportStep(uint64_t step, ExportMode mode) {
    if (store_ == nullptr) return;
    const std::string name = StrCat("export", step);
    ExportOptions options;
    options.mode = mode;
    const std::string place = exports_ + "/" + name;
    const Status status = Of([&] { return Export(*store_, step, place, options).status(); },
                             /*has_json=*/true);
    if (!std::exchange(threw_, false) && status.ok()) Say("exported " + name);
  }

  // What is loaded is right, or an error that blames what failed, not the store.
  void Check() {
    if (store_ == nullptr) return;
    std::vector<StepSummary> steps;
    if (!Of([&] {
           auto listed = store_->Steps();
           if (listed.ok()) steps = std::move(*listed);
           return listed.status();
         }).ok()) {
      return;
    }
    threw_ = false;
    for (const StepSummary& summary : steps) {
      const uint64_t step = summary.step.step;
      if (step >= kImported) continue;
      const Status status = Of([&] {
        STEPWELL_ASSIGN_OR_RETURN(const auto reader, store_->Read(step));
        const std::string& text = reader->step().metadata_json;  // {"seed": N}
        if (text.size() < 10) return InternalError("no metadata");
        return CheckSeeded(reader.get(), std::stoull(text.substr(9)), Leaves());
      });
      if (std::exchange(threw_, false)) continue;
      if (status.code() == StatusCode::kInternal || status.code() == StatusCode::kDataLoss ||
          status.code() == StatusCode::kNotFound) {
        Say(StrCat("wrong: loading step ", step, ": ", status.ToString()));
      }
    }
  }

  void Import() {
    if (store_ == nullptr) return;
    SaveRequest request;
    const Status status = Of(
        [&] {
          STEPWELL_ASSIGN_OR_RETURN(
              const auto checkpoint,
              OrbaxCheckpoint::Open(io::LocalFileSystem(), exports_ + "/export3"));
          ImportOptions options;
          options.threads = 2;
          STEPWELL_ASSIGN_OR_RETURN(request, ImportRequest(checkpoint, kImported, options));
          return OkStatus();
        },
        /*has_json=*/true);
    if (std::exchange(threw_, false) || !status.ok()) return;
    SaveRequested({Change::Kind::kSave, kImported, 103}, std::move(request));
  }

  const std::string path_, exports_;
  const io::DiskKind disk_;
  const Fault fault_;
  const int out_;
  bool threw_ = false;
  std::unique_ptr<Store> store_;
};

// Behind every line: what may be live.
std::vector<State> StatesAfter(const std::vector<std::string>& lines, std::string* problem) {
  std::vector<State> states = {{}};
  Change change;
  bool open_change = false;
  const auto may_be = [&](bool also_without) {
    std::vector<State> after = also_without ? states : std::vector<State>{};
    for (State state : states) {
      change.ApplyTo(&state);
      if (std::find(after.begin(), after.end(), state) == after.end()) after.push_back(state);
    }
    states = std::move(after);
    open_change = false;
  };
  for (const std::string& line : lines) {
    std::istringstream words(line);
    std::string what;
    words >> what;
    if (what == "begin") {
      int kind = 0;
      words >> kind >> change.step >> change.seed;
      change.kind = static_cast<Change::Kind>(kind);
      open_change = true;
    }
    if (what == "ok") may_be(/*also_without=*/false);
    if (what == "unknown") may_be(/*also_without=*/true);
    if (what == "no") open_change = false;
    if (what == "wrong:") *problem = line;
  }
  if (open_change) may_be(/*also_without=*/true);
  return states;
}

Result<State> Found(Store* store) {
  State found;
  STEPWELL_ASSIGN_OR_RETURN(const auto steps, store->Steps());
  for (const StepSummary& summary : steps) {
    const uint64_t step = summary.step.step;
    STEPWELL_ASSIGN_OR_RETURN(const auto reader, store->Read(step));
    const std::string& text = reader->step().metadata_json;
    if (text.size() < 10) return InternalError("metadata " + text);
    const uint64_t seed = std::stoull(text.substr(9));
    if (step < kImported) {
      STEPWELL_RETURN_IF_ERROR(CheckSeeded(reader.get(), seed, Leaves()));
    } else if (step == kBig) {
      STEPWELL_RETURN_IF_ERROR(CheckBig(store, step, seed));
    }
    found[step] = {seed, summary.step.pinned};
  }
  return found;
}

Status LookAt(const std::string& path, bool read_only, const std::vector<State>& states,
              bool save_more) {
  StoreOptions options = OptionsOf(io::DiskKind::kPosix);
  options.read_only = read_only;
  STEPWELL_ASSIGN_OR_RETURN(const auto store, Store::Open(path, options));
  for (const std::string& problem : store->recovery().problems) return DataLossError(problem);
  STEPWELL_ASSIGN_OR_RETURN(State found, Found(store.get()));
  if (std::find(states.begin(), states.end(), found) == states.end()) {
    std::string text = StrCat("found ", ToText(found), ", legal is");
    for (const State& state : states) text += " " + ToText(state);
    return InternalError(text);
  }
  STEPWELL_ASSIGN_OR_RETURN(const VerifyReport report, store->Verify({}));
  for (const VerifyProblem& problem : report.problems) return DataLossError(problem.message);
  if (save_more) {
    STEPWELL_ASSIGN_OR_RETURN(const auto handle, SaveSeeded(store.get(), 9, 109, Leaves()));
    STEPWELL_RETURN_IF_ERROR(handle.Wait());
  }
  return store->Close();
}

// RocksDB is not made for exceptions: where its own functions have no memory they end the process,
// which then counts as killed. Says "crash", and whose, and waits to be looked at.
int g_out = -1;

bool IsInRocks(void* const* frames, int count) {
  for (int i = 0; i < count; ++i) {
    Dl_info info{};
    if (dladdr(frames[i], &info) == 0 || info.dli_fname == nullptr) continue;
    if (std::strstr(info.dli_fname, "librocksdb") != nullptr) return true;
  }
  return false;
}

void SayCrash(int) {
  void* frames[64];
  const char* const line = IsInRocks(frames, backtrace(frames, 64)) ? "crash rocksdb\n" : "crash\n";
  if (write(g_out, line, std::strlen(line)) < 0) _exit(3);
  kill(getpid(), SIGSTOP);
  for (;;) pause();
}

}  // namespace

void RunWorkload(const std::string& folder, io::DiskKind disk, const Fault& fault, int out) {
  g_out = out;
  void* frame = nullptr;
  backtrace(&frame, 1);  // which loads what it needs
  for (const int signal_number : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) {
    signal(signal_number, SayCrash);
  }
  Workload workload(folder, disk, fault, out);
  if (!Arm(fault)) _exit(4);
  workload.Run();
}

bool CheckStore(const std::string& folder, const std::vector<std::string>& lines,
                std::string* problem) {
  std::vector<State> states = StatesAfter(lines, problem);
  if (!problem->empty()) return false;
  Status status = LookAt(folder + "/store", /*read_only=*/false, states, /*save_more=*/true);
  if (status.ok()) {
    for (State& state : states) state[9] = {109, false};
    status = LookAt(folder + "/store", /*read_only=*/true, states, /*save_more=*/false);
  }
  for (const std::string& line : lines) {
    const std::string place = folder + "/exports/" + line.substr(std::min<size_t>(9, line.size()));
    if (!status.ok() || !line.starts_with("exported ")) continue;
    const auto report = VerifyExport(io::LocalFileSystem(), place, {});
    status = report.status();
    if (report.ok() && !report->problems.empty()) {
      status = DataLossError(report->problems.front().message);
    }
  }
  if (!status.ok()) *problem = status.ToString();
  return status.ok();
}

}  // namespace stepwell::db::nth
