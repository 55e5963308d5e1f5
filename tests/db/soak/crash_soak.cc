// SPDX-License-Identifier: Apache-2.0
// A writer in a process of its own is killed, or its disk loses power, again and again; after each
// time every acknowledged change is there, the others are wholly there or not at all and without a
// hole, all bytes are right, and the exports that were finished are whole. A command, not a test
// (tests/README.md):
//
//   crash_soak how=kill store=DIR [cycles=100] [seed=1] [record=FILE]
//   crash_soak how=cut fs=ext4|xfs [cycles=100] [seed=1] [record=FILE]     (as root)
//
// A power cut is the kernel's: the file system of a loop device is shut down without flushing its
// log (FS_IOC_SHUTDOWN), while the writer is stopped, and is mounted again. Every cycle follows
// from seed + its number, but for when the writer stops. Appends a line of JSON to FILE. Exit
// status 0: all of it held.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <random>

#include "tests/db/soak/crash_soak.h"
#include "tests/db/support/mount.h"
#include "tests/db/support/process_support.h"
#include "tests/db/support/store_support.h"

namespace stepwell::db::soak {
namespace {

constexpr uint64_t kDiskBytes = 400 * kMiB;
constexpr uint64_t kCyclesOfAStore = 40;  // then a new one is begun

struct Totals {
  uint64_t cycles = 0;
  uint64_t begun = 0;
  uint64_t acknowledged = 0;
  uint64_t exports = 0;
  uint64_t steps_checked = 0;
};

// Until `done`, for some seconds: what a dead process had open is closed a little later.
template <typename Done>
bool Retry(Done done) {
  for (int i = 0; i < 500; ++i) {
    if (done()) return true;
    usleep(10000);
  }
  return false;
}

Status Wrong(const std::string& what) { return InternalError(what); }

class Soak {
 public:
  Soak(std::string self, std::string how, std::string fs, std::string store, uint64_t seed)
      : self_(std::move(self)), how_(std::move(how)), seed_(seed) {
    if (how_ == "cut") {
      disk_ = std::make_unique<Mount>(fs == "xfs" ? FsKind::kXfs : FsKind::kExt4, kDiskBytes);
      store = *disk_ / "soak";
    }
    root_ = store;
  }

  bool ready() const { return disk_ == nullptr || disk_->mounted(); }
  const Totals& totals() const { return totals_; }

  Status Cycle(uint64_t cycle) {
    random_.seed(seed_ + cycle);
    if (cycle % kCyclesOfAStore == 0) {
      std::filesystem::remove_all(root_);
      state_.clear();
    }
    std::filesystem::create_directories(root_ + "/exports");
    if (disk_ != nullptr) disk_->Sync();  // the directories are this process's, and no promise
    History history(state_);
    std::vector<std::string> exports;
    STEPWELL_RETURN_IF_ERROR(RunAndCrash(&history, &exports));
    STEPWELL_RETURN_IF_ERROR(CheckAll(history, exports));
    ++totals_.cycles;
    totals_.begun += history.begun();
    totals_.acknowledged += history.acknowledged();
    return OkStatus();
  }

 private:
  std::string StorePath() const { return root_ + "/store"; }

  Status RunAndCrash(History* history, std::vector<std::string>* exports) {
    ChildProcess child({self_, "writer", StorePath(), root_ + "/exports",
                        std::to_string(1'000'000 * (seed_ + totals_.cycles))});
    std::string error;
    const auto take = [&](const std::string& line) {
      if (line.starts_with("exported ")) exports->push_back(line.substr(9));
      if (line.starts_with("error") && error.empty()) error = line;
      history->Take(line);
    };
    const bool while_opening = random_() % 10 == 0;
    const uint64_t changes = random_() % 40;
    while (!while_opening && history->acknowledged() < changes) {
      const std::string line = child.Line();
      if (line.empty()) break;
      take(line);
    }
    usleep(static_cast<useconds_t>(random_() % 20000));
    if (disk_ != nullptr) {
      // An fdatasync that is under way while the file system goes down may say that all is well:
      // whoever stands still acknowledges nothing of it.
      int status = 0;
      kill(child.pid(), SIGSTOP);
      waitpid(child.pid(), &status, WUNTRACED);
      if (!disk_->CutPower()) return Wrong("the file system cannot be shut down");
    }
    child.Kill();
    for (const std::string& line : child.Rest()) take(line);
    if (!error.empty()) return Wrong("the writer: " + error);
    if (disk_ != nullptr && !Retry([&] { return disk_->Again(); })) {
      return Wrong("the file system cannot be mounted again");
    }
    return OkStatus();
  }

