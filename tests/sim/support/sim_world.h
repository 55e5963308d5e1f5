// SPDX-License-Identifier: Apache-2.0
// The simulated machine's state: its tree of files, its generator, its counter of operations and
// its planned faults. The fault model is at the head of sim_disk.h. Thread-safe: one mutex guards
// everything; it is recursive, for hooks. A world outlives its file systems, files and disks
// through shared_ptr.
#pragma once

#include <array>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/disk.h"
#include "tests/prng.h"
#include "tests/sim/support/sim_inode.h"

namespace stepwell::sim {

enum class OpKind : uint8_t {
  // These change nothing, and are not counted by mutating_ops().
  kRead,
  kOpen,  // of a file that is there
  kLook,  // stat, of a path or of an open file, and listing a directory
  kWrite,
  kSync,
  kAllocate,
  kPunch,
  kTruncate,
  kCreate,  // of a file or a directory
  kRename,
  kRemove,
  kLink,
  kSyncDirectory,
};
inline constexpr size_t kOpKinds = 13;
std::string_view NameOf(OpKind kind);  // "sync_directory"

struct Fault {
  enum class Effect : uint8_t {
    kFail,       // with os_error; a failed write may land in part, a failed sync loses data
    kLose,       // writes and syncs only: reports success, changes nothing
    kMisdirect,  // writes only: reports success, lands on another sector of the file
    kDoAndFail,  // everything is done (a sync: durable), os_error comes back; writes and syncs only
    kShort       // reads only: fewer bytes than there are, as at the end of a file
  };
  std::optional<OpKind> kind = {};  // none: any mutating operation
  uint64_t nth = 1;                 // the nth match after AddFault fails
  bool forever = false;             // and all later matches too
  int os_error = EIO;
  Effect effect = Effect::kFail;
  std::string path_contains = {};  // only operations on such paths match
  ByteRange range = {};            // only reads and writes that touch it match; length 0: all
};

inline constexpr uint64_t kUnlimitedBytes = uint64_t{1} << 40;  // a disk that never fills

// The ways in which a power cut keeps unsynced name operations.
enum class NameLoss : uint8_t {
  kPrefix,              // a prefix of all of them: one journal
  kPrefixPerDirectory,  // a prefix in each directory
  kIndependent,         // each on its own
  kNone,                // all survive
};

struct CrashOptions {
  uint64_t seed = 1;
  // Each left empty is chosen from the seed, so that seeds differ in character too: some keep all,
  // some drop all, some mix by file, some by sector with tears and garbage.
  std::optional<SectorOdds> odds;
  std::optional<NameLoss> names;
  // Files whose path ends so keep nothing unsynced, whatever the odds.
  std::optional<std::string> lost = std::nullopt;
};

class SimWorld : public std::enable_shared_from_this<SimWorld> {
 public:
  struct Options {
    uint64_t seed = 1;
    uint64_t capacity_bytes = kUnlimitedBytes;
  };

  static std::shared_ptr<SimWorld> Make(const Options& options);

  // --- the machine stops ---
  // Mutating operations so far; the first is number 1.
  uint64_t mutating_ops() const;
  uint64_t count(OpKind kind) const;
  // From mutating operation `op` on (1 is the first of this world) nothing changes any more: each
  // fails with kAborted "simulated crash". Reads go on.
  void FreezeAt(uint64_t op);
  void FreezeNow();
  bool frozen() const;

  // --- another process runs in between ---
  // Called before each operation (not before one of the hook's own), when the machine is as that
  // operation finds it. null: no more.
  using Hook = std::function<void(OpKind kind)>;
  void SetHook(Hook hook);
  // Returns true if an open file has a lock on that path.
  bool HasLocks(const std::string& path) const;

  // The machine after a power cut now (or at the freeze): a new world of which all is durable. This
  // world stays as it is, so that many images can be made of one state.
  std::shared_ptr<SimWorld> Crash(const CrashOptions& options) const;
  // The machine after SIGKILL of the process: the page cache lives on, still unsynced; writes in
  // flight have landed, in part, or never will; locks are gone.
  std::shared_ptr<SimWorld> CrashImageProcessKill(uint64_t seed) const;

