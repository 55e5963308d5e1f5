// SPDX-License-Identifier: Apache-2.0
// A long run under "keep the latest 5" whose writer is killed again and again: nothing that was
// acknowledged is lost, the space stays flat. A command, not a test (tests/README.md):
//
//   space_soak store=DIR record=FILE [saves=10000] [bytes=1048576] [seed=1] [kill_every=50]
//
// Goes on where the store is; appends a line of JSON to FILE. Exit status 0: all promises held.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <sstream>

#include "tests/db/support/big_state.h"
#include "tests/db/support/process_support.h"

namespace stepwell::db {
namespace {

constexpr uint64_t kKept = 5;
constexpr uint64_t kSpaceEvery = 16;  // acknowledged saves between looks at the space

void PrintLine(const std::string& text) {
  const std::string line = text + "\n";
  if (write(STDOUT_FILENO, line.data(), line.size()) < 0) _exit(3);
}

StoreOptions Options() {
  StoreOptions options;
  options.keep = {{.count = kKept}};
  options.codec = CodecPolicy::kRaw;
  return options;
}

// Returns the bytes that this process had written to devices by now (the kernel's count).
uint64_t DeviceBytes() {
  std::ifstream io("/proc/self/io");
  std::string name;
  uint64_t value = 0;
  while (io >> name >> value) {
    if (name == "write_bytes:") return value;
  }
  return 0;
}

int Child(const std::string& path, uint64_t last, uint64_t bytes) {
  auto store = Store::Open(path, Options());
  if (!store.ok()) {
    PrintLine("error " + store.status().ToString());
    return 1;
  }
  const auto steps = StepNumbers(store->get());
  for (uint64_t step = steps.empty() ? 0 : steps.back() + 1; step < last; ++step) {
    const auto handle = (*store)->Save(BigRequest(step, bytes));
    const Status status = handle.ok() ? handle->Wait() : handle.status();
    if (!status.ok()) {
      PrintLine("error " + status.ToString());
      return 1;
    }
    PrintLine(StrCat("ack ", step, " ", DeviceBytes()));
    if (step % kSpaceEvery == 0) PrintLine(StrCat("space ", (*store)->Stats().space.total_bytes));
  }
  const Status status = (*store)->Close();
  PrintLine(status.ok() ? "done" : "error " + status.ToString());
  return status.ok() ? 0 : 1;
}

struct Totals {
  uint64_t first = 0;  // step
  uint64_t acknowledged = 0;
  uint64_t kills = 0;
  uint64_t device_bytes = 0;
  uint64_t space_early = 0;  // the most in the first fifth
  uint64_t space_later = 0;
};

class Soak {
 public:
  Soak(std::string self, std::map<std::string, std::string> options)
      : self_(std::move(self)),
        path_(options["store"]),
        record_(options["record"]),
        saves_(Number(options["saves"], 10000)),
        bytes_(Number(options["bytes"], uint64_t{1} << 20)),
        kill_every_(Number(options["kill_every"], 50)),
        seed_(Number(options["seed"], 1)),
        random_(seed_) {}

  int Run() {
    std::string problem = Check();
    totals_.first = next_;
    while (problem.empty() && next_ < saves_) {
      problem = Session();
      if (problem.empty()) problem = Check();
    }
    // One segment and its spare more or less is chance; a leak of a step a kill is not.
    if (problem.empty() && totals_.space_later > totals_.space_early * 5 / 4) {
      problem = "the space grew";
    }
    Record(problem);
    return problem.empty() ? 0 : 1;
  }

 private:
  static uint64_t Number(const std::string& text, uint64_t otherwise) {
    return text.empty() ? otherwise : std::stoull(text);
  }

