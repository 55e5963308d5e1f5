// SPDX-License-Identifier: Apache-2.0
// A store measures itself: counters, latencies, the trace file, one log line a save.

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <future>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "db/stats/instruments.h"
#include "io/open_disk.h"
#include "tests/db/support/store_support.h"

namespace stepwell::db {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using Json = nlohmann::json;

struct Event {
  std::string name;
  std::string thread;
  std::optional<uint64_t> step;
  uint64_t bytes = 0;
  int64_t start_ns = 0;
  int64_t end_ns = 0;
};

int64_t Nanos(const Json& us) { return std::llround(us.get<double>() * 1000); }

std::vector<Event> ReadTrace(const std::string& path) {
  std::ifstream file(path);
  const Json trace = Json::parse(file, nullptr, /*allow_exceptions=*/false);
  EXPECT_TRUE(trace.is_object()) << path;
  std::map<int64_t, std::string> threads;
  std::vector<Event> events;
  for (const Json& event : trace.value("traceEvents", Json::array())) {
    if (event.at("ph") == "M") {
      if (event.at("name") == "thread_name") {
        threads[event.at("tid").get<int64_t>()] = event.at("args").at("name").get<std::string>();
      }
      continue;
    }
    EXPECT_EQ(event.at("ph"), "X");
    Event out;
    out.name = event.at("name").get<std::string>();
    out.thread = threads.at(event.at("tid").get<int64_t>());
    const Json& args = event.at("args");
    if (args.contains("step")) out.step = args.at("step").get<uint64_t>();
    out.bytes = args.at("bytes").get<uint64_t>();
    out.start_ns = Nanos(event.at("ts"));
    out.end_ns = out.start_ns + Nanos(event.at("dur"));
    events.push_back(std::move(out));
  }
  return events;
}

// Two spans of one row: apart, or one within the other.
void ExpectNested(const std::vector<Event>& events) {
  std::map<std::string, std::vector<Event>> rows;
  for (const Event& event : events) rows[event.thread].push_back(event);
  for (auto& [row, spans] : rows) {
    std::sort(spans.begin(), spans.end(), [](const Event& a, const Event& b) {
      return a.start_ns != b.start_ns ? a.start_ns < b.start_ns : a.end_ns > b.end_ns;
    });
    std::vector<int64_t> open_ends;
    for (const Event& span : spans) {
      while (!open_ends.empty() && open_ends.back() <= span.start_ns) open_ends.pop_back();
      if (!open_ends.empty()) {
        EXPECT_LE(span.end_ns, open_ends.back()) << row << ": " << span.name;
      }
      open_ends.push_back(span.end_ns);
    }
  }
}

// Some 24 MB, copied and held, raw and compressed: many blocks of each kind.
std::vector<LeafSpec> LargeState() {
  return {{"copied", {3, 1000000}, false, false},
          {"held", {2, 1000000}, true, false},
          {"packed", {1000000}, true, true}};
}
constexpr uint64_t kLargeBytes = 24000000;

class TraceTest : public ::testing::TestWithParam<io::DiskKind> {
 protected:
  StoreOptions Options() {
    StoreOptions options;
    options.steps_before_index = 0;  // an index at any size
    options.disk = GetParam();
    options.log = [this](LogLevel level, std::string_view text) {
      const std::lock_guard lock(mutex_);
      log_.emplace_back(level, text);
    };
    return options;
  }
  std::vector<std::string> Lines(LogLevel level) {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> lines;
    for (const auto& [at, text] : log_) {
      if (at == level) lines.push_back(text);
    }
    return lines;
  }

