// SPDX-License-Identifier: Apache-2.0
// Stores are opened, used and closed again and again, in processes that keep their cores: with
// handles that are dropped, forks, readers and views on threads, on healthy and on damaged stores,
// and SIGTERM in between. A command, not a test (tests/README.md):
//
//   open_soak dir=DIR [cycles=1000] [seed=1] [record=FILE]
//
// A process goes through some cycles in a directory of its own, where its core would land. A core,
// a signal that this soak did not send, an exit status, and what does not end are failures; so is a
// descriptor or a thread that is left behind. Appends a line of JSON to FILE. Exit status 0: all of
// it held.
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <thread>

#include "db/view/view.h"
#include "tests/db/support/damage_support.h"
#include "tests/db/support/process_support.h"
#include "tests/db/support/store_support.h"
#include "tests/io/support/end_child.h"

namespace stepwell::db {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kCyclesOfAProcess = 10;
constexpr int kHangSeconds = 600;  // a machine may be busy

// Descriptors and threads of this process.
struct Held {
  size_t descriptors = 0;
  size_t threads = 0;
  bool operator==(const Held&) const = default;
};
Held HeldNow() {
  const auto count = [](const char* directory) {
    const fs::directory_iterator entries(directory);
    return static_cast<size_t>(std::distance(begin(entries), end(entries)));
  };
  return {count("/proc/self/fd"), count("/proc/self/task")};
}

class Cycles {
 public:
  explicit Cycles(uint64_t seed) : random_(seed) {}

  Status Run() {
    for (const auto disk : {io::DiskKind::kUring, io::DiskKind::kPosix}) {
      // The first store makes what a process keeps for good.
      STEPWELL_RETURN_IF_ERROR(Use("first", disk, /*healthy=*/true));
    }
    const Held before = HeldNow();
    for (uint64_t cycle = 0; cycle < kCyclesOfAProcess; ++cycle) {
      const auto disk = Below(2) == 0 ? io::DiskKind::kUring : io::DiskKind::kPosix;
      const bool healthy = Below(4) != 0;
      if (!healthy) Damage();
      STEPWELL_RETURN_IF_ERROR(Use(healthy ? "healthy" : "damaged", disk, healthy));
    }
    Held after = HeldNow();
    // A thread that was joined is listed for an instant more.
    for (int i = 0; i < 500 && !(after == before); ++i, after = HeldNow()) usleep(10000);
    if (after == before) return OkStatus();
    return InternalError(StrCat("descriptors ", before.descriptors, " and then ", after.descriptors,
                                ", threads ", before.threads, " and then ", after.threads));
  }

 private:
  uint64_t Below(uint64_t bound) { return random_() % bound; }

  // The healthy store, or another one, with some bytes flipped or a file less.
  void Damage() {
    fs::remove_all("damaged");
    if (!fs::exists("healthy")) return;
    CopyStore("healthy", "damaged");
    std::vector<std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator("damaged")) {
      if (entry.is_regular_file() && entry.file_size() > 0) files.push_back(entry.path());
    }
    if (files.empty()) return;
    std::sort(files.begin(), files.end());
    const std::string& file = files[Below(files.size())];
    if (Below(4) == 0) {
      fs::remove(file);
      return;
    }
    for (int i = 0; i < 4; ++i) FlipByte(file, Below(fs::file_size(file)), '\x10');
  }

  Status Use(const std::string& path, io::DiskKind disk, bool healthy) {
    StoreOptions options;
    options.steps_before_index = 0;  // an index at any size
    options.disk = disk;
    options.segment_bytes = 256 << 10;
    options.staging_bytes = 32 << 20;
    options.threads = 2;
    options.keep = {KeepRule::Latest(4)};
    auto opened = Store::Open(path, options);
    if (!opened.ok()) return healthy ? opened.status() : OkStatus();
    std::unique_ptr<Store> store = std::move(*opened);
    options.read_only = true;
    std::thread reading, showing;
    Status read, shown;
    if (Below(2) == 0) reading = std::thread([&] { read = ReadAllOf(path, options); });
    if (Below(3) == 0) {
      const bool keep = Below(2) == 0;
      const bool drops = Below(2) == 0;
      showing = std::thread([&, keep, drops] {
        const auto view = OpenView(*store, path + "_view", {});
        shown = view.status();
        if (view.ok() && !drops) shown = (*view)->Close(keep);
      });
    }
    std::vector<SaveHandle> handles;
    Status status;
    for (uint64_t count = Below(4); count > 0 && status.ok(); --count) {
      const uint64_t step = next_++;
      const auto handle = SaveSeeded(store.get(), step, step, SmallState(), IfExists::kReplace);
      status = handle.status();
      // Others are dropped while the save is under way.
      if (handle.ok() && Below(2) == 0) handles.push_back(*handle);
    }
    if (Below(4) == 0) ForkOne(store.get());
    if (Below(2) == 0) {
      for (const SaveHandle& handle : handles) {
        if (status.ok()) status = handle.Wait();
      }
    }
    // A view is closed by its store, or before.
    if (reading.joinable()) reading.join();
    if (showing.joinable()) showing.join();
    switch (Below(3)) {
      case 0:
        break;  // the destructor does it
      case 1:
        (void)store->Close();
        [[fallthrough]];
      default:
        if (const Status closed = store->Close(); status.ok()) status = closed;
    }
    store.reset();
    if (!healthy) return OkStatus();
    STEPWELL_RETURN_IF_ERROR(status);
    STEPWELL_RETURN_IF_ERROR(read);
    return shown;
  }