  // --- faults ---
  void AddFault(const Fault& fault);
  void ClearFaults();
  // Counts the faults that have struck.
  uint64_t faults_struck() const;
  void SetCapacity(uint64_t bytes);
  // Sets whether the file system can punch holes (it can at first). Images inherit it.
  void SetCanPunch(bool can);
  // Sets whether all files can be synced by one operation, which counts as a sync of the path "/".
  // At first that is refused (io::WholeSync).
  void SetCanSyncWhole(bool can);
  Status SyncWhole();
  uint64_t UsedBytes() const;
  // Rot, in the cache and on the medium at once. False when there is no such byte.
  bool FlipBit(const std::string& path, uint64_t offset, unsigned bit);
  bool Poke(const std::string& path, uint64_t offset, ConstBytes data);

  // --- looking ---
  // All files (not directories) that the live system sees, with their sizes, sorted by path.
  std::vector<std::pair<std::string, uint64_t>> Files() const;
  std::optional<std::string> Contents(const std::string& path) const;
  // Covers every live name and byte: equal fingerprints, equal images.
  uint64_t Fingerprint() const;
  // Returns true if all of the live state is durable.
  bool AllDurable() const;

 private:
  friend class SimFileSystem;
  friend class SimFile;
  friend class SimDisk;

  struct NameChange {
    InodeRef directory;
    std::string name;
    InodeRef inode;  // null: the name goes away
  };
  using NameOp = std::vector<NameChange>;  // all or nothing
  struct InFlightWrite {
    InodeRef inode;
    uint64_t offset;
    std::string data;
  };
  struct PlannedFault {
    Fault fault;
    uint64_t seen = 0;
  };

  explicit SimWorld(const Options& options);

  // All of these want mutex_ held.
  Status BeginOp(OpKind kind, std::string_view path, Fault::Effect* effect = nullptr,
                 ByteRange range = {});
  void Trace(OpKind kind, std::string_view path, ByteRange range, const Status& status) const;
  void FreezeLocked();
  InodeRef Find(std::string_view path) const;
  // The parent directory and the last component; null when there is no such directory.
  InodeRef FindParent(std::string_view path, std::string* name) const;
  InodeRef NewInode(bool is_directory);
  void ChangeNames(NameOp op);
  void SyncNames(const InodeRef& directory);
  static void ApplyName(const NameChange& change, Entries Inode::*entries);
  uint64_t UsedLocked() const;
  Status CheckRoom(const Inode& inode, uint64_t offset, uint64_t length, std::string_view path);
  Status ReadLocked(const Inode& inode, uint64_t offset, MutableBytes out, bool direct,
                    std::string_view path, uint64_t* count);
  Status WriteLocked(Inode* inode, uint64_t offset, ConstBytes data, std::string_view path);
  Status SyncLocked(Inode* inode, const std::vector<ByteRange>& uncovered, std::string_view path);
  std::shared_ptr<SimWorld> CloneLocked(Prng* prng) const;
  static void Land(Inode* inode, uint64_t offset, ConstBytes data, Prng* prng);
  static std::vector<bool> KeptNames(const std::vector<NameOp>& ops, NameLoss mode, bool all,
                                     bool none, Prng* prng);
  std::vector<InodeRef> Reachable() const;

  mutable std::recursive_mutex mutex_;
  Prng prng_;
  uint64_t capacity_bytes_;
  bool can_punch_ = true;
  bool can_sync_whole_ = false;
  InodeRef root_;
  uint64_t inode_last_ = 0;
  std::vector<NameOp> pending_names_;  // unsynced, in order
  std::map<uint64_t, std::weak_ptr<Inode>> inodes_;
  std::vector<PlannedFault> faults_;
  uint64_t faults_struck_ = 0;
  uint64_t ops_ = 0;
  std::array<uint64_t, kOpKinds> counts_{};
  uint64_t freeze_at_ = 0;  // 0: never
  bool frozen_ = false;
  Hook hook_;
  bool in_hook_ = false;
  std::list<InFlightWrite*> in_flight_;             // writes that SimDisks have not applied yet
  std::vector<InFlightWrite> in_flight_at_freeze_;  // copies: their owners go on to fail them
};

}  // namespace stepwell::sim