  TempDir dir_;
  std::mutex mutex_;
  std::vector<std::pair<LogLevel, std::string>> log_;
};

TEST_P(TraceTest, EverySaveHasEveryStageAndStepsOverlap) {
  constexpr uint64_t kSaves = 6;
  StoreOptions options = Options();
  options.threads = 2;
  options.trace_path = dir_ / "trace.json";
  auto store = Store::Open(dir_ / "run", options);
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  // Step 1 cannot go on before step 2's state was taken: they overlap on any machine.
  std::promise<void> second_taken;
  std::vector<std::vector<float>> scratch;
  SaveRequest request = MakeRequest(1, 1, LargeState(), &scratch);
  for (LeafInput& leaf : request.items.front().leaves) {
    if (leaf.hold == nullptr) continue;
    leaf.hold = std::shared_ptr<const void>(
        leaf.hold.get(), [hold = leaf.hold, taken = second_taken.get_future().share()](
                             const void*) { taken.wait(); });
    break;
  }
  ASSERT_OK((*store)->Save(std::move(request)).status());
  for (uint64_t step = 2; step <= kSaves; ++step) {
    const auto handle = SaveSeeded(store->get(), step, step, LargeState());
    if (step == 2) second_taken.set_value();
    ASSERT_TRUE(handle.ok()) << handle.status().ToString();
  }
  ASSERT_OK((*store)->Close());

  const std::vector<Event> events = ReadTrace(options.trace_path);
  ExpectNested(events);
  std::map<std::pair<std::string, uint64_t>, uint64_t> bytes;  // (stage, step)
  std::map<uint64_t, std::pair<int64_t, int64_t>> lives;       // step -> first and last moment
  std::map<std::string, std::set<std::string>> threads;        // stage -> where it ran
  for (const Event& event : events) {
    threads[event.name].insert(event.thread);
    if (!event.step) continue;
    bytes[{event.name, *event.step}] += event.bytes;
    auto [it, first] = lives.try_emplace(*event.step, event.start_ns, event.end_ns);
    it->second.first = std::min(it->second.first, event.start_ns);
    it->second.second = std::max(it->second.second, event.end_ns);
  }
  for (uint64_t step = 1; step <= kSaves; ++step) {
    for (const char* stage : {"snapshot", "copy", "encode", "write", "commit", "frames", "sync"}) {
      EXPECT_THAT(bytes, Contains(::testing::Key(std::pair(std::string(stage), step))));
    }
    // Text and other small values are in the frames.
    EXPECT_GE((bytes[{"encode", step}]), kLargeBytes);
    EXPECT_GE((bytes[{"commit", step}]), kLargeBytes);
    EXPECT_EQ((bytes[{"copy", step}]), 12000000U);
    EXPECT_GT((bytes[{"write", step}]), 20000000U);
  }
  EXPECT_EQ(threads["snapshot"], std::set<std::string>{"caller"});
  EXPECT_EQ(threads["index"], std::set<std::string>{"index"});
  EXPECT_EQ(threads["publish"], std::set<std::string>{"engine"});
  EXPECT_THAT(threads["commit"], Contains("commit"));
  EXPECT_THAT(threads["fdatasync"], Contains(HasSubstr("disk")));
  for (const auto& row : threads["encode"]) EXPECT_THAT(row, HasSubstr("worker"));
  for (const auto& row : threads["write"]) EXPECT_THAT(row, HasSubstr("disk"));

  EXPECT_LT(lives[2].first, lives[1].second);  // work on 2 began before that on 1 was over
}

TEST_P(TraceTest, CountersLatenciesAndALineForEverySave) {
  StoreOptions options = Options();
  options.keep = {KeepRule{}};
  options.keep.front().count = 2;
  auto store = Store::Open(dir_ / "run", options);
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  uint64_t bytes = 0;
  for (uint64_t step = 1; step <= 5; ++step) {
    ASSERT_OK(SaveSeeded(store->get(), step, step, SmallState())->Wait());
    bytes += (*(*store)->Read(step))->step().logical_bytes;
  }
  EXPECT_EQ(SaveSeeded(store->get(), 5, 9, SmallState()).status().code(),
            StatusCode::kAlreadyExists);
  const StoreStats stats = (*store)->Stats();
  EXPECT_EQ(stats.saves, 5U);
  EXPECT_EQ(stats.saves_failed, 0U);
  EXPECT_EQ(stats.bytes_saved, bytes);
  EXPECT_GE(stats.bytes_written, stats.space.live_bytes);
  EXPECT_GE(stats.syncs, 5U);
  ASSERT_OK((*store)->Close());
  const StoreStats last = (*store)->Stats();
  EXPECT_GE(last.index.count, 1U) << "it catches up with several at a time";
  for (const LatencyStats& stage :
       {last.snapshot, last.encode, last.write, last.commit, last.durable}) {
    EXPECT_EQ(stage.count, 5U);
    EXPECT_LE(stage.p50_us, stage.p99_us);
    EXPECT_LE(stage.p99_us, stage.max_us);
    EXPECT_LE(stage.max_us, stage.total_us);
  }
  EXPECT_GE(last.durable.total_us, last.commit.total_us);
  EXPECT_GT(last.commit.max_us, 0U);
  std::vector<std::string> saved;
  for (const std::string& line : Lines(LogLevel::kInfo)) {
    if (line.find(": saved step ") != std::string::npos) saved.push_back(line);
  }
  ASSERT_THAT(saved, SizeIs(5));
  EXPECT_THAT(saved[0], HasSubstr("run: saved step 1: "));
  EXPECT_THAT(saved[0], ::testing::Not(HasSubstr("retired")));
  EXPECT_THAT(saved[4], HasSubstr("the caller waited "));
  EXPECT_THAT(Lines(LogLevel::kError), SizeIs(0));
}

TEST_P(TraceTest, ATraceThatCannotBeWrittenIsAnErrorOfOpen) {
  StoreOptions options = Options();
  options.trace_path = dir_ / "missing" + "/trace.json";
  const auto store = Store::Open(dir_ / "run", options);
  EXPECT_EQ(store.status().code(), StatusCode::kInvalidArgument) << store.status().ToString();
  EXPECT_THAT(std::string(store.status().message()), HasSubstr("the trace's directory"));
  options.trace_path = dir_ / "trace.json";
  options.read_only = true;
  EXPECT_EQ(Store::Open(dir_ / "run", options).status().code(), StatusCode::kInvalidArgument);
}

TEST_P(TraceTest, TheTraceOfAPrivateStoreIsItsOwners) {
  const auto mode = [](const std::string& path) {
    return io::LocalFileSystem()->Stat(path).value().mode & 0777;
  };
  const mode_t before = umask(022);
  for (const bool is_private : {false, true}) {
    StoreOptions options = Options();
    options.private_files = is_private;
    const std::string name = is_private ? "private" : "open";
    options.trace_path = dir_ / (name + ".json");
    auto store = Store::Open(dir_ / name, options);
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    EXPECT_EQ(mode(options.trace_path), is_private ? 0600u : 0644u);
    ASSERT_OK((*store)->Close());
    EXPECT_EQ(mode(options.trace_path), is_private ? 0600u : 0644u);
  }
  umask(before);
}

INSTANTIATE_TEST_SUITE_P(Disks, TraceTest,
                         ::testing::Values(io::DiskKind::kAuto, io::DiskKind::kPosix));

TEST(TraceFileTest, KeepsTheNewestSpans) {
  const TempDir dir;
  const std::string path = dir / "trace.json";
  auto file = io::LocalFileSystem()->Open(path, {.write = true, .create = true});
  ASSERT_TRUE(file.ok());
  Trace trace(std::move(*file), io::SystemClock(), "a \"quoted\"\n\xff path", /*spans_max=*/10);
  for (uint64_t step = 0; step < 25; ++step) {
    const TraceSpan span(&trace, Trace::Lane::kEngine, "work", step, 7);
  }
  EXPECT_EQ(trace.dropped(), 15U);
  ASSERT_OK(trace.Write());
  ASSERT_OK(trace.Write());  // replaces
  std::set<uint64_t> steps;
  for (const Event& event : ReadTrace(path)) {
    steps.insert(event.step.value());
    EXPECT_EQ(event.bytes, 7U);
  }
  EXPECT_THAT(steps, SizeIs(10));
  EXPECT_EQ(*steps.begin(), 15U);
}

TEST(TraceFileTest, OneThreadOneRow) {
  const TempDir dir;
  const std::string path = dir / "trace.json";
  auto file = io::LocalFileSystem()->Open(path, {.write = true, .create = true});
  ASSERT_TRUE(file.ok());
  Trace trace(std::move(*file), io::SystemClock(), "run");
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&trace] {
      for (uint64_t step = 0; step < 100; ++step) {
        const TraceSpan outer(&trace, Trace::Lane::kWorker, "outer", step);
        const TraceSpan inner(&trace, Trace::Lane::kWorker, "inner", step);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_OK(trace.Write());
  const std::vector<Event> events = ReadTrace(path);
  EXPECT_THAT(events, SizeIs(600));
  ExpectNested(events);
}

TEST(HistogramTest, PercentilesAreWithinAStep) {
  Histogram histogram;
  EXPECT_EQ(histogram.Summary().count, 0U);
  EXPECT_EQ(histogram.Summary().p99_us, 0U);
  std::vector<uint64_t> values;
  uint64_t total = 0;
  uint64_t x = 88172645463325252;
  for (int i = 0; i < 20000; ++i) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    values.push_back(x >> (24 + x % 40));  // up to 2^40, all magnitudes
    total += values.back();
    histogram.Record(static_cast<int64_t>(values.back() * 1000));
  }
  std::sort(values.begin(), values.end());
  const LatencyStats stats = histogram.Summary();
  EXPECT_EQ(stats.count, values.size());
  EXPECT_EQ(stats.total_us, total);
  EXPECT_EQ(stats.max_us, values.back());
  for (const auto& [got, exact] :
       {std::pair(stats.p50_us, values[9999]), std::pair(stats.p99_us, values[19799])}) {
    EXPECT_GE(got, exact);
    EXPECT_LE(got, exact + exact / 16 + 1);
  }
}

TEST(HistogramTest, ExtremesAndThreads) {
  Histogram histogram;
  histogram.Record(-5);
  histogram.Record(std::numeric_limits<int64_t>::max());
  EXPECT_EQ(histogram.Summary().count, 2U);
  EXPECT_EQ(histogram.Summary().p50_us, 0U);
  EXPECT_EQ(histogram.Summary().max_us, uint64_t{std::numeric_limits<int64_t>::max()} / 1000);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&histogram] {
      for (int64_t n = 0; n < 1000; ++n) histogram.Record(n * 1000);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(histogram.Summary().count, 4002U);
}

}  // namespace
}  // namespace stepwell::db
