// SPDX-License-Identifier: Apache-2.0
// Measures the cost of a view: time for each save, how far the view is behind, and the space that
// all takes under "keep the latest 3", by the size of a step and by how its bytes come into the
// view.
//
//   view_cost [FOLDER]     in a new directory in FOLDER, by default /var/tmp
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <set>
#include <string>
#include <vector>

#include "db/view/view.h"
#include "tests/db/support/store_support.h"

namespace stepwell::db {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double Milliseconds(Clock::duration passed) {
  return std::chrono::duration<double, std::milli>(passed).count();
}

// Files with several names count once.
uint64_t SpaceOf(const fs::path& folder) {
  std::set<ino_t> seen;
  uint64_t bytes = 0;
  std::error_code gone;
  for (fs::recursive_directory_iterator it(folder, gone), end; it != end; it.increment(gone)) {
    struct stat info {};
    if (lstat(it->path().c_str(), &info) != 0 || !seen.insert(info.st_ino).second) continue;
    bytes += static_cast<uint64_t>(info.st_blocks) * 512;
  }
  return bytes;
}

enum class Kind { kNoView, kLinks, kCopies, kUsual };

int Measure(const fs::path& folder, uint64_t step_bytes, Kind kind) {
  const char* const names[] = {"none", "links", "copies", "usual"};
  view_tuning.may_clone = kind == Kind::kUsual;
  view_tuning.link_bytes_min = kind == Kind::kLinks    ? 0
                               : kind == Kind::kCopies ? UINT64_MAX
                                                       : uint64_t{8} << 20;
  StoreOptions options;
  options.keep = {KeepRule::Latest(3)};
  auto store = Store::Open(folder / ".stepwell", options);
  if (!store.ok()) return std::cerr << store.status().ToString() << '\n', 1;
  std::shared_ptr<OrbaxView> view;
  if (kind != Kind::kNoView) {
    ViewOptions shown;
    shown.beside = true;
    auto opened = OpenView(**store, folder, shown);
    if (!opened.ok()) return std::cerr << opened.status().ToString() << '\n', 1;
    view = *opened;
  }
  const std::vector<LeafSpec> state = {{"w", {step_bytes / 4096, 1024}, true, false}};
  const uint64_t steps = std::clamp<uint64_t>((uint64_t{768} << 20) / step_bytes, 8, 60);
  std::vector<double> saves;
  uint64_t peak = 0;
  for (uint64_t step = 0; step < steps; ++step) {
    std::vector<std::vector<float>> data;
    data.reserve(1);
    SaveRequest request = MakeRequest(step, step, state, &data);
    const auto begun = Clock::now();
    auto handle = (*store)->Save(std::move(request));
    const Status saved = handle.ok() ? handle->Wait() : handle.status();
    if (!saved.ok()) return std::cerr << saved.ToString() << '\n', 1;
    saves.push_back(Milliseconds(Clock::now() - begun));
    peak = std::max(peak, SpaceOf(folder));
  }
  const auto begun = Clock::now();
  if (view != nullptr && !view->WaitUntilCurrent(std::chrono::minutes(1)).ok()) return 1;
  const double behind = Milliseconds(Clock::now() - begun);
  std::sort(saves.begin(), saves.end());
  std::printf(
      "%8.2f MiB  %-6s  save %8.2f ms (median of %zu)  behind %8.2f ms  space %5.1f steps\n",
      static_cast<double>(step_bytes) / (1 << 20), names[static_cast<size_t>(kind)],
      saves[saves.size() / 2], saves.size(), behind,
      static_cast<double>(peak) / static_cast<double>(step_bytes));
  return (*store)->Close().ok() ? 0 : 1;
}

int Run(const std::string& place) {
  for (const uint64_t kib : {64U, 1024U, 2048U, 4096U, 8192U, 16384U, 65536U, 262144U}) {
    for (const Kind kind : {Kind::kNoView, Kind::kLinks, Kind::kCopies, Kind::kUsual}) {
      const TempDir folder(place);
      if (Measure(folder.path(), uint64_t{kib} << 10, kind) != 0) return 1;
    }
  }
  return 0;
}

}  // namespace
}  // namespace stepwell::db

int main(int argc, char** argv) { return stepwell::db::Run(argc > 1 ? argv[1] : "/var/tmp"); }
