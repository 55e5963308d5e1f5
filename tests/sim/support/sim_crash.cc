// SPDX-License-Identifier: Apache-2.0
// SimWorld's data operations and the images that crashes leave.
#include <algorithm>
#include <functional>
#include <set>

#include "tests/sim/support/sim_world.h"

namespace stepwell::sim {
namespace {

constexpr SectorOdds kAllKept = {1, 0, 0, 0};
constexpr SectorOdds kAllDropped = {0, 1, 0, 0};

// Characters of crashes; one is drawn for the machine, and for kByFile one for each file.
enum class Character : uint8_t { kKeepAll, kDropAll, kByFile, kMixed, kHostile, kCount };

SectorOdds OddsOf(Character character, Prng* prng) {
  switch (character) {
    case Character::kKeepAll:
      return kAllKept;
    case Character::kDropAll:
      return kAllDropped;
    case Character::kByFile:
      return prng->Coin() ? kAllKept : kAllDropped;
    case Character::kMixed:
      return {1 + static_cast<uint32_t>(prng->Below(8)), 2, 0, 0};
    default:
      return {8, 4, 2, 2};
  }
}

uint64_t Hash(uint64_t hash, const void* data, size_t size) {  // FNV-1a by bytes
  const auto* bytes = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < size; ++i) hash = (hash ^ bytes[i]) * 0x100000001B3u;
  return hash;
}

using Visitor = std::function<void(const std::string& path, const Inode& inode)>;

void VisitLive(const Inode& directory, const std::string& prefix, const Visitor& visit) {
  for (const auto& [name, inode] : directory.entries) {
    visit(prefix + name, *inode);
    if (inode->is_directory) VisitLive(*inode, prefix + name + "/", visit);
  }
}

}  // namespace

Status SimWorld::ReadLocked(const Inode& inode, uint64_t offset, MutableBytes out, bool direct,
                            std::string_view path, uint64_t* count) {
  Fault::Effect effect{};
  STEPWELL_RETURN_IF_ERROR(BeginOp(OpKind::kRead, path, &effect, {offset, out.size()}));
  const uint64_t size = inode.live().size();
  *count = offset >= size ? 0 : std::min<uint64_t>(out.size(), size - offset);
  if (effect == Fault::Effect::kShort && *count > 0) {
    *count = AlignDown(prng_.Below(*count), kSectorBytes);
  }
  inode.Read(offset, out.first(*count), direct);
  return OkStatus();
}

Status SimWorld::WriteLocked(Inode* inode, uint64_t offset, ConstBytes data,
                             std::string_view path) {
  Fault::Effect effect{};
  const bool was_frozen = frozen_;
  const Status status = BeginOp(OpKind::kWrite, path, &effect, {offset, data.size()});
  if (!status.ok()) {
    // The freeze and a device error may both leave a part; a full disk leaves nothing.
    if (frozen_ && !was_frozen) {
      in_flight_at_freeze_.push_back(
          {inode->shared_from_this(), offset, std::string(AsText(data))});
    } else if (!frozen_ && effect == Fault::Effect::kDoAndFail) {
      inode->Write(offset, data);
    } else if (!frozen_ && status.code() != StatusCode::kResourceExhausted) {
      Land(inode, offset, data, &prng_);
    }
    return status;
  }
  if (effect == Fault::Effect::kLose) return OkStatus();
  if (effect == Fault::Effect::kMisdirect) {
    const uint64_t sectors = inode->live().size() / kSectorBytes + 1;
    offset = prng_.Below(sectors) * kSectorBytes + offset % kSectorBytes;
  }
  STEPWELL_RETURN_IF_ERROR(CheckRoom(*inode, offset, data.size(), path));
  inode->Write(offset, data);
  if (prng_.OneIn(8)) inode->WriteBackOne(&prng_);
  return OkStatus();
}

Status SimWorld::SyncLocked(Inode* inode, const std::vector<ByteRange>& uncovered,
                            std::string_view path) {
  Fault::Effect effect{};
  const Status status = BeginOp(OpKind::kSync, path, &effect);
  if (status.ok() && inode->TakeUnreported()) return ErrnoStatus(EIO, std::string(path));
  if (status.ok()) {
    if (effect != Fault::Effect::kLose) inode->Sync(uncovered);
  } else if (effect == Fault::Effect::kDoAndFail) {
    inode->Sync(uncovered);
  } else if (!frozen_) {
    inode->FailSync(&prng_);
  }
  return status;
}