  // A writer that is killed some time after a random number of acknowledgements.
  std::string Session() {
    const uint64_t acks = 1 + random_() % (2 * kill_every_);
    ChildProcess child({self_, "child", path_, std::to_string(saves_), std::to_string(bytes_)});
    uint64_t seen = 0;
    uint64_t device = 0;
    std::string problem;
    const auto take = [&](const std::string& line) {
      std::istringstream words(line);
      std::string what;
      uint64_t number = 0;
      words >> what >> number;
      if (what == "ack") {
        ++seen;
        last_ack_ = number;
        words >> device;
      } else if (what == "space") {
        RecordSpace(number);
      } else if (what == "error") {
        problem = line;
      }
      return what == "ack" || what == "space";
    };
    for (std::string line = child.Line(); !line.empty(); line = child.Line()) {
      if (!take(line) || seen >= acks) break;
    }
    usleep(static_cast<useconds_t>(random_() % 8000));
    child.Kill();
    for (const std::string& line : child.Rest()) take(line);
    totals_.acknowledged += seen;
    totals_.device_bytes += device;
    ++totals_.kills;
    return problem;
  }

  void RecordSpace(uint64_t bytes) {
    const bool early = next_ < totals_.first + (saves_ - totals_.first) / 5;
    uint64_t& most = early ? totals_.space_early : totals_.space_later;
    most = std::max(most, bytes);
  }

  // Everything acknowledged that retention keeps is there, and whole.
  std::string Check() {
    auto store = Store::Open(path_, Options());
    if (!store.ok()) return store.status().ToString();
    for (const std::string& said : (*store)->recovery().problems) return said;
    const auto steps = StepNumbers(store->get());
    next_ = steps.empty() ? 0 : steps.back() + 1;
    if (last_ack_ && (steps.empty() || steps.back() < *last_ack_)) {
      return StrCat("step ", *last_ack_, " was acknowledged and is gone");
    }
    if (steps.size() > kKept || steps.size() < std::min(kKept, next_)) {
      return StrCat(steps.size(), " steps are there");
    }
    for (const uint64_t step : steps) {
      if (const Status status = CheckBig(store->get(), step, bytes_); !status.ok()) {
        return status.ToString();
      }
    }
    RecordSpace((*store)->Stats().space.total_bytes);
    const Status closed = (*store)->Close();
    return closed.ok() ? "" : closed.ToString();
  }

  void Record(const std::string& problem) {
    const double saved = static_cast<double>(totals_.acknowledged) * static_cast<double>(bytes_);
    char line[512];
    std::snprintf(
        line, sizeof(line),
        "{\"seed\": %llu, \"steps\": [%llu, %llu], \"bytes\": %llu, \"kills\": %llu, "
        "\"acknowledged\": %llu, \"write_amplification\": %.4f, "
        "\"space_early_bytes\": %llu, \"space_later_bytes\": %llu, \"ok\": %s}",
        U(seed_), U(totals_.first), U(next_), U(bytes_), U(totals_.kills), U(totals_.acknowledged),
        saved > 0 ? static_cast<double>(totals_.device_bytes) / saved : 0.0, U(totals_.space_early),
        U(totals_.space_later), problem.empty() ? "true" : "false");
    std::printf("%s\n%s\n", line, problem.c_str());
    if (!record_.empty()) std::ofstream(record_, std::ios::app) << line << "\n";
  }
  static unsigned long long U(uint64_t value) { return value; }

  const std::string self_, path_, record_;
  const uint64_t saves_, bytes_, kill_every_, seed_;
  std::mt19937_64 random_;
  Totals totals_;
  uint64_t next_ = 0;
  std::optional<uint64_t> last_ack_;
};

int Main(const std::vector<std::string>& arguments) {
  if (arguments.size() == 5 && arguments[1] == "child") {
    return Child(arguments[2], std::stoull(arguments[3]), std::stoull(arguments[4]));
  }
  std::map<std::string, std::string> options;
  for (size_t i = 1; i < arguments.size(); ++i) {
    const size_t equals = arguments[i].find('=');
    if (equals != std::string::npos) {
      options[arguments[i].substr(0, equals)] = arguments[i].substr(equals + 1);
    }
  }
  if (options["store"].empty()) {
    std::fprintf(stderr,
                 "usage: space_soak store=DIR record=FILE [saves=N] [bytes=N] [seed=N] "
                 "[kill_every=N]\n");
    return 2;
  }
  return Soak(arguments[0], options).Run();
}

}  // namespace
}  // namespace stepwell::db

int main(int argument_count, char** arguments) {
  signal(SIGPIPE, SIG_IGN);
  return stepwell::db::Main({arguments, arguments + argument_count});
}
