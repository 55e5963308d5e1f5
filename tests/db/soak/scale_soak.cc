// SPDX-License-Identifier: Apache-2.0
// Very many live steps: what a save costs at the first and at the last of them, what a reopened
// store takes to list them, and how much space they have beside their own. A command, not a test
// (tests/README.md):
//
//   scale_soak store=DIR [record=FILE] [steps=1000000] [bytes=4096]
//
// DIR must be new. Prints a line of JSON and appends it to FILE. Exit status 0: everything is
// there, the last thousand saves took at most twice the processor time of the first, and the space
// is at most 1.2 times what the steps need.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>

#include "db/layout.h"
#include "tests/db/support/big_state.h"
#include "tests/db/support/reclaim_support.h"

namespace stepwell::db {
namespace {

constexpr uint64_t kBatch = 1000;  // saves that are timed together
constexpr uint64_t kBlockBytes = 4096;

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double ProcessorSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Cost {
  double median_us = 0;  // between one save and the next
  double slowest_ms = 0;
  double processor_us = 0;  // of a save, on average, of all threads
};

// Saves [begin, end), pipelined.
Status SaveBatch(Store* store, uint64_t begin, uint64_t end, uint64_t bytes, Cost* cost) {
  std::vector<double> micros;
  const double processor = ProcessorSeconds();
  Clock::time_point last = Clock::now();
  for (uint64_t step = begin; step < end; ++step) {
    const auto handle = store->Save(BigRequest(step, bytes));
    if (!handle.ok()) return handle.status();
    micros.push_back(SecondsSince(last) * 1e6);
    last = Clock::now();
  }
  STEPWELL_RETURN_IF_ERROR(store->Wait());
  std::sort(micros.begin(), micros.end());
  cost->median_us = micros[micros.size() / 2];
  cost->slowest_ms = micros.back() / 1e3;
  cost->processor_us = (ProcessorSeconds() - processor) * 1e6 / static_cast<double>(micros.size());
  return OkStatus();
}

// Sums what steps take for themselves: the blocks of their payloads, and those of their frames.
uint64_t NeededBytes(const std::vector<format::StepRecord>& steps) {
  uint64_t bytes = 0;
  for (const format::StepRecord& step : steps) {
    for (const auto& extent : step.extents) {
      bytes += AlignUp(extent.stored_bytes, kBlockBytes);
    }
    bytes += kBlockBytes;  // its commit frame
  }
  return bytes;
}

class Scale {
 public:
  explicit Scale(std::map<std::string, std::string> options)
      : path_(options["store"]),
        record_(options["record"]),
        steps_(Number(options["steps"], 1'000'000)),
        bytes_(Number(options["bytes"], 4096)) {}

  int Run() {
    Status status = Save();
    if (status.ok()) status = Reopen();
    if (status.ok() && last_.processor_us > 2 * first_.processor_us) {
      status = InternalError("the last saves cost more than twice as much as the first");
    }
    if (status.ok() && log_bytes_ * 10 > needed_bytes_ * 12) {
      status = InternalError("the steps take more than 1.2 times what they need");
    }
    Record(status);
    return status.ok() ? 0 : 1;
  }

 private:
  static uint64_t Number(const std::string& text, uint64_t otherwise) {
    return text.empty() ? otherwise : std::stoull(text);
  }
  static StoreOptions Options() {
    StoreOptions options;
    options.codec = CodecPolicy::kRaw;
    return options;
  }

  Status Save() {
    STEPWELL_ASSIGN_OR_RETURN(const auto store, Store::Open(path_, Options()));
    const Clock::time_point start = Clock::now();
    for (uint64_t step = 0; step < steps_; step += kBatch) {
      STEPWELL_RETURN_IF_ERROR(
          SaveBatch(store.get(), step, std::min(step + kBatch, steps_), bytes_, &last_));
      if (step == 0) first_ = last_;
      slowest_ms_ = std::max(slowest_ms_, last_.slowest_ms);
      if (step % (50 * kBatch) == 0) {
        std::fprintf(stderr, "%llu: %.0f us, processor %.0f us, %.0f s\n", U(step), last_.median_us,
                     last_.processor_us, SecondsSince(start));
      }
    }
    save_seconds_ = SecondsSince(start);
    return store->Close();
  }

