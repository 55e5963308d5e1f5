// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/support/sim_file_system.h"

#include <cerrno>

namespace stepwell::sim {
namespace {

io::FileInfo InfoOf(const Inode& inode) {
  io::FileInfo info;
  info.size_bytes = inode.live().size();
  info.allocated_bytes = inode.AllocatedBytes();
  info.link_count = inode.link_count;
  info.inode = inode.number;
  info.block_bytes = static_cast<uint32_t>(kPageBytes);
  info.mode = inode.is_directory ? 0755 : 0644;
  info.is_directory = inode.is_directory;
  return info;
}

}  // namespace

Result<std::unique_ptr<io::File>> SimFileSystem::Open(const std::string& path,
                                                      const io::FileOpenOptions& options) {
  const std::lock_guard lock(world_->mutex_);
  auto freeze = options.freeze != nullptr ? options.freeze : std::make_shared<io::Freeze>();
  if (options.create || options.truncate) {
    if (!options.write) return ErrnoStatus(EINVAL, path);
    STEPWELL_RETURN_IF_ERROR(freeze->Check());
  }
  InodeRef inode = world_->Find(path);
  const bool existed = inode != nullptr;
  if (!existed) {
    if (!options.create) return ErrnoStatus(ENOENT, path);
    std::string name;
    const InodeRef parent = world_->FindParent(path, &name);
    if (parent == nullptr) return ErrnoStatus(ENOENT, path);
    STEPWELL_RETURN_IF_ERROR(world_->BeginOp(OpKind::kCreate, path));
    inode = world_->NewInode(false);
    world_->ChangeNames({{parent, name, inode}});
  } else if (options.create && options.exclusive) {
    return ErrnoStatus(EEXIST, path);
  } else if (inode->is_directory && options.write) {
    return ErrnoStatus(EISDIR, path);
  }
  if (existed) STEPWELL_RETURN_IF_ERROR(world_->BeginOp(OpKind::kOpen, path));
  if (options.truncate && inode->live().size() > 0) {
    STEPWELL_RETURN_IF_ERROR(world_->BeginOp(OpKind::kTruncate, path));
    inode->Truncate(0);
  }
  return std::unique_ptr<io::File>(
      std::make_unique<SimFile>(world_, std::move(inode), path, std::move(freeze), options));
}

Result<io::FileInfo> SimFileSystem::Stat(const std::string& path) {
  const std::lock_guard lock(world_->mutex_);
  STEPWELL_RETURN_IF_ERROR(world_->BeginOp(OpKind::kLook, path));
  const InodeRef inode = world_->Find(path);
  if (inode == nullptr) return ErrnoStatus(ENOENT, path);
  return InfoOf(*inode);
}

Result<std::vector<std::string>> SimFileSystem::List(const std::string& path) {
  const std::lock_guard lock(world_->mutex_);
  STEPWELL_RETURN_IF_ERROR(world_->BeginOp(OpKind::kLook, path));
  const InodeRef inode = world_->Find(path);
  if (inode == nullptr) return ErrnoStatus(ENOENT, path);
  if (!inode->is_directory) return ErrnoStatus(ENOTDIR, path);
  std::vector<std::string> names;
  for (const auto& [name, child] : inode->entries) names.push_back(name);
  return names;
}

Status SimFileSystem::CreateDirectory(const std::string& path) {
  const std::lock_guard lock(world_->mutex_);
  if (world_->Find(path) != nullptr) return ErrnoStatus(EEXIST, path);
  std::string name;
  const InodeRef parent = world_->FindParent(path, &name);
  if (parent == nullptr) return ErrnoStatus(ENOENT, path);
  STEPWELL_RETURN_IF_ERROR(world_->BeginOp(OpKind::kCreate, path));
  world_->ChangeNames({{parent, name, world_->NewInode(true)}});
  return OkStatus();
}

Status SimFileSystem::RemoveEntry(const std::string& path, bool directory) {
  const std::lock_guard lock(world_->mutex_);
  std::string name;
  const InodeRef parent = world_->FindParent(path, &name);
  const InodeRef inode = world_->Find(path);
  if (parent == nullptr || inode == nullptr) return ErrnoStatus(ENOENT, path);
  if (inode->is_directory != directory) return ErrnoStatus(directory ? ENOTDIR : EISDIR, path);
  if (!inode->entries.empty()) return ErrnoStatus(ENOTEMPTY, path);
  STEPWELL_RETURN_IF_ERROR(world_->BeginOp(OpKind::kRemove, path));
  world_->ChangeNames({{parent, name, nullptr}});
  return OkStatus();
}

Status SimFileSystem::Remove(const std::string& path) { return RemoveEntry(path, false); }

Status SimFileSystem::RemoveDirectory(const std::string& path) { return RemoveEntry(path, true); }

Status SimFileSystem::Rename(const std::string& from, const std::string& to) {
  const std::lock_guard lock(world_->mutex_);
  std::string from_name;
  std::string to_name;
  const InodeRef from_parent = world_->FindParent(from, &from_name);
  const InodeRef to_parent = world_->FindParent(to, &to_name);
  const InodeRef inode = world_->Find(from);
  if (from_parent == nullptr || to_parent == nullptr || inode == nullptr) {
    return ErrnoStatus(ENOENT, from);
  }
  const InodeRef target = world_->Find(to);
  if (target == inode) return OkStatus();
  if (target != nullptr) {
    if (target->is_directory && !inode->is_directory) return ErrnoStatus(EISDIR, to);
    if (!target->is_directory && inode->is_directory) return ErrnoStatus(ENOTDIR, to);
    if (!target->entries.empty()) return ErrnoStatus(ENOTEMPTY, to);
  }
  // A directory cannot move into itself. Walking `to` again is enough: trees here are shallow.
  for (size_t slash = to.find('/', 1); inode->is_directory && slash != std::string::npos;
       slash = to.find('/', slash + 1)) {
    if (world_->Find(std::string_view(to).substr(0, slash)) == inode) {
      return ErrnoStatus(EINVAL, to);
    }
  }
  STEPWELL_RETURN_IF_ERROR(world_->BeginOp(OpKind::kRename, to));
  world_->ChangeNames({{to_parent, to_name, inode}, {from_parent, from_name, nullptr}});
  return OkStatus();
}

Status SimFileSystem::Exchange(const std::string& one, const std::string& other) {
  const std::lock_guard lock(world_->mutex_);
  std::string one_name;
  std::string other_name;
  const InodeRef one_parent = world_->FindParent(one, &one_name);
  const InodeRef other_parent = world_->FindParent(other, &other_name);
  const InodeRef one_inode = world_->Find(one);
  const InodeRef other_inode = world_->Find(other);
  if (one_inode == nullptr || other_inode == nullptr) return ErrnoStatus(ENOENT, one);
  STEPWELL_RETURN_IF_ERROR(world_->BeginOp(OpKind::kRename, other));
  world_->ChangeNames({{one_parent, one_name, other_inode}, {other_parent, other_name, one_inode}});
  return OkStatus();
}

Status SimFileSystem::Link(const std::string& from, const std::string& to) {
  const std::lock_guard lock(world_->mutex_);
  const InodeRef inode = world_->Find(from);
  std::string name;
  const InodeRef parent = world_->FindParent(to, &name);
  if (inode == nullptr || parent == nullptr) return ErrnoStatus(ENOENT, from);
  if (inode->is_directory) return ErrnoStatus(EPERM, from);
  if (world_->Find(to) != nullptr) return ErrnoStatus(EEXIST, to);
  STEPWELL_RETURN_IF_ERROR(world_->BeginOp(OpKind::kLink, to));
  world_->ChangeNames({{parent, name, inode}});
  return OkStatus();
}

// Permissions are not simulated.
Status SimFileSystem::SetMode(const std::string& path, uint32_t) { return Stat(path).status(); }

Status SimFileSystem::SyncDirectory(const std::string& path) {
  const std::lock_guard lock(world_->mutex_);
  const InodeRef inode = world_->Find(path);
  if (inode == nullptr) return ErrnoStatus(ENOENT, path);
  if (!inode->is_directory) return ErrnoStatus(ENOTDIR, path);
  Fault::Effect effect{};
  Status status = world_->BeginOp(OpKind::kSyncDirectory, path, &effect);
  const bool done = status.ok() || effect == Fault::Effect::kDoAndFail;
  if (done && effect != Fault::Effect::kLose) world_->SyncNames(inode);
  return status;
}

std::unique_ptr<io::WholeSync> SimFileSystem::TakeWholeSync(const std::string&) {
  class Whole final : public io::WholeSync {
   public:
    explicit Whole(std::shared_ptr<SimWorld> world) : world_(std::move(world)) {}
    Status Sync() override { return world_->SyncWhole(); }

   private:
    const std::shared_ptr<SimWorld> world_;
  };
  return std::make_unique<Whole>(world_);
}

Result<uint64_t> SimFileSystem::FreeBytes(const std::string& path) {
  const std::lock_guard lock(world_->mutex_);
  if (world_->Find(path) == nullptr) return ErrnoStatus(ENOENT, path);
  const uint64_t used = world_->UsedLocked();
  return used < world_->capacity_bytes_ ? world_->capacity_bytes_ - used : uint64_t{0};
}

SimFile::SimFile(std::shared_ptr<SimWorld> world, InodeRef inode, const std::string& path,
                 std::shared_ptr<io::Freeze> freeze, const io::FileOpenOptions& options)
    : File(path, std::move(freeze)),
      world_(std::move(world)),
      inode_(std::move(inode)),
      writable_(options.write),
      direct_(options.direct) {
  ++inode_->handle_count;
}

SimFile::~SimFile() {
  const std::lock_guard lock(world_->mutex_);
  inode_->locks.erase(this);
  --inode_->handle_count;
}

io::Alignment SimFile::alignment() const {
  if (!direct_) return {};
  return {static_cast<uint32_t>(kSectorBytes), static_cast<uint32_t>(kSectorBytes)};
}

Status SimFile::CheckTransfer(uint64_t offset, const void* memory, size_t size, bool write) const {
  if (write && !writable_) return ErrnoStatus(EBADF, path());
  if (!direct_) return OkStatus();
  const auto address = reinterpret_cast<uintptr_t>(memory);
  if (offset % kSectorBytes == 0 && size % kSectorBytes == 0 && address % kSectorBytes == 0) {
    return OkStatus();
  }
  return InvalidArgumentError(StrCat(path(), ": misaligned direct I/O: offset ", offset, ", ", size,
                                     " bytes at address ", address, " (EINVAL)"));
}

Result<size_t> SimFile::ReadAt(uint64_t offset, MutableBytes out) {
  STEPWELL_RETURN_IF_ERROR(CheckTransfer(offset, out.data(), out.size(), false));
  if (inode_->is_directory) return ErrnoStatus(EISDIR, path());
  const std::lock_guard lock(world_->mutex_);
  uint64_t count = 0;
  STEPWELL_RETURN_IF_ERROR(world_->ReadLocked(*inode_, offset, out, direct_, path(), &count));
  return static_cast<size_t>(count);
}

Status SimFile::WriteAt(uint64_t offset, ConstBytes data) {
  STEPWELL_RETURN_IF_ERROR(freeze()->Check());
  Status status = CheckTransfer(offset, data.data(), data.size(), true);
  if (status.ok()) {
    const std::lock_guard lock(world_->mutex_);
    status = world_->WriteLocked(inode_.get(), offset, data, path());
  }
  if (!status.ok() && status.code() != StatusCode::kResourceExhausted) freeze()->Trip(status);
  return status;
}

Status SimFile::Sync() {
  STEPWELL_RETURN_IF_ERROR(freeze()->Check());
  if (skips_syncs()) return OkStatus();
  Status status;
  {
    const std::lock_guard lock(world_->mutex_);
    status = world_->SyncLocked(inode_.get(), {}, path());
  }
  if (!status.ok()) freeze()->Trip(status);
  return status;
}

Status SimFile::Allocate(uint64_t offset, uint64_t length) {
  STEPWELL_RETURN_IF_ERROR(freeze()->Check());
  const std::lock_guard lock(world_->mutex_);
  if (!writable_) return ErrnoStatus(EBADF, path());
  STEPWELL_RETURN_IF_ERROR(world_->BeginOp(OpKind::kAllocate, path(), nullptr, {offset, length}));
  STEPWELL_RETURN_IF_ERROR(world_->CheckRoom(*inode_, offset, length, path()));
  inode_->Allocate(offset, length);
  return OkStatus();
}

Status SimFile::PunchHole(uint64_t offset, uint64_t length) {
  STEPWELL_RETURN_IF_ERROR(freeze()->Check());
  const std::lock_guard lock(world_->mutex_);
  if (!writable_) return ErrnoStatus(EBADF, path());
  if (!world_->can_punch_) return UnimplementedError(path() + ": cannot punch holes");
  STEPWELL_RETURN_IF_ERROR(world_->BeginOp(OpKind::kPunch, path(), nullptr, {offset, length}));
  inode_->Punch(offset, length);
  return OkStatus();
}

Status SimFile::Truncate(uint64_t size) {
  STEPWELL_RETURN_IF_ERROR(freeze()->Check());
  const std::lock_guard lock(world_->mutex_);
  if (!writable_) return ErrnoStatus(EBADF, path());
  STEPWELL_RETURN_IF_ERROR(world_->BeginOp(OpKind::kTruncate, path(), nullptr, {0, size}));
  inode_->Truncate(size);
  return OkStatus();
}

Status SimFile::CloneFrom(io::File& source, uint64_t source_offset, uint64_t length,
                          uint64_t offset) {
  constexpr uint64_t kMask = kPageBytes - 1;
  if (((source_offset | offset) & kMask) != 0) {
    return UnimplementedError(path() + ": clones are of whole pages");
  }
  return CopyFrom(source, source_offset, length, offset);
}

Result<io::FileInfo> SimFile::Info() {
  const std::lock_guard lock(world_->mutex_);
  STEPWELL_RETURN_IF_ERROR(world_->BeginOp(OpKind::kLook, path()));
  return InfoOf(*inode_);
}

Result<bool> SimFile::TryLock(io::LockKind kind) {
  const std::lock_guard lock(world_->mutex_);
  for (const auto& [owner, held] : inode_->locks) {
    if (owner == this) continue;
    if (kind == io::LockKind::kExclusive || held == io::LockKind::kExclusive) return false;
  }
  inode_->locks[this] = kind;
  return true;
}

Status SimFile::Unlock() {
  const std::lock_guard lock(world_->mutex_);
  inode_->locks.erase(this);
  return OkStatus();
}

Result<bool> SimFile::LockedByOther() {
  const std::lock_guard lock(world_->mutex_);
  for (const auto& [owner, held] : inode_->locks) {
    if (owner != this && held == io::LockKind::kExclusive) return true;
  }
  return false;
}

}  // namespace stepwell::sim