  static Status ReadAllOf(const std::string& path, const StoreOptions& options) {
    STEPWELL_ASSIGN_OR_RETURN(const auto reader, Store::Open(path, options));
    STEPWELL_ASSIGN_OR_RETURN(const auto steps, reader->Steps());
    for (const format::StepRecord& step : steps) {
      const Status status = CheckSeeded(reader.get(), step.step, step.step, SmallState());
      // Retention goes on meanwhile.
      if (!status.ok() && status.code() != StatusCode::kNotFound) return status;
    }
    return OkStatus();
  }

  static void ForkOne(Store* store) {
    const pid_t pid = fork();
    if (pid == 0) {
#if !defined(STEPWELL_ASAN) && !defined(STEPWELL_TSAN)
      // (The allocators of sanitizers are not made for a child that allocates.)
      if (store->Steps().ok()) _exit(5);
#endif
      EndChild(0);
    }
    int status = 0;
    if (waitpid(pid, &status, 0) != pid || status != 0) {
      std::printf("a forked child ended with status %d\n", status);
      std::fflush(stdout);
      std::abort();
    }
    (void)store;
  }

  std::mt19937_64 random_;
  uint64_t next_ = 0;
};

int RunProcess(const std::string& directory, uint64_t seed) {
  const rlimit all{RLIM_INFINITY, RLIM_INFINITY};
  setrlimit(RLIMIT_CORE, &all);
  if (chdir(directory.c_str()) != 0) return 2;
  const Status status = Cycles(seed).Run();
  if (!status.ok()) std::printf("%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}

// Runs one case in a process and returns what was wrong with it; "" for nothing.
std::string RunCase(const std::string& self, const std::string& directory, uint64_t seed,
                    bool terminate, bool* terminated) {
  fs::remove_all(directory);
  fs::create_directories(directory);
  ChildProcess child({self, "cycles", directory, std::to_string(seed)});
  std::mt19937_64 random(seed);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(kHangSeconds);
  if (terminate) {
    usleep(static_cast<useconds_t>(random() % 400000));
    kill(child.pid(), SIGTERM);
  }
  siginfo_t info = {};
  for (;;) {
    if (waitid(P_PID, static_cast<id_t>(child.pid()), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
        info.si_pid != 0) {
      break;
    }
    if (std::chrono::steady_clock::now() > deadline) {
      kill(child.pid(), SIGABRT);  // its core says where it hangs
      return "it hangs";
    }
    usleep(2000);
  }
  std::string output;
  for (const std::string& line : child.Rest()) output += line + "\n";
  const int status = child.Wait();
  *terminated = terminate && WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM;
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (entry.path().filename().string().starts_with("core")) return "it left a core\n" + output;
  }
  if (status == 0 || *terminated) return "";
  return StrCat("it ended with status ", status, "\n", output);
}

int Run(std::map<std::string, std::string> options, const std::string& self) {
  const auto number = [&](const char* name, uint64_t otherwise) {
    return options[name].empty() ? otherwise : std::stoull(options[name]);
  };
  const uint64_t seed = number("seed", 1);
  const uint64_t processes = (number("cycles", 1000) + kCyclesOfAProcess - 1) / kCyclesOfAProcess;
  const auto begin = std::chrono::steady_clock::now();
  uint64_t bad = 0;
  uint64_t ended = 0;
  for (uint64_t i = 0; i < processes; ++i) {
    const std::string directory = StrCat(options["dir"], "/", seed + i);
    bool terminated = false;
    const std::string problem =
        RunCase(fs::absolute(self), directory, seed + i, i % 8 == 7, &terminated);
    ended += terminated ? 1 : 0;
    if (problem.empty()) {
      fs::remove_all(directory);
      continue;
    }
    ++bad;
    std::printf("%s: %s\n", directory.c_str(), problem.c_str());
    std::fflush(stdout);
  }
  const auto seconds =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - begin);
  const std::string line =
      StrCat("{\"open\": ", processes * kCyclesOfAProcess, ", \"seed\": ", seed,
             ", \"processes\": ", processes, ", \"terminated\": ", ended, ", \"bad\": ", bad,
             ", \"seconds\": ", seconds.count(), "}");
  std::printf("%s\n", line.c_str());
  if (!options["record"].empty()) std::ofstream(options["record"], std::ios::app) << line << "\n";
  return bad == 0 ? 0 : 1;
}

int Main(const std::vector<std::string>& arguments) {
  if (arguments.size() == 4 && arguments[1] == "cycles") {
    return RunProcess(arguments[2], std::stoull(arguments[3]));
  }
  std::map<std::string, std::string> options;
  for (size_t i = 1; i < arguments.size(); ++i) {
    const size_t equals = arguments[i].find('=');
    if (equals == std::string::npos) continue;
    options[arguments[i].substr(0, equals)] = arguments[i].substr(equals + 1);
  }
  if (options["dir"].empty()) {
    std::fprintf(stderr, "usage: open_soak dir=DIR [cycles=N] [seed=N] [record=FILE]\n");
    return 2;
  }
  return Run(options, arguments[0]);
}

}  // namespace
}  // namespace stepwell::db

int main(int argument_count, char** arguments) {
  return stepwell::db::Main({arguments, arguments + argument_count});
}
