// SPDX-License-Identifier: Apache-2.0
// Limits that the machine sets on a process: file size, locked memory, no io_uring, fork. Each in a
// forked child, because most cannot be lifted again.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <cerrno>
#include <csignal>
#include <cstddef>

#include "tests/io/support/support.h"

namespace stepwell::io {
namespace {

using testing::AlignedCopy;
using testing::Create;
using testing::OpenKind;
using testing::Pattern;
using testing::PollAll;
using testing::RunOp;
using testing::TempDir;
using testing::TestOp;

constexpr size_t kLimitBytes = 96 << 10;

void LimitFileSize() {
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{kLimitBytes, kLimitBytes};
  setrlimit(RLIMIT_FSIZE, &limit);
}

std::string Judge(const Status& status, uint64_t file_bytes, bool frozen) {
  if (status.code() != StatusCode::kResourceExhausted) return "status " + status.ToString();
  if (status.os_error() != EFBIG) return "errno of " + status.ToString();
  if (file_bytes != kLimitBytes) return StrCat("the file has ", file_bytes, " bytes");
  return frozen ? "frozen" : "";
}

// A write over the limit is cut short by the kernel, and what is left then fails.
TEST(FileSizeLimitTest, BlockingWriteIsOutOfSpace) {
  for (const bool direct : {false, true}) {
    const TempDir dir;
    const auto file = Create(dir / "a", direct);
    AlignedBuffer buffer = AlignedCopy(Pattern(256 << 10, 1));
    EXPECT_EQ(InChild([&]() -> std::string {
                LimitFileSize();
                const Status status = file->WriteAt(0, buffer.bytes());
                return Judge(status, file->Info().value().size_bytes, file->freeze()->frozen());
              }),
              "");
  }
}

class LimitsTest : public ::testing::TestWithParam<DiskKind> {
 protected:
  void SetUp() override {
    if (OpenKind(GetParam()) == nullptr) GTEST_SKIP() << "this machine has no io_uring";
  }
};

TEST_P(LimitsTest, FileSizeLimitIsOutOfSpace) {
  for (const bool direct : {false, true}) {
    const TempDir dir;
    const auto file = Create(dir / "a", direct);
    AlignedBuffer buffer = AlignedCopy(Pattern(256 << 10, 1));
    EXPECT_EQ(InChild([&]() -> std::string {
                LimitFileSize();
                const auto disk = OpenKind(GetParam());
                TestOp write(Op::Kind::kWrite, file.get(), 0, buffer.bytes());
                const Status status = RunOp(disk.get(), &write);
                if (write.transferred_bytes != kLimitBytes) return "transferred_bytes";
                return Judge(status, file->Info().value().size_bytes, file->freeze()->frozen());
              }),
              "");
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, LimitsTest, ::testing::Values(DiskKind::kPosix, DiskKind::kUring),
                         [](const auto& param) {
                           return param.param == DiskKind::kPosix ? "Posix" : "Uring";
                         });

// Opens the disk that this process can have, uses it, and collects what was logged.
std::string UseAutoDisk(const std::string& directory, std::string* description,
                        std::vector<std::string>* lines) {
  DiskOptions options;
  options.log = [lines](LogLevel, std::string_view line) { lines->emplace_back(line); };
  Result<std::unique_ptr<Disk>> opened = OpenDisk(options);
  if (!opened.ok()) return opened.status().ToString();
  Disk* const disk = opened->get();
  const auto file = Create(directory + "/used", /*direct=*/true);
  const std::string text = Pattern(1 << 20, 2);
  AlignedBuffer buffer = AlignedCopy(text);
  disk->RegisterFile(file.get());
  TestOp write(Op::Kind::kWrite, file.get(), 0, buffer.bytes());
  write.buffer_index = disk->RegisterBuffer(buffer.bytes());
  if (const Status status = RunOp(disk, &write); !status.ok()) return status.ToString();
  AlignedBuffer back(text.size());
  const Result<size_t> read = file->ReadAt(0, back.bytes());
  if (!read.ok() || AsText(back.bytes()) != text) return "read back something else";
  *description = disk->Describe();
  return "";
}

// From now on the call fails with that errno.
bool Forbid(uint32_t call, uint32_t os_error) {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | os_error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{static_cast<unsigned short>(std::size(filter)), filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

bool ForbidIoUring() { return Forbid(__NR_io_uring_setup, EPERM); }

TEST(FailingStatTest, AListingThatFailsKeepsNoDescriptor) {
  const TempDir dir;
  EXPECT_EQ(InChild([&]() -> std::string {
              const int free = dup(STDIN_FILENO);
              close(free);
              // A file system reports this that goes down between the open and fdopendir's fstat.
              if (!Forbid(__NR_newfstatat, EIO) || !Forbid(__NR_fstat, EIO)) return "no seccomp";
              const Status status = LocalFileSystem()->List(dir.path()).status();
              if (status.os_error() != EIO) return "listed: " + status.ToString();
              return dup(STDIN_FILENO) == free ? "" : "a descriptor stayed open";
            }),
            "");
}

TEST(ForbiddenIoUringTest, FallsBackToPosixAndSaysSoOnce) {
  const TempDir dir;
  EXPECT_EQ(InChild([&]() -> std::string {
              unsetenv("STEPWELL_DISK");
              if (!ForbidIoUring()) return "no seccomp";
              std::string description;
              std::vector<std::string> lines;
              if (std::string wrong = UseAutoDisk(dir.path(), &description, &lines);
                  !wrong.empty()) {
                return wrong;
              }
              if (description != "posix") return description;
              if (lines.size() != 1) return StrCat(lines.size(), " lines");
              return lines[0];
            }),
            "io_uring is not available here (Operation not permitted); using posix I/O");
}

TEST(ForbiddenIoUringTest, ForcedUringSaysWhyNot) {
  EXPECT_EQ(InChild([]() -> std::string {
              if (!ForbidIoUring()) return "no seccomp";
              DiskOptions options;
              options.kind = DiskKind::kUring;
              return OpenDisk(options).status().ToString();
            }),
            "unimplemented: io_uring was asked for but cannot be used: Operation not permitted");
}

TEST(LockedMemoryLimitTest, NoLockedMemoryStillWorks) {
  const TempDir dir;
  ASSERT_EQ(chmod(dir.path().c_str(), 0777), 0);
  for (const rlim_t bytes : {rlim_t{0}, rlim_t{128 << 10}}) {
    EXPECT_EQ(InChild([&]() -> std::string {
                unsetenv("STEPWELL_DISK");
                const rlimit limit{bytes, bytes};
                if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "setrlimit";
                if (getuid() == 0 && setuid(65534) != 0) return "setuid";  // root has no limit
                unlink((dir / "used").c_str());
                std::string description;
                std::vector<std::string> lines;
                return UseAutoDisk(dir.path(), &description, &lines);
              }),
              "")
        << bytes;
  }
}

TEST(ForkTest, AChildKeepsNeitherRingNorLock) {
  const TempDir dir;
  auto disk = OpenKind(DiskKind::kUring);
  if (disk == nullptr) GTEST_SKIP() << "this machine has no io_uring";
  auto holder = Create(dir / "LOCK");
  ASSERT_TRUE(holder->TryLock(LockKind::kExclusive).value());
  disk->RegisterFile(holder.get());
  disk->Poll(/*wait=*/false);
  int hold[2];
  int ready[2];
  ASSERT_EQ(pipe(hold), 0);
  ASSERT_EQ(pipe(ready), 0);
  const int lock_descriptor = holder->descriptor();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    close(hold[1]);
    close(lock_descriptor);  // the engine's handler does this; the ring closes by itself
    char byte = 0;
    if (write(ready[1], &byte, 1) != 1) _exit(2);
    [[maybe_unused]] const ssize_t got = read(hold[0], &byte, 1);  // until the parent is done
    disk.reset();  // must not touch the parent's ring, nor hang
    _exit(0);
  }
  close(hold[0]);
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  // The parent's ring still works, and when the parent lets go the lock is free.
  AlignedBuffer buffer = AlignedCopy("x");
  TestOp write(Op::Kind::kWrite, holder.get(), 0, buffer.bytes());
  EXPECT_OK(RunOp(disk.get(), &write));
  holder.reset();
  disk.reset();
  const auto other = Create(dir / "LOCK");
  EXPECT_TRUE(other->TryLock(LockKind::kExclusive).value());
  close(hold[1]);
  close(ready[0]);
  close(ready[1]);
  int state = 0;
  ASSERT_EQ(waitpid(child, &state, 0), child);
  EXPECT_EQ(state, 0);
}

}  // namespace
}  // namespace stepwell::io
