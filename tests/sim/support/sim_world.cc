// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/support/sim_world.h"

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <set>

namespace stepwell::sim {
namespace {

std::vector<std::string> Components(std::string_view path) {
  std::vector<std::string> parts;
  while (!path.empty()) {
    const size_t slash = std::min(path.find('/'), path.size());
    const std::string_view part = path.substr(0, slash);
    if (part == "..") {
      if (!parts.empty()) parts.pop_back();
    } else if (!part.empty() && part != ".") {
      parts.emplace_back(part);
    }
    path.remove_prefix(std::min(slash + 1, path.size()));
  }
  return parts;
}

bool Overlap(const ByteRange& a, const ByteRange& b) {
  return a.offset < b.offset + b.length && b.offset < a.offset + a.length;
}

InodeRef Walk(InodeRef at, const std::vector<std::string>& parts, size_t count) {
  for (size_t i = 0; i < count && at != nullptr; ++i) {
    const auto it = at->entries.find(parts[i]);
    at = it == at->entries.end() ? nullptr : it->second;
  }
  return at;
}

}  // namespace

std::shared_ptr<SimWorld> SimWorld::Make(const Options& options) {
  return std::shared_ptr<SimWorld>(new SimWorld(options));
}

SimWorld::SimWorld(const Options& options)
    : prng_(options.seed), capacity_bytes_(options.capacity_bytes) {
  root_ = NewInode(true);
  root_->link_count = 1;
}

InodeRef SimWorld::NewInode(bool is_directory) {
  auto inode = std::make_shared<Inode>(++inode_last_, is_directory);
  inodes_[inode->number] = inode;
  return inode;
}

InodeRef SimWorld::Find(std::string_view path) const {
  const std::vector<std::string> parts = Components(path);
  return Walk(root_, parts, parts.size());
}

InodeRef SimWorld::FindParent(std::string_view path, std::string* name) const {
  const std::vector<std::string> parts = Components(path);
  if (parts.empty()) return nullptr;
  *name = parts.back();
  InodeRef parent = Walk(root_, parts, parts.size() - 1);
  return parent != nullptr && parent->is_directory ? parent : nullptr;
}

void SimWorld::ApplyName(const NameChange& change, Entries Inode::*entries) {
  Entries& map = (*change.directory).*entries;
  if (change.inode == nullptr) {
    map.erase(change.name);
  } else {
    map[change.name] = change.inode;
  }
}

void SimWorld::ChangeNames(NameOp op) {
  for (const NameChange& change : op) {
    const auto it = change.directory->entries.find(change.name);
    if (it != change.directory->entries.end()) --it->second->link_count;
    if (change.inode != nullptr) ++change.inode->link_count;
    ApplyName(change, &Inode::entries);
  }
  pending_names_.push_back(std::move(op));
}

void SimWorld::SyncNames(const InodeRef& directory) {
  // An operation on two directories takes the earlier ones of both along, as a journal would.
  std::set<const Inode*> directories = {directory.get()};
  std::vector<bool> chosen(pending_names_.size());
  for (size_t i = pending_names_.size(); i-- > 0;) {
    const NameOp& op = pending_names_[i];
    chosen[i] = std::any_of(op.begin(), op.end(), [&](const NameChange& change) {
      return directories.contains(change.directory.get());
    });
    if (!chosen[i]) continue;
    for (const NameChange& change : op) directories.insert(change.directory.get());
  }
  std::vector<NameOp> left;
  for (size_t i = 0; i < pending_names_.size(); ++i) {
    if (!chosen[i]) {
      left.push_back(std::move(pending_names_[i]));
      continue;
    }
    for (const NameChange& change : pending_names_[i]) ApplyName(change, &Inode::durable_entries);
  }
  pending_names_ = std::move(left);
}

std::string_view NameOf(OpKind kind) {
  static constexpr std::array<std::string_view, kOpKinds> kNames = {
      "read",     "open",   "look",   "write",  "sync", "allocate",      "punch",
      "truncate", "create", "rename", "remove", "link", "sync_directory"};
  return kNames[static_cast<size_t>(kind)];
}

// With STEPWELL_SIM_TRACE=1, what a replayed seed does to its disks.
void SimWorld::Trace(OpKind kind, std::string_view path, ByteRange range,
                     const Status& status) const {
  std::cerr << this << " " << ops_ << " " << NameOf(kind) << " " << path;
  if (range.length > 0) std::cerr << " " << range.offset << "+" << range.length;
  if (!status.ok()) std::cerr << ": " << status.ToString();
  std::cerr << "\n";
}

Status SimWorld::BeginOp(OpKind kind, std::string_view path, Fault::Effect* effect,
                         ByteRange range) {
  const bool mutating = kind > OpKind::kLook;
  if (hook_ && !std::exchange(in_hook_, true)) {
    const Hook hook = hook_;  // which may set another one
    hook(kind);
    in_hook_ = false;
  }
  if (effect != nullptr) *effect = Fault::Effect::kFail;
  if (mutating) {
    if (!frozen_ && freeze_at_ != 0 && ops_ + 1 >= freeze_at_) FreezeLocked();
    if (frozen_) return AbortedError(StrCat(path, ": simulated crash"));
    ++ops_;
  }
  ++counts_[static_cast<size_t>(kind)];
  Status status;
  for (PlannedFault& planned : faults_) {
    const Fault& fault = planned.fault;
    if (fault.kind ? *fault.kind != kind : !mutating) continue;
    if (path.find(fault.path_contains) == std::string_view::npos) continue;
    if (fault.range.length > 0 && !Overlap(fault.range, range)) continue;
    ++planned.seen;
    if (planned.seen != fault.nth && !(fault.forever && planned.seen > fault.nth)) continue;
    ++faults_struck_;
    if (fault.effect == Fault::Effect::kFail || fault.effect == Fault::Effect::kDoAndFail) {
      status = ErrnoStatus(fault.os_error, StrCat(path, ": simulated fault"));
    }
    if (effect != nullptr && fault.effect != Fault::Effect::kFail) *effect = fault.effect;
  }
  static const bool traced = std::getenv("STEPWELL_SIM_TRACE") != nullptr;
  if (traced && mutating) Trace(kind, path, range, status);
  return status;
}

void SimWorld::FreezeLocked() {
  if (frozen_) return;
  frozen_ = true;
  for (const InFlightWrite* write : in_flight_) in_flight_at_freeze_.push_back(*write);
}

uint64_t SimWorld::mutating_ops() const {
  const std::lock_guard lock(mutex_);
  return ops_;
}

uint64_t SimWorld::count(OpKind kind) const {
  const std::lock_guard lock(mutex_);
  return counts_[static_cast<size_t>(kind)];
}

void SimWorld::FreezeAt(uint64_t op) {
  const std::lock_guard lock(mutex_);
  freeze_at_ = op;
}

void SimWorld::FreezeNow() {
  const std::lock_guard lock(mutex_);
  FreezeLocked();
}

bool SimWorld::frozen() const {
  const std::lock_guard lock(mutex_);
  return frozen_;
}

void SimWorld::SetHook(Hook hook) {
  const std::lock_guard lock(mutex_);
  hook_ = std::move(hook);
}

bool SimWorld::HasLocks(const std::string& path) const {
  const std::lock_guard lock(mutex_);
  const InodeRef inode = Find(path);
  return inode != nullptr && !inode->locks.empty();
}

void SimWorld::AddFault(const Fault& fault) {
  const std::lock_guard lock(mutex_);
  faults_.push_back({fault});
}

void SimWorld::ClearFaults() {
  const std::lock_guard lock(mutex_);
  faults_.clear();
}

uint64_t SimWorld::faults_struck() const {
  const std::lock_guard lock(mutex_);
  return faults_struck_;
}

void SimWorld::SetCapacity(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  capacity_bytes_ = bytes;
}

void SimWorld::SetCanPunch(bool can) {
  const std::lock_guard lock(mutex_);
  can_punch_ = can;
}

void SimWorld::SetCanSyncWhole(bool can) {
  const std::lock_guard lock(mutex_);
  can_sync_whole_ = can;
}

uint64_t SimWorld::UsedBytes() const {
  const std::lock_guard lock(mutex_);
  return UsedLocked();
}

uint64_t SimWorld::UsedLocked() const {
  uint64_t used = 0;
  for (const auto& [number, weak] : inodes_) {
    const InodeRef inode = weak.lock();
    if (inode != nullptr && (inode->link_count > 0 || inode->handle_count > 0)) {
      used += inode->AllocatedBytes();
    }
  }
  return used;
}

Status SimWorld::CheckRoom(const Inode& inode, uint64_t offset, uint64_t length,
                           std::string_view path) {
  if (capacity_bytes_ == kUnlimitedBytes) return OkStatus();  // to count takes a tenth of a soak
  const uint64_t wanted = inode.NewBytes(offset, length);
  if (wanted == 0 || UsedLocked() + wanted <= capacity_bytes_) return OkStatus();
  return ErrnoStatus(ENOSPC, path);
}

bool SimWorld::FlipBit(const std::string& path, uint64_t offset, unsigned bit) {
  const std::lock_guard lock(mutex_);
  const InodeRef inode = Find(path);
  if (inode == nullptr || inode->is_directory || offset >= inode->live().size()) return false;
  std::byte value{};
  inode->live().Read(offset, {&value, 1});
  value ^= std::byte{1} << (bit % 8);
  inode->Poke(offset, {&value, 1});
  return true;
}

bool SimWorld::Poke(const std::string& path, uint64_t offset, ConstBytes data) {
  const std::lock_guard lock(mutex_);
  const InodeRef inode = Find(path);
  if (inode == nullptr || inode->is_directory || offset + data.size() > inode->live().size()) {
    return false;
  }
  inode->Poke(offset, data);
  return true;
}

}  // namespace stepwell::sim
