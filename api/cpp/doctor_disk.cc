// SPDX-License-Identifier: Apache-2.0
#include "api/cpp/doctor_disk.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "db/save/plan.h"
#include "io/buffer.h"
#include "io/bytes.h"
#include "io/clock.h"
#include "io/open_disk.h"

extern char** environ;

namespace stepwell {
namespace {

constexpr size_t kDepth = 8;  // as many as the engine has in flight
constexpr uint64_t kReserveBytes = uint64_t{256} << 20;
constexpr int64_t kNanosPerSecond = 1'000'000'000;
constexpr int64_t kFioGraceNs = 30 * kNanosPerSecond;

class Writer;

struct BlockWrite final : io::Op {
  void OnComplete() override;
  Writer* writer = nullptr;
  io::AlignedBuffer buffer;
  iovec vector{};
};

class Writer {
 public:
  Writer(io::Disk* disk, io::File* file, uint64_t bytes_max)
      : disk_(disk), file_(file), bytes_max_(bytes_max) {}

  // Takes memory and fills it, before the clock runs.
  Status Prepare() {
    for (size_t i = 0; i < kDepth; ++i) {
      auto write = std::make_unique<BlockWrite>();
      write->buffer = io::AlignedBuffer(db::kBlockBytes);
      if (!write->buffer) return ResourceExhaustedError("no memory for buffers");
      // Not zeros: some disks take those for nothing.
      uint64_t word = 0x9E3779B97F4A7C15 * (i + 1);
      for (size_t at = 0; at < write->buffer.size(); at += sizeof(word)) {
        word = word * 6364136223846793005 + 1442695040888963407;
        std::memcpy(write->buffer.data() + at, &word, sizeof(word));
      }
      write->writer = this;
      write->kind = io::Op::Kind::kWrite;
      write->file = file_;
      write->vector = {write->buffer.data(), write->buffer.size()};
      write->vectors = {&write->vector, 1};
      write->buffer_index = disk_->RegisterBuffer(write->buffer.bytes());
      writes_.push_back(std::move(write));
    }
    return OkStatus();
  }

  Status Run(int64_t end_ns) {
    end_ns_ = end_ns;
    for (const auto& write : writes_) Next(write.get());
    while (disk_->in_flight() > 0) disk_->Poll(/*wait=*/true);
    return error_;
  }

  void Next(BlockWrite* write) {
    const uint64_t end = offset_ + db::kBlockBytes;
    if (!error_.ok() || end > bytes_max_ || io::SystemClock()->MonotonicNanos() >= end_ns_) return;
    if (end > reserved_) {
      error_ = file_->Allocate(reserved_, kReserveBytes);
      if (!error_.ok()) return;
      reserved_ += kReserveBytes;
    }
    write->offset_bytes = offset_;
    offset_ = end;
    disk_->Submit(write);
  }

  void Fail(const Status& error) {
    if (error_.ok()) error_ = error;
  }
  uint64_t bytes() const { return offset_; }

 private:
  io::Disk* const disk_;
  io::File* const file_;
  const uint64_t bytes_max_;
  std::vector<std::unique_ptr<BlockWrite>> writes_;
  int64_t end_ns_ = 0;
  uint64_t offset_ = 0;
  uint64_t reserved_ = 0;
  Status error_;
};

void BlockWrite::OnComplete() {
  if (!status.ok()) writer->Fail(status);
  writer->Next(this);
}

// A directory that goes, with the one file in it.
class ScratchDirectory {
 public:
  explicit ScratchDirectory(std::string path) : path_(std::move(path)) {}
  ~ScratchDirectory() {
    unlink(File().c_str());
    rmdir(path_.c_str());
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  std::string File() const { return path_ + "/fio"; }

 private:
  const std::string path_;
};

// While it lives, Ctrl-C ends the program that runs, not us: there is a directory to clean up.
class InterruptIgnored {
 public:
  InterruptIgnored() : before_(std::signal(SIGINT, SIG_IGN)) {}
  ~InterruptIgnored() { std::signal(SIGINT, before_); }
  InterruptIgnored(const InterruptIgnored&) = delete;
  InterruptIgnored& operator=(const InterruptIgnored&) = delete;