Status SimWorld::SyncWhole() {
  const std::lock_guard lock(mutex_);
  if (!can_sync_whole_) return UnimplementedError("the files are synced one by one");
  Fault::Effect effect{};
  const Status status = BeginOp(OpKind::kSync, "/", &effect);
  const bool done = status.ok() || effect == Fault::Effect::kDoAndFail;
  if ((done && effect == Fault::Effect::kLose) || frozen_) return status;
  const bool foreign = prng_.Coin();  // a failed write was of a file that is not in this world
  for (const InodeRef& inode : Reachable()) {
    if (inode->is_directory) continue;
    if (done) {
      inode->Sync({});
    } else if (!foreign && prng_.Coin()) {
      inode->FailSync(&prng_);
      inode->SetUnreported();
    }
  }
  if (!done) return status;
  for (const NameOp& op : pending_names_) {
    for (const NameChange& change : op) ApplyName(change, &Inode::durable_entries);
  }
  pending_names_.clear();
  return status;
}

void SimWorld::Land(Inode* inode, uint64_t offset, ConstBytes data, Prng* prng) {
  const uint64_t mode = prng->Below(4);  // all, none, or by sector
  for (uint64_t done = 0; done < data.size();) {
    const uint64_t room = kSectorBytes - (offset + done) % kSectorBytes;
    const uint64_t count = std::min<uint64_t>(room, data.size() - done);
    if (mode == 0 || (mode >= 2 && prng->Coin())) {
      inode->Write(offset + done, data.subspan(done, count));
    }
    done += count;
  }
}

std::vector<InodeRef> SimWorld::Reachable() const {
  std::map<uint64_t, InodeRef> found;
  std::vector<InodeRef> todo = {root_};
  for (const NameOp& op : pending_names_) {
    for (const NameChange& change : op) {
      todo.push_back(change.directory);
      if (change.inode != nullptr) todo.push_back(change.inode);
    }
  }
  while (!todo.empty()) {
    const InodeRef inode = std::move(todo.back());
    todo.pop_back();
    if (!found.emplace(inode->number, inode).second) continue;
    for (const Entries* entries : {&inode->entries, &inode->durable_entries}) {
      for (const auto& [name, child] : *entries) todo.push_back(child);
    }
  }
  std::vector<InodeRef> out;
  for (auto& [number, inode] : found) out.push_back(std::move(inode));
  return out;
}

std::shared_ptr<SimWorld> SimWorld::CloneLocked(Prng* prng) const {
  auto clone = Make({prng->Next(), capacity_bytes_});
  clone->inode_last_ = inode_last_;
  clone->can_punch_ = can_punch_;
  clone->can_sync_whole_ = can_sync_whole_;
  clone->inodes_.clear();
  std::map<const Inode*, InodeRef> to;
  const std::vector<InodeRef> all = Reachable();
  for (const InodeRef& inode : all) {
    InodeRef copy = inode->CloneContent();
    copy->link_count = inode->link_count;
    clone->inodes_[copy->number] = copy;
    to[inode.get()] = std::move(copy);
  }
  for (const InodeRef& inode : all) {
    for (const auto& [name, child] : inode->entries) {
      to[inode.get()]->entries[name] = to[child.get()];
    }
    for (const auto& [name, child] : inode->durable_entries) {
      to[inode.get()]->durable_entries[name] = to[child.get()];
    }
  }
  clone->root_ = to[root_.get()];
  for (const NameOp& op : pending_names_) {
    NameOp copy;
    for (const NameChange& change : op) {
      copy.push_back({to[change.directory.get()], change.name,
                      change.inode == nullptr ? nullptr : to[change.inode.get()]});
    }
    clone->pending_names_.push_back(std::move(copy));
  }
  // Writes in flight land, in part, or never, in any order.
  std::vector<const InFlightWrite*> writes;
  if (frozen_) {
    for (const InFlightWrite& write : in_flight_at_freeze_) writes.push_back(&write);
  } else {
    writes.assign(in_flight_.begin(), in_flight_.end());
  }
  for (size_t i = writes.size(); i > 1; --i) std::swap(writes[i - 1], writes[prng->Below(i)]);
  for (const InFlightWrite* write : writes) {
    const auto it = to.find(write->inode.get());
    if (it != to.end()) Land(it->second.get(), write->offset, AsBytes(write->data), prng);
  }
  return clone;
}

std::shared_ptr<SimWorld> SimWorld::CrashImageProcessKill(uint64_t seed) const {
  const std::lock_guard lock(mutex_);
  Prng prng(seed);
  return CloneLocked(&prng);
}

