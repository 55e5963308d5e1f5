// SPDX-License-Identifier: Apache-2.0
// A file system with so many blocks of 4 KiB left, for each number of them in turn: saves, exports
// and deletes succeed or are refused as out of space, what was there stays, nothing freezes, and
// with room again the store goes on. A command, not a test (tests/README.md), as root:
//
//   full_soak fs=ext4|xfs|btrfs|tmpfs [blocks=0:640] [every=1] [record=FILE]
//
// Appends a line of JSON to FILE. Exit status 0: all of it held at every level.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>

#include "db/export/export.h"
#include "db/export/orbax/digests.h"
#include "tests/db/support/big_state.h"
#include "tests/db/support/mount.h"
#include "tests/db/support/store_support.h"

namespace stepwell::db {
namespace {

constexpr uint64_t kBlockBytes = 4096;

// Those that are saved on the full disk need new segments.
uint64_t BytesOf(uint64_t step) { return uint64_t{step < 10 ? 300U : 1500U} << 10; }

struct Totals {
  uint64_t levels = 0;
  uint64_t saved = 0;  // on the full disk
  uint64_t exported = 0;
  uint64_t opened = 0;
};

bool IsFull(const Status& status) { return status.code() == StatusCode::kResourceExhausted; }

class Level {
 public:
  Level(Mount* mount, uint64_t blocks, Totals* totals)
      : mount_(*mount), blocks_(blocks), totals_(totals) {}

  Status Run() {
    fs::remove_all(mount_ / "run");
    fs::remove_all(mount_ / "export");
    STEPWELL_ASSIGN_OR_RETURN(store_, Store::Open(mount_ / "run", Options()));
    for (uint64_t step = 0; step < 4; ++step) STEPWELL_RETURN_IF_ERROR(Save(step));
    // The odd levels meet the full disk when they open.
    const bool opens = blocks_ % 2 != 0;
    if (opens) STEPWELL_RETURN_IF_ERROR(store_->Close());
    mount_.Sync();
    LeaveBlocks();
    const Status full = OnTheFullDisk(opens);
    fs::remove(mount_ / "filler");
    mount_.Sync();
    STEPWELL_RETURN_IF_ERROR(full);
    return WithRoomAgain();
  }

 private:
  StoreOptions Options() const {
    StoreOptions options;
    options.steps_before_index = 0;  // an index at any size
    options.codec = CodecPolicy::kRaw;
    options.segment_bytes = 1 << 20;
    options.staging_bytes = 32 << 20;
    options.threads = 2;
    options.disk = blocks_ % 4 < 2 ? io::DiskKind::kUring : io::DiskKind::kPosix;
    return options;
  }

  void LeaveBlocks() const {
    mount_.FillUp("filler");
    const std::string filler = mount_ / "filler";
    const uint64_t bytes = fs::file_size(filler);
    fs::resize_file(filler, bytes - std::min(bytes, blocks_ * kBlockBytes));
    mount_.Sync();
  }

  Status Save(uint64_t step) {
    STEPWELL_ASSIGN_OR_RETURN(const auto handle, store_->Save(BigRequest(step, BytesOf(step))));
    STEPWELL_RETURN_IF_ERROR(handle.Wait());
    saved_.push_back(step);
    return OkStatus();
  }

  Status SaveIfThereIsRoom(uint64_t step) {
    const Status status = Save(step);
    if (status.ok()) ++totals_->saved;
    return IsFull(status) ? OkStatus() : status;
  }

  Status CheckAll() {
    if (StepNumbers(store_.get()) != saved_) return InternalError("other steps are there");
    for (const uint64_t step : saved_) {
      STEPWELL_RETURN_IF_ERROR(CheckBig(store_.get(), step, BytesOf(step)));
    }
    STEPWELL_ASSIGN_OR_RETURN(const VerifyReport report, store_->Verify({}));
    for (const VerifyProblem& problem : report.problems) return DataLossError(problem.message);
    return OkStatus();
  }

  Status ExportIfThereIsRoom() {
    ExportOptions options;
    options.mode = ExportMode::kCopy;
    const std::string place = mount_ / "export";
    const auto report = Export(*store_, saved_.back(), place, options);
    if (!report.ok()) {
      if (fs::exists(place)) return InternalError("half an export is there");
      return IsFull(report.status()) ? OkStatus() : report.status();
    }
    ++totals_->exported;
    STEPWELL_ASSIGN_OR_RETURN(const VerifyReport digests,
                              VerifyExport(io::LocalFileSystem(), place, {}));
    for (const VerifyProblem& problem : digests.problems) return DataLossError(problem.message);
    fs::remove_all(place);
    return OkStatus();
  }

