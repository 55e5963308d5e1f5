// SPDX-License-Identifier: Apache-2.0
#include "tests/db/support/replay.h"

#include <sys/wait.h>

#include <algorithm>
#include <utility>

namespace stepwell::db::soak {
namespace {

constexpr uint64_t kExt4Bytes = 192 * kMiB;
constexpr int kWriterSeconds = 120;  // without a change: it hangs

Status Wrong(const std::string& what) { return InternalError(what); }

Status In(const std::string& what, const Status& status) {
  return status.ok() ? status : Status(status.code(), what + ": " + status.message());
}

std::string ToText(const Cut& cut) {
  return StrCat("cut at ", cut.instant, ", kept ", cut.kept, " in pieces of ", cut.piece_bytes,
                ", seed ", cut.seed);
}

std::string ToText(const Fault& fault) {
  return StrCat("fault of operations ", fault.ops, " in ", fault.offset_begin, " to ",
                fault.offset_end, " after ", fault.skip, ", ", fault.times, " times",
                fault.done ? ", done" : "");
}

}  // namespace

Replay::Replay(std::string writer, FsKind kind, uint64_t seed, ReplayTotals* totals)
    : writer_program_(std::move(writer)), kind_(kind), seed_(seed), totals_(totals), random_(seed) {
  const uint64_t bytes = kind == FsKind::kXfs ? kXfsBytesMin : kExt4Bytes;
  const uint64_t block = Below(4) == 0 ? 1024 : 4096;
  disk_ = std::make_unique<LogDisk>(kind, FormattedDisk(kind, bytes, block));
}

bool Replay::Begin(bool discard) {
  if (!disk_->Mount(discard)) return false;
  constexpr uint32_t kDelays[] = {0, 100, 1000};
  disk_->SetDelay(kDelays[Below(3)]);
  sessions_.push_back({0, {}});
  return true;
}

Status Replay::StartWriter() {
  const std::string exports = StrCat(disk_->mount_point(), "/exports", exports_.size());
  std::error_code error;
  fs::create_directory(exports, error);
  if (error) return Wrong("no directory for exports: " + error.message());
  const int root = open(disk_->mount_point().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  syncfs(root);  // the directory is this process's, and no promise
  close(root);
  exports_.push_back(disk_->now());
  acknowledged_ = 0;
  error_.clear();
  child_ = std::make_unique<ChildProcess>(std::vector<std::string>{
      writer_program_, "writer", disk_->mount_point() + "/store", exports,
      std::to_string(1'000'000 * seed_ + 10'000 * exports_.size()), disk_->marks_path()});
  return OkStatus();
}

void Replay::TakeMarks() {
  for (const LogEntry& entry : disk_->Log(entries_taken_)) {
    ++entries_taken_;
    if (entry.op != DiskOp::kMark) continue;
    std::string line(disk_->Data(entry));
    if (!line.empty() && line.back() == '\n') line.pop_back();
    if (line.starts_with("ack ")) ++acknowledged_;
    if (line.starts_with("error") && error_.empty()) error_ = line;
    lines_.push_back({entry.begin, std::move(line), exports_.size() - 1});
  }
}

Status Replay::WaitForWriter(uint64_t changes) {
  uint64_t before = UINT64_MAX;
  for (int tries = 0; tries < kWriterSeconds * 1000; ++tries) {
    siginfo_t info = {};
    const bool ended =
        waitid(P_PID, static_cast<id_t>(child_->pid()), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
        info.si_pid != 0;
    TakeMarks();
    if (ended || acknowledged_ >= changes) return OkStatus();
    if (std::exchange(before, acknowledged_) != acknowledged_) tries = 0;
    usleep(1000);
  }
  return Wrong("the writer hangs");
}

Status Replay::EndSession() {
  usleep(static_cast<useconds_t>(Below(20000)));
  child_->Kill();
  TakeMarks();
  const History history = HistoryAt(UINT64_MAX);
  totals_->changes += history.begun();
  totals_->acknowledged += history.acknowledged();
  if (!error_.empty() && disk_->failed() == 0) return Wrong("the writer: " + error_);
  return OkStatus();
}

Status Replay::Session(uint64_t changes) {
  STEPWELL_RETURN_IF_ERROR(StartWriter());
  STEPWELL_RETURN_IF_ERROR(WaitForWriter(changes));
  STEPWELL_RETURN_IF_ERROR(EndSession());
  return In("after a kill", CheckLive());
}

Status Replay::Serve(const std::string& point, History* history) {
  StoreOptions options = SoakOptions(random_());
  options.read_only = true;
  State seen;
  Status status;
  // Writes of a killed process go on landing for a while: a delete among them may end a step
  // between two calls of a reader.
  for (int tries = 0; tries < 300; ++tries) {
    seen.clear();
    status = CheckStore(point + "/store", *history, options, &seen, &totals_->steps);
    if (status.code() != StatusCode::kNotFound) break;
    usleep(10000);
  }
  if (status.ok()) history->Served(seen);
  return In("a reader", status);
}

// From here on the present state is the only legal one, for all images, too.
Status Replay::CheckLive() {
  History history = HistoryAt(UINT64_MAX);
  if (Below(3) == 0) {
    STEPWELL_RETURN_IF_ERROR(Serve(disk_->mount_point(), &history));
    disk_->Mark(StrCat("ack ", history.durable()));
  }
  State found;
  STEPWELL_RETURN_IF_ERROR(CheckMounted(disk_->mount_point(), history, UINT64_MAX, &found));
  TakeMarks();
  sessions_.push_back({disk_->now(), std::move(found)});
  return OkStatus();
}

Status Replay::FailingSession(const Fault& fault, uint64_t changes) {
  const std::string what = ToText(fault);
  STEPWELL_RETURN_IF_ERROR(StartWriter());
  const uint64_t well = Below(2) == 0 ? 0 : Below(changes);
  if (well > 0) STEPWELL_RETURN_IF_ERROR(WaitForWriter(well));
  disk_->SetFault(fault);
  STEPWELL_RETURN_IF_ERROR(In(what, WaitForWriter(well + changes)));
  STEPWELL_RETURN_IF_ERROR(In(what, EndSession()));
  if (Below(2) == 0) {
    History history = HistoryAt(UINT64_MAX);
    bool opened = false;
    State found;
    STEPWELL_RETURN_IF_ERROR(In(what, LookAtSickDisk(disk_.get(), &history, &opened, &found)));
    disk_->Mark(StrCat("ack ", history.durable()));
    TakeMarks();
    if (opened) sessions_.push_back({disk_->now(), std::move(found)});
  }
  ++totals_->fail_cases;
  totals_->faults += disk_->failed();
  if (!error_.empty()) ++totals_->reported;
  STEPWELL_RETURN_IF_ERROR(In(what, Heal(disk_.get())));
  return In(what, CheckLive());
}

Status Replay::LookAtSickDisk(LogDisk* disk, History* history, bool* opened, State* found) {
  StoreOptions options = SoakOptions(random_());
  options.read_only = Below(2) == 0;
  auto store = Store::Open(disk->mount_point() + "/store", options);
  if (!store.ok()) return OkStatus();
  const Status status = ReadState(store->get(), found, &totals_->steps);
  if (status.code() == StatusCode::kInternal) return In("a wrong value of a sick disk", status);
  if (!status.ok() || !(*store)->recovery().problems.empty()) return OkStatus();
  const std::string problem = history->Check(*found);
  if (!problem.empty()) return Wrong("the sick disk: " + problem);
  history->Served(*found);
  *opened = !options.read_only;
  return OkStatus();
}

Status Replay::Heal(LogDisk* disk) {
  disk->SetFault({});
  if (!disk->Unmount()) return Wrong("the file system cannot be unmounted");
  // XFS takes the log that it finds for durable, also after a flush of it failed.
  if (kind_ == FsKind::kXfs && !disk->Flush()) return Wrong("the disk cannot be flushed");
  return disk->Mount() ? OkStatus() : Wrong("the file system cannot be mounted again");
}

Fault Replay::RandomFault() {
  constexpr uint32_t kWrites = Bit(DiskOp::kWrite) | Bit(DiskOp::kDiscard);
  constexpr uint32_t kOps[] = {kWrites, Bit(DiskOp::kFlush), Bit(DiskOp::kRead),
                               kWrites | Bit(DiskOp::kFlush),
                               kWrites | Bit(DiskOp::kFlush) | Bit(DiskOp::kRead)};
  Fault fault;
  fault.ops = kOps[Below(std::size(kOps))];
  if (Below(4) == 0) {
    fault.offset_begin = Below(kExt4Bytes);
    fault.offset_end = fault.offset_begin + (uint64_t{1} << (12 + Below(14)));
  }
  fault.skip = Below(uint64_t{1} << Below(9));
  if (Below(2) == 0) fault.times = 1 + Below(3);
  fault.done = Below(2) == 0;
  return fault;
}

Cut Replay::RandomCut() {
  const std::vector<LogEntry> log = disk_->Log();
  const uint64_t begin = exports_.front(), end = disk_->now();
  Cut cut;
  cut.seed = random_();
  cut.instant = begin + Below(end - begin + 1);
  const uint64_t draw = Below(10);
  if (draw < 7) {  // at a flush, or right after a message
    const DiskOp op = draw < 4 ? DiskOp::kFlush : DiskOp::kMark;
    std::vector<LogEntry> entries;
    std::copy_if(log.begin(), log.end(), std::back_inserter(entries),
                 [&](const LogEntry& entry) { return entry.op == op && entry.begin > begin; });
    if (!entries.empty()) {
      const LogEntry& entry = entries[Below(entries.size())];
      const uint64_t instants[] = {entry.begin, entry.end, std::max<uint64_t>(entry.end, 1) - 1};
      cut.instant = std::max(begin, instants[Below(op == DiskOp::kMark ? 1 : 3)]);
    }
  }
  constexpr double kKept[] = {0, 0, 1, 0.1, 0.5, 0.9};
  cut.kept = kKept[Below(std::size(kKept))];
  // XFS's metadata are checked by blocks: it does not recover from torn ones.
  constexpr uint64_t kPieces[] = {0, 4096, 512};
  cut.piece_bytes = kPieces[Below(kind_ == FsKind::kXfs ? 2 : 3)];
  return cut;
}

History Replay::HistoryAt(uint64_t instant) const {
  auto session = sessions_.end();
  while (session != sessions_.begin() && (--session)->instant > instant) {
  }
  History history(session->before);
  for (const OutputLine& line : lines_) {
    if (line.instant > session->instant && line.instant <= instant) history.Take(line.line);
  }
  return history;
}

Status Replay::CheckExportsAt(const std::string& point, uint64_t instant) {
  for (size_t number = 0; number < exports_.size() && exports_[number] <= instant; ++number) {
    std::vector<std::string> finished;
    for (const OutputLine& line : lines_) {
      if (line.exports == number && line.instant <= instant && line.line.starts_with("exported ")) {
        finished.push_back(line.line.substr(9));
      }
    }
    STEPWELL_RETURN_IF_ERROR(
        CheckExports(StrCat(point, "/exports", number), finished, &totals_->exports));
  }
  return OkStatus();
}

Status Replay::CheckMounted(const std::string& point, const History& history, uint64_t instant,
                            State* found) {
  STEPWELL_RETURN_IF_ERROR(
      CheckStore(point + "/store", history, SoakOptions(random_()), found, &totals_->steps));
  return CheckExportsAt(point, instant);
}

Status Replay::CheckImage(const Cut& cut) {
  return In(ToText(cut), CheckImageFor(*disk_->Replay(cut), cut.instant));
}

Status Replay::CheckImageFor(const MemoryFile& image, uint64_t instant) {
  LoopMount mount(kind_, image.path(), disk_->image_point());
  if (!mount.mounted()) return Wrong("the image cannot be mounted");
  History history = HistoryAt(instant);
  if (Below(4) == 0) STEPWELL_RETURN_IF_ERROR(Serve(disk_->image_point(), &history));
  State found;
  STEPWELL_RETURN_IF_ERROR(CheckMounted(disk_->image_point(), history, instant, &found));
  ++totals_->images;
  return mount.Unmount() ? OkStatus() : Wrong("an image cannot be unmounted");
}

Status Replay::CheckRecovery(const Cut& cut, int cuts) {
  LogDisk nested(kind_, disk_->Replay(cut));
  if (!nested.Mount()) return Wrong(ToText(cut) + ": the image cannot be mounted");
  const History before = HistoryAt(cut.instant);
  History served = before;
  if (Below(2) == 0) {
    STEPWELL_RETURN_IF_ERROR(In(ToText(cut), Serve(nested.mount_point(), &served)));
  }
  const uint64_t served_at = nested.now();
  State found;
  STEPWELL_RETURN_IF_ERROR(
      In(ToText(cut), CheckMounted(nested.mount_point(), served, cut.instant, &found)));
  const uint64_t recovered_at = nested.now();
  if (!nested.Unmount()) return Wrong("an image cannot be unmounted");
  for (int i = 0; i < cuts; ++i) {
    Cut second = cut;
    second.seed = random_();
    const uint64_t instants[] = {served_at, recovered_at, Below(nested.now() + 1)};
    second.instant = instants[std::min<uint64_t>(Below(4), 2)];
    const auto image = nested.Replay(second);
    LoopMount mount(kind_, image->path(), nested.image_point());
    const std::string what = ToText(cut) + ", then " + ToText(second);
    if (!mount.mounted()) return Wrong(what + ": the image cannot be mounted");
    const History history = second.instant >= recovered_at ? History(found)
                            : second.instant >= served_at  ? served
                                                           : before;
    State state;
    STEPWELL_RETURN_IF_ERROR(
        In(what, CheckMounted(nested.image_point(), history, cut.instant, &state)));
    ++totals_->images;
    ++totals_->recoveries_cut;
  }
  return OkStatus();
}

Status Replay::CheckSickRecovery(const Cut& cut, const Fault& fault) {
  const std::string what = ToText(cut) + ", then " + ToText(fault);
  LogDisk nested(kind_, disk_->Replay(cut));
  if (!nested.Mount()) return Wrong(what + ": the image cannot be mounted");
  nested.SetFault(fault);
  History history = HistoryAt(cut.instant);
  bool opened = false;
  State found;
  STEPWELL_RETURN_IF_ERROR(In(what, LookAtSickDisk(&nested, &history, &opened, &found)));
  totals_->faults += nested.failed();
  STEPWELL_RETURN_IF_ERROR(In(what, Heal(&nested)));
  if (opened) history = History(found);
  found.clear();
  ++totals_->images;
  ++totals_->recoveries_sick;
  return In(what, CheckMounted(nested.mount_point(), history, cut.instant, &found));
}

}  // namespace stepwell::db::soak
