// SPDX-License-Identifier: Apache-2.0
// Helpers of the tests of io/: a temporary directory, an Op that remembers, children by fork.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/buffer.h"
#include "io/disk.h"
#include "io/open_disk.h"
#include "tests/io/support/end_child.h"
#include "tests/io/support/expect_ok.h"

namespace stepwell::io::testing {

// A new directory on a real disk (not a tmpfs where that can be helped), removed at the end.
class TempDir {
 public:
  TempDir() : TempDir(std::getenv("TMPDIR") ? std::getenv("TMPDIR") : "/var/tmp") {}
  explicit TempDir(const std::string& parent) : path_(parent + "/stepwell-io-XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) {
      std::perror(path_.c_str());
      std::abort();
    }
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  std::string operator/(std::string_view name) const { return StrCat(path_, "/", name); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// `size` bytes that differ along the way and from seed to seed.
inline std::string Pattern(size_t size, unsigned seed) {
  std::string text(size, '\0');
  uint32_t state = seed * 2654435761U + 1;
  for (char& c : text) {
    state = state * 1664525U + 1013904223U;
    c = static_cast<char>(state >> 24);
  }
  return text;
}

inline AlignedBuffer AlignedCopy(std::string_view text) {
  AlignedBuffer buffer(text.size());
  for (size_t i = 0; i < text.size(); ++i) buffer.data()[i] = static_cast<std::byte>(text[i]);
  return buffer;
}

inline FileOpenOptions CreateOptions(bool direct = false,
                                     std::shared_ptr<Freeze> freeze = nullptr) {
  FileOpenOptions options;
  options.write = true;
  options.create = true;
  options.direct = direct;
  options.freeze = std::move(freeze);
  return options;
}

// A new file; dies when it cannot be had.
inline std::unique_ptr<File> Create(const std::string& path, bool direct = false,
                                    std::shared_ptr<Freeze> freeze = nullptr) {
  return LocalFileSystem()->Open(path, CreateOptions(direct, std::move(freeze))).value();
}

class TestOp final : public Op {
 public:
  TestOp(Kind op_kind, File* op_file, uint64_t offset, std::vector<iovec> memory) {
    kind = op_kind;
    file = op_file;
    offset_bytes = offset;
    memory_ = std::move(memory);
    vectors = memory_;
  }
  TestOp(Kind op_kind, File* op_file, uint64_t offset, MutableBytes memory)
      : TestOp(op_kind, op_file, offset, {iovec{memory.data(), memory.size()}}) {}
  TestOp(Kind op_kind, File* op_file) : TestOp(op_kind, op_file, 0, std::vector<iovec>{}) {}

  void OnComplete() override {
    ++completions;
    if (then) then();
  }

  int completions = 0;
  std::function<void()> then;

 private:
  std::vector<iovec> memory_;
};

inline void PollAll(Disk* disk) {
  while (disk->in_flight() != 0) disk->Poll(/*wait=*/true);
}
inline Status RunOp(Disk* disk, TestOp* op) {
  disk->Submit(op);
  PollAll(disk);
  return op->status;
}

// Null where this machine has no io_uring.
inline std::unique_ptr<Disk> OpenKind(DiskKind kind, unsigned depth = 8) {
  DiskOptions options;
  options.kind = kind;
  options.depth = depth;
  Result<std::unique_ptr<Disk>> disk = OpenDisk(options);
  return disk.ok() ? std::move(disk).value() : nullptr;
}

}  // namespace stepwell::io::testing