  Status Reopen() {
    Clock::time_point start = Clock::now();
    StoreOptions reading = Options();
    reading.read_only = true;
    {
      STEPWELL_ASSIGN_OR_RETURN(const auto reader, Store::Open(path_, reading));
      reader_open_seconds_ = SecondsSince(start);
    }
    start = Clock::now();
    STEPWELL_ASSIGN_OR_RETURN(const auto store, Store::Open(path_, Options()));
    open_seconds_ = SecondsSince(start);
    start = Clock::now();
    STEPWELL_ASSIGN_OR_RETURN(const auto steps, store->Steps());
    list_seconds_ = SecondsSince(start);
    if (steps.size() != steps_) return DataLossError(StrCat(steps.size(), " steps are there"));
    for (const uint64_t step : {uint64_t{0}, steps_ / 2, steps_ - 1}) {
      STEPWELL_RETURN_IF_ERROR(CheckBig(store.get(), step, bytes_));
    }
    needed_bytes_ = NeededBytes(steps);
    start = Clock::now();
    STEPWELL_RETURN_IF_ERROR(store->Close());
    close_seconds_ = SecondsSince(start);
    log_bytes_ = DiskUse(SegmentsPath(path_));
    total_bytes_ = DiskUse(path_);
    return OkStatus();
  }

  void Record(const Status& status) {
    char line[1024];
    std::snprintf(
        line, sizeof(line),
        "{\"steps\": %llu, \"bytes\": %llu, \"first\": {\"median_us\": %.1f, \"processor_us\": "
        "%.1f}, \"last\": {\"median_us\": %.1f, \"processor_us\": %.1f}, \"slowest_ms\": %.1f, "
        "\"save_seconds\": %.1f, \"open_seconds\": %.2f, \"reader_open_seconds\": %.2f, "
        "\"list_seconds\": %.2f, \"close_seconds\": %.2f, \"needed_bytes\": %llu, \"log_bytes\": "
        "%llu, \"total_bytes\": %llu, \"log_over_needed\": %.4f, \"ok\": %s}",
        U(steps_), U(bytes_), first_.median_us, first_.processor_us, last_.median_us,
        last_.processor_us, slowest_ms_, save_seconds_, open_seconds_, reader_open_seconds_,
        list_seconds_, close_seconds_, U(needed_bytes_), U(log_bytes_), U(total_bytes_),
        needed_bytes_ == 0 ? 0.0
                           : static_cast<double>(log_bytes_) / static_cast<double>(needed_bytes_),
        status.ok() ? "true" : "false");
    std::printf("%s\n%s\n", line, status.ok() ? "" : status.ToString().c_str());
    if (!record_.empty()) std::ofstream(record_, std::ios::app) << line << "\n";
  }
  static unsigned long long U(uint64_t value) { return value; }

  const std::string path_, record_;
  const uint64_t steps_, bytes_;
  Cost first_, last_;
  double slowest_ms_ = 0, save_seconds_ = 0, open_seconds_ = 0, reader_open_seconds_ = 0,
         list_seconds_ = 0, close_seconds_ = 0;
  uint64_t needed_bytes_ = 0, log_bytes_ = 0, total_bytes_ = 0;
};

int Main(const std::vector<std::string>& arguments) {
  std::map<std::string, std::string> options;
  for (size_t i = 1; i < arguments.size(); ++i) {
    const size_t equals = arguments[i].find('=');
    if (equals != std::string::npos) {
      options[arguments[i].substr(0, equals)] = arguments[i].substr(equals + 1);
    }
  }
  if (options["store"].empty()) {
    std::fprintf(stderr, "usage: scale_soak store=DIR [record=FILE] [steps=N] [bytes=N]\n");
    return 2;
  }
  return Scale(options).Run();
}

}  // namespace
}  // namespace stepwell::db

int main(int argument_count, char** arguments) {
  return stepwell::db::Main({arguments, arguments + argument_count});
}