std::vector<bool> SimWorld::KeptNames(const std::vector<NameOp>& ops, NameLoss mode, bool all,
                                      bool none, Prng* prng) {
  all = all || mode == NameLoss::kNone;
  std::vector<bool> kept(ops.size(), all);
  if (all || none) return kept;
  const size_t prefix = prng->Below(ops.size() + 1);
  std::set<const Inode*> stopped;  // directories whose prefix has ended
  for (size_t i = 0; i < ops.size(); ++i) {
    if (mode == NameLoss::kPrefix) {
      kept[i] = i < prefix;
    } else if (mode == NameLoss::kIndependent) {
      kept[i] = prng->Coin();
    } else {
      bool open = !prng->OneIn(4);
      for (const NameChange& change : ops[i]) open &= !stopped.contains(change.directory.get());
      kept[i] = open;
      if (open) continue;
      for (const NameChange& change : ops[i]) stopped.insert(change.directory.get());
    }
  }
  return kept;
}

std::shared_ptr<SimWorld> SimWorld::Crash(const CrashOptions& options) const {
  const std::lock_guard lock(mutex_);
  Prng prng(options.seed);
  std::shared_ptr<SimWorld> image = CloneLocked(&prng);
  std::set<const Inode*> lost;
  VisitLive(*image->root_, "/", [&](const std::string& path, const Inode& inode) {
    if (options.lost && path.ends_with(*options.lost)) lost.insert(&inode);
  });
  const auto character =
      static_cast<Character>(prng.Below(static_cast<uint64_t>(Character::kCount)));
  const auto mode = options.names.value_or(static_cast<NameLoss>(prng.Below(3)));
  const bool chosen = options.odds.has_value() || options.names.has_value();
  const std::vector<bool> kept =
      KeptNames(image->pending_names_, mode, !chosen && character == Character::kKeepAll,
                !chosen && character == Character::kDropAll, &prng);
  for (size_t i = 0; i < kept.size(); ++i) {
    if (!kept[i]) continue;
    for (const NameChange& change : image->pending_names_[i]) {
      ApplyName(change, &Inode::durable_entries);
    }
  }
  // Reset every inode that was reachable; what has no durable name falls away below.
  const std::vector<InodeRef> all = image->Reachable();
  image->pending_names_.clear();
  for (const InodeRef& inode : all) {
    inode->link_count = 0;
    inode->entries = inode->durable_entries;
    if (inode->is_directory) continue;
    SectorOdds odds = options.odds ? *options.odds : OddsOf(character, &prng);
    if (lost.contains(inode.get())) odds = kAllDropped;
    inode->Settle(inode->Survivor(odds, &prng));
  }
  image->root_->link_count = 1;
  const std::vector<InodeRef> named = image->Reachable();
  for (const InodeRef& inode : named) {
    for (const auto& [name, child] : inode->entries) ++child->link_count;
  }
  return image;
}

std::vector<std::pair<std::string, uint64_t>> SimWorld::Files() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::pair<std::string, uint64_t>> files;
  VisitLive(*root_, "/", [&files](const std::string& path, const Inode& inode) {
    if (!inode.is_directory) files.emplace_back(path, inode.live().size());
  });
  return files;
}

std::optional<std::string> SimWorld::Contents(const std::string& path) const {
  const std::lock_guard lock(mutex_);
  const InodeRef inode = Find(path);
  if (inode == nullptr || inode->is_directory) return std::nullopt;
  std::string bytes(inode->live().size(), '\0');
  inode->live().Read(0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

uint64_t SimWorld::Fingerprint() const {
  const std::lock_guard lock(mutex_);
  uint64_t hash = 0xCBF29CE484222325u;
  VisitLive(*root_, "/", [&hash](const std::string& path, const Inode& inode) {
    hash = Hash(hash, path.data(), path.size() + 1);
    const uint64_t size = inode.live().size();
    hash = Hash(hash, &size, sizeof size);
    std::array<std::byte, kPageBytes> page{};
    for (uint64_t i = 0; i * kPageBytes < size; ++i) {
      if (!inode.live().HasPage(i)) continue;  // as zeros: also skipped below
      inode.live().Read(i * kPageBytes, page);
      if (std::all_of(page.begin(), page.end(), [](std::byte b) { return b == std::byte{0}; })) {
        continue;
      }
      hash = Hash(hash, &i, sizeof i);
      hash = Hash(hash, page.data(), page.size());
    }
  });
  return hash;
}

bool SimWorld::AllDurable() const {
  const std::lock_guard lock(mutex_);
  if (!pending_names_.empty()) return false;
  const std::vector<InodeRef> all = Reachable();
  return std::all_of(all.begin(), all.end(), [](const InodeRef& inode) { return inode->clean(); });
}

}  // namespace stepwell::sim