  Status OnTheFullDisk(bool opens) {
    if (opens) {
      auto store = Store::Open(mount_ / "run", Options());
      is_open_ = store.ok();
      if (!is_open_) return IsFull(store.status()) ? OkStatus() : store.status();
      store_ = std::move(*store);
      ++totals_->opened;
    }
    STEPWELL_RETURN_IF_ERROR(SaveIfThereIsRoom(10));
    STEPWELL_RETURN_IF_ERROR(ExportIfThereIsRoom());
    STEPWELL_RETURN_IF_ERROR(CheckAll());
    // Deleting is how space comes back.
    const std::vector<uint64_t> old(saved_.begin(), saved_.begin() + 2);
    Status status = store_->Delete(old);
    if (status.ok()) saved_.erase(saved_.begin(), saved_.begin() + 2);
    if (!status.ok() && !(opens && IsFull(status))) return status;
    STEPWELL_RETURN_IF_ERROR(SaveIfThereIsRoom(11));
    return CheckAll();
  }

  Status WithRoomAgain() {
    if (!is_open_) {
      STEPWELL_ASSIGN_OR_RETURN(store_, Store::Open(mount_ / "run", Options()));
    }
    STEPWELL_RETURN_IF_ERROR(Save(20));  // in the store that met the full disk: it is not frozen
    STEPWELL_RETURN_IF_ERROR(CheckAll());
    STEPWELL_RETURN_IF_ERROR(store_->Close());
    STEPWELL_ASSIGN_OR_RETURN(store_, Store::Open(mount_ / "run", Options()));
    for (const std::string& problem : store_->recovery().problems) return DataLossError(problem);
    STEPWELL_RETURN_IF_ERROR(CheckAll());
    return store_->Close();
  }

  const Mount& mount_;
  const uint64_t blocks_;
  Totals* const totals_;
  std::unique_ptr<Store> store_;
  std::vector<uint64_t> saved_;
  bool is_open_ = true;
};

int Run(std::map<std::string, std::string> options) {
  static const std::map<std::string, std::pair<FsKind, uint64_t>> kKinds = {
      {"ext4", {FsKind::kExt4, 48 * kMiB}},
      {"xfs", {FsKind::kXfs, kXfsBytesMin}},
      {"btrfs", {FsKind::kBtrfs, kBtrfsBytesMin}},
      {"tmpfs", {FsKind::kTmpfs, 48 * kMiB}}};
  const auto kind = kKinds.find(options["fs"]);
  if (kind == kKinds.end()) {
    std::fprintf(stderr,
                 "usage: full_soak fs=ext4|xfs|btrfs|tmpfs [blocks=FIRST:END] [every=N] "
                 "[record=FILE]\n");
    return 2;
  }
  Mount mount(kind->second.first, kind->second.second);
  if (!mount.mounted()) {
    std::fprintf(stderr, "full_soak: no file system can be mounted (it takes root)\n");
    return 2;
  }
  const std::string range = options["blocks"].empty() ? "0:640" : options["blocks"];
  const uint64_t every = options["every"].empty() ? 1 : std::stoull(options["every"]);
  const uint64_t first = std::stoull(range);
  const uint64_t end = std::stoull(range.substr(range.find(':') + 1));
  const auto begin = std::chrono::steady_clock::now();
  Totals totals;
  Status status;
  for (uint64_t blocks = first; blocks < end && status.ok(); blocks += every) {
    status = Level(&mount, blocks, &totals).Run();
    if (status.ok()) {
      ++totals.levels;
    } else {
      std::printf("%lu blocks left: %s\n", static_cast<unsigned long>(blocks),
                  status.ToString().c_str());
    }
  }
  const auto seconds =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - begin);
  const std::string line =
      StrCat("{\"full\": \"", options["fs"], "\", \"blocks\": \"", range, "\", \"every\": ", every,
             ", \"levels\": ", totals.levels, ", \"saved\": ", totals.saved,
             ", \"exported\": ", totals.exported, ", \"opened\": ", totals.opened,
             ", \"seconds\": ", seconds.count(), ", \"ok\": ", status.ok() ? "true" : "false", "}");
  std::printf("%s\n", line.c_str());
  if (!options["record"].empty()) std::ofstream(options["record"], std::ios::app) << line << "\n";
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace stepwell::db

int main(int argument_count, char** arguments) {
  std::map<std::string, std::string> options;
  for (int i = 1; i < argument_count; ++i) {
    const std::string argument = arguments[i];
    const size_t equals = argument.find('=');
    if (equals != std::string::npos)
      options[argument.substr(0, equals)] = argument.substr(equals + 1);
  }
  return stepwell::db::Run(options);
}