  Status Check(const History& history, bool read_only, State* found) {
    StoreOptions options = SoakOptions(random_());
    options.read_only = read_only;
    return CheckStore(StorePath(), history, options, found, &totals_.steps_checked);
  }

  Status CheckAll(const History& history, const std::vector<std::string>& exports) {
    if (random_() % 4 == 0) {
      // Writes of a killed process go on landing for a while: a delete among them may end a step
      // between two calls of a reader. A writer waits for them.
      Status status;
      Retry([&] {
        State seen;
        status = Check(history, /*read_only=*/true, &seen);
        return status.code() != StatusCode::kNotFound;
      });
      STEPWELL_RETURN_IF_ERROR(status);
    }
    State found;
    STEPWELL_RETURN_IF_ERROR(Check(history, /*read_only=*/false, &found));
    state_ = std::move(found);
    STEPWELL_RETURN_IF_ERROR(CheckExports(root_ + "/exports", exports, &totals_.exports));
    std::filesystem::remove_all(root_ + "/exports");
    return OkStatus();
  }

  const std::string self_, how_;
  const uint64_t seed_;
  std::unique_ptr<Mount> disk_;
  std::string root_;
  std::mt19937_64 random_;
  State state_;  // as it was found last
  Totals totals_;
};

int Run(std::map<std::string, std::string> options, const std::string& self) {
  const auto number = [&](const char* name, uint64_t otherwise) {
    return options[name].empty() ? otherwise : std::stoull(options[name]);
  };
  const uint64_t seed = number("seed", 1);
  Soak soak(self, options["how"], options["fs"], options["store"], seed);
  if (!soak.ready()) {
    std::fprintf(stderr, "crash_soak: no file system can be mounted (it takes root)\n");
    return 2;
  }
  const auto begin = std::chrono::steady_clock::now();
  Status status;
  const uint64_t cycles = number("cycles", 100);
  for (uint64_t cycle = 0; cycle < cycles && status.ok(); ++cycle) {
    status = soak.Cycle(cycle);
    if (!status.ok()) std::printf("cycle %lu: ", static_cast<unsigned long>(cycle));
  }
  if (!status.ok()) std::printf("%s\n", status.ToString().c_str());
  const auto seconds =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - begin);
  const Totals& totals = soak.totals();
  const std::string line = StrCat(
      "{\"how\": \"", options["how"], "\", \"fs\": \"", options["fs"], "\", \"seed\": ", seed,
      ", \"cycles\": ", totals.cycles, ", \"changes\": ", totals.begun,
      ", \"acknowledged\": ", totals.acknowledged, ", \"steps_checked\": ", totals.steps_checked,
      ", \"exports_checked\": ", totals.exports, ", \"seconds\": ", seconds.count(),
      ", \"ok\": ", status.ok() ? "true" : "false", "}");
  std::printf("%s\n", line.c_str());
  if (!options["record"].empty()) std::ofstream(options["record"], std::ios::app) << line << "\n";
  return status.ok() ? 0 : 1;
}

int Main(const std::vector<std::string>& arguments) {
  if (arguments.size() == 5 && arguments[1] == "writer") {
    return RunWriter(arguments[2], arguments[3], std::stoull(arguments[4]));
  }
  std::map<std::string, std::string> options;
  for (size_t i = 1; i < arguments.size(); ++i) {
    const size_t equals = arguments[i].find('=');
    if (equals != std::string::npos) {
      options[arguments[i].substr(0, equals)] = arguments[i].substr(equals + 1);
    }
  }
  const bool kills = options["how"] == "kill" && !options["store"].empty();
  const bool cuts = options["how"] == "cut" && (options["fs"] == "ext4" || options["fs"] == "xfs");
  if (!kills && !cuts) {
    std::fprintf(stderr,
                 "usage: crash_soak how=kill store=DIR [cycles=N] [seed=N] [record=FILE]\n"
                 "       crash_soak how=cut fs=ext4|xfs [cycles=N] [seed=N] [record=FILE]\n");
    return 2;
  }
  return Run(options, arguments[0]);
}

}  // namespace
}  // namespace stepwell::db::soak

int main(int argument_count, char** arguments) {
  signal(SIGPIPE, SIG_IGN);
  return stepwell::db::soak::Main({arguments, arguments + argument_count});
}