 private:
  void (*const before_)(int);
};

Result<pid_t> Spawn(const std::vector<std::string>& arguments, int stdout_descriptor) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, stdout_descriptor, STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t defaults;
  sigemptyset(&defaults);
  sigaddset(&defaults, SIGINT);
  sigaddset(&defaults, SIGPIPE);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
  std::vector<char*> pointers;
  pointers.reserve(arguments.size() + 1);
  for (const std::string& argument : arguments) {
    pointers.push_back(const_cast<char*>(argument.c_str()));
  }
  pointers.push_back(nullptr);
  pid_t child = 0;
  const int error =
      posix_spawnp(&child, pointers[0], &actions, &attributes, pointers.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return ErrnoStatus(error, "start " + arguments[0]);
  return child;
}

// All that comes out of `descriptor` until its end or `end_ns`.
std::string ReadUntil(int descriptor, int64_t end_ns) {
  std::string text;
  for (;;) {
    const int64_t left_ms = (end_ns - io::SystemClock()->MonotonicNanos()) / 1'000'000;
    pollfd wanted{descriptor, POLLIN, 0};
    if (left_ms <= 0) return text;
    if (poll(&wanted, 1, static_cast<int>(left_ms)) <= 0) continue;
    char buffer[4096];
    const ssize_t count = read(descriptor, buffer, sizeof(buffer));
    if (count == 0 || (count < 0 && errno != EINTR)) return text;
    if (count > 0) text.append(buffer, static_cast<size_t>(count));
  }
}

// Stdout of a program that ends, or is ended at `end_ns`.
Result<std::string> RunProgram(const std::vector<std::string>& arguments, int64_t end_ns) {
  int pipes[2];
  if (pipe2(pipes, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  const Result<pid_t> child = Spawn(arguments, pipes[1]);
  close(pipes[1]);
  if (!child.ok()) {
    close(pipes[0]);
    return child.status();
  }
  std::string text = ReadUntil(pipes[0], end_ns);
  close(pipes[0]);
  if (io::SystemClock()->MonotonicNanos() >= end_ns) kill(*child, SIGKILL);
  int status = 0;
  while (waitpid(*child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    return Status(StatusCode::kUnknown, arguments[0] + " failed");
  }
  return text;
}

}  // namespace

Result<WriteSpeed> MeasureWrites(io::File* file, double seconds, uint64_t bytes_max) {
  STEPWELL_ASSIGN_OR_RETURN(const std::unique_ptr<io::Disk> disk, io::OpenDisk({}));
  disk->RegisterFile(file);
  Writer writer(disk.get(), file, bytes_max);
  Status status = writer.Prepare();
  const int64_t start_ns = io::SystemClock()->MonotonicNanos();
  const auto duration_ns = static_cast<int64_t>(seconds * static_cast<double>(kNanosPerSecond));
  if (status.ok()) status = writer.Run(start_ns + duration_ns);
  if (status.ok()) status = file->Sync();
  const int64_t end_ns = io::SystemClock()->MonotonicNanos();
  disk->UnregisterFile(file);
  STEPWELL_RETURN_IF_ERROR(status);
  STEPWELL_RETURN_IF_ERROR(file->Truncate(0));
  return WriteSpeed{
      .not_measured = "",
      .bytes = writer.bytes(),
      .seconds = static_cast<double>(end_ns - start_ns) / static_cast<double>(kNanosPerSecond),
      .block_bytes = db::kBlockBytes,
      .depth = kDepth,
      .through = disk->Describe()};
}

Result<WriteSpeed> MeasureWritesByFio(const std::string& directory, bool direct, double seconds,
                                      uint64_t bytes_max) {
  const int64_t now_ns = io::SystemClock()->MonotonicNanos();
  const InterruptIgnored interrupt;
  const std::string path = StrCat(directory, "/.stepwell-doctor-", getpid(), "-", now_ns);
  STEPWELL_RETURN_IF_ERROR(io::LocalFileSystem()->CreateDirectory(path));
  const ScratchDirectory scratch(path);
  const auto milliseconds = static_cast<int64_t>(seconds * 1000);
  const auto end_ns = now_ns + milliseconds * 1'000'000 + kFioGraceNs;
  const bool uring = io::OpenDisk({.kind = io::DiskKind::kUring, .log = {}}).ok();
  STEPWELL_ASSIGN_OR_RETURN(
      const std::string text,
      RunProgram({"fio", "--name=stepwell", "--filename=" + scratch.File(), "--rw=write",
                  StrCat("--bs=", db::kBlockBytes), StrCat("--iodepth=", kDepth),
                  StrCat("--ioengine=", uring ? "io_uring" : "libaio"),
                  StrCat("--direct=", direct ? 1 : 0), StrCat("--size=", bytes_max),
                  StrCat("--runtime=", std::max<int64_t>(milliseconds, 1), "ms"), "--end_fsync=1",
                  "--output-format=json"},
                 end_ns));
  // Notes of fio may stand before the document.
  const size_t start = text.find('{');
  const nlohmann::json document = nlohmann::json::parse(
      start == std::string::npos ? "" : text.substr(start), nullptr, /*allow_exceptions=*/false);
  const nlohmann::json* write = nullptr;
  if (document.is_object() && document.contains("jobs") && document["jobs"].is_array() &&
      !document["jobs"].empty() && document["jobs"][0].contains("write")) {
    write = &document["jobs"][0]["write"];
  }
  if (write == nullptr || !write->contains("io_bytes") || !write->contains("runtime")) {
    return Status(StatusCode::kUnknown, "fio printed no result that can be read");
  }
  return WriteSpeed{.not_measured = "",
                    .bytes = write->value("io_bytes", uint64_t{0}),
                    .seconds = write->value("runtime", 0.0) / 1000,
                    .block_bytes = db::kBlockBytes,
                    .depth = kDepth,
                    .through = document.value("fio version", std::string("fio"))};
}

}  // namespace stepwell
