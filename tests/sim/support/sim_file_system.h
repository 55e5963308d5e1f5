// SPDX-License-Identifier: Apache-2.0
// io::FileSystem and io::File over a SimWorld. Paths are taken from the root of the world, whether
// they begin with a slash or not; only the root exists at first.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "io/disk.h"
#include "tests/sim/support/sim_world.h"

namespace stepwell::sim {

class SimFileSystem final : public io::FileSystem {
 public:
  explicit SimFileSystem(std::shared_ptr<SimWorld> world) : world_(std::move(world)) {}

  Result<std::unique_ptr<io::File>> Open(const std::string& path,
                                         const io::FileOpenOptions& options) override;
  Result<io::FileInfo> Stat(const std::string& path) override;
  Result<std::vector<std::string>> List(const std::string& path) override;
  Status CreateDirectory(const std::string& path) override;
  Status Remove(const std::string& path) override;
  Status RemoveDirectory(const std::string& path) override;
  Status Rename(const std::string& from, const std::string& to) override;
  Status Exchange(const std::string& one, const std::string& other) override;
  Status Link(const std::string& from, const std::string& to) override;
  Status SetMode(const std::string& path, uint32_t mode) override;
  Status SyncDirectory(const std::string& path) override;
  std::unique_ptr<io::WholeSync> TakeWholeSync(const std::string& path) override;
  Result<uint64_t> FreeBytes(const std::string& path) override;

 private:
  Status RemoveEntry(const std::string& path, bool directory);

  const std::shared_ptr<SimWorld> world_;
};

class SimFile final : public io::File {
 public:
  // World's mutex held.
  SimFile(std::shared_ptr<SimWorld> world, InodeRef inode, const std::string& path,
          std::shared_ptr<io::Freeze> freeze, const io::FileOpenOptions& options);
  ~SimFile() override;

  Result<size_t> ReadAt(uint64_t offset, MutableBytes out) override;
  Status WriteAt(uint64_t offset, ConstBytes data) override;
  Status Sync() override;
  Status Allocate(uint64_t offset, uint64_t length) override;
  Status PunchHole(uint64_t offset, uint64_t length) override;
  Status Truncate(uint64_t size) override;
  // Sharing blocks is not simulated: it copies.
  Status CloneFrom(io::File& source, uint64_t source_offset, uint64_t length,
                   uint64_t offset) override;
  Result<io::FileInfo> Info() override;
  Result<bool> TryLock(io::LockKind kind) override;
  Status Unlock() override;
  Result<bool> LockedByOther() override;
  io::Alignment alignment() const override;

 private:
  friend class SimDisk;
  // EINVAL where direct I/O is misaligned, EBADF where a read-only file is written.
  Status CheckTransfer(uint64_t offset, const void* memory, size_t size, bool write) const;

  const std::shared_ptr<SimWorld> world_;
  const InodeRef inode_;
  const bool writable_;
  const bool direct_;
};

}  // namespace stepwell::sim
