// SPDX-License-Identifier: Apache-2.0
#include "db/log/lock.h"

#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <thread>
#include <vector>

#include "db/layout.h"
#include "db/log/segment_files.h"
#include "db/log/slot_file.h"
#include "io/small_file.h"

namespace stepwell::db {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kLockInterval{20};
constexpr size_t kHolderBytesMax = 512;
// For making files anew: as long as a few small writes take.
constexpr std::chrono::milliseconds kSeparateWait{5'000};
constexpr int kAcquireAttemptsMax = 20;

// Who holds LOCK: "pid=123 boot=<boot id> start=<start time> dir=<which directory>\n", and in front
// of the newline, once it takes requests, " socket=<name> ask=<key> answer=<key>". The start time
// (clock ticks since boot) tells a process from a later one with the same pid.
struct Holder {
  int pid = 0;
  std::string boot;
  std::string start;
  std::string directory;  // of the store, as DirectoryText; "": an older version's
  LockContact contact;    // empty: none
};

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Field `number`, from 3 (the state) on, of /proc/<pid>/stat; "" when there is no such process.
std::string StatField(int pid, int number) {
  const std::string line = FirstLine(StrCat("/proc/", pid, "/stat"));
  const size_t name_end = line.rfind(')');  // the name may hold spaces and parentheses
  if (name_end == std::string::npos) return "";
  std::istringstream fields(line.substr(name_end + 1));
  std::string field;
  for (int at = 3; at <= number; ++at) fields >> field;
  return fields ? field : "";
}

// None when there is no such process, or only its zombie.
std::optional<std::string> StartTime(int pid) {
  const std::string state = StatField(pid, 3);
  const std::string start = StatField(pid, 22);
  if (state == "Z" || state == "X" || start.empty()) return std::nullopt;
  return start;
}

std::string HolderText(std::string_view directory) {
  const int pid = getpid();
  return StrCat("pid=", pid, " boot=", BootId(), " start=", StartTime(pid).value_or(""),
                " dir=", directory);
}

// None when the file says nothing that makes sense.
std::optional<Holder> ReadHolder(io::File* file) {
  std::string text(kHolderBytesMax, '\0');
  const Result<size_t> read = file->ReadAt(0, std::as_writable_bytes(std::span(text)));
  if (!read.ok()) return std::nullopt;
  text.resize(*read);
  std::istringstream fields(text.substr(0, text.find('\n')));
  std::map<std::string, std::string> values;
  for (std::string field; fields >> field;) {
    const size_t equals = field.find('=');
    if (equals == std::string::npos) return std::nullopt;
    values[field.substr(0, equals)] = field.substr(equals + 1);
  }
  Holder holder{.boot = values["boot"],
                .start = values["start"],
                .directory = values["dir"],
                .contact = {values["socket"], values["ask"], values["answer"]}};
  std::istringstream(values["pid"]) >> holder.pid;
  if (holder.pid <= 0) return std::nullopt;
  return holder;
}

bool IsRunning(const Holder& holder) {
  return holder.boot == BootId() && StartTime(holder.pid) == holder.start;
}

Status HeldByRunning(const std::string& store_path, const Holder& holder) {
  const bool own = holder.pid == getpid();
  return UnavailableError(
      StrCat(store_path, ": locked by process ", holder.pid,
             own ? " (this one), which has it open already: use that Store object, or close it "
                   "first (when you rerun a notebook cell, the store of its last run is still open)"
                 : ", which is running; a store has one writer and any number of readers"));
}

Status HeldByDead(const std::string& store_path, const std::optional<Holder>& holder,
                  std::chrono::milliseconds waited) {
  std::string who;
  if (!holder) {
    who = "a process that left no name holds its lock";
  } else if (holder->boot != BootId()) {
    who = StrCat("process ", holder->pid, " of another machine holds its lock");
  } else {
    who = StrCat("process ", holder->pid,
                 " is gone but its lock is still held (a process forked from it may hold it open, "
                 "or its last writes are still landing)");
  }
  return UnavailableError(
      StrCat(store_path, ": ", who, "; waited ", static_cast<double>(waited.count()) / 1000, " s"));
}

// The processes that have a lock on the file, of those whose /proc can be read. The kernel names no
// holder of an OFD lock, but each descriptor's fdinfo lists the locks that it has.
std::vector<int> LockHolders(io::File* file) {
  std::vector<int> holders;
  const auto info = file->Info();
  if (!info.ok()) return holders;
  std::error_code ignored;
  for (const auto& process : fs::directory_iterator("/proc", ignored)) {
    int pid = 0;
    if (!(std::istringstream(process.path().filename().string()) >> pid)) continue;
    for (fs::directory_iterator entry(process.path() / "fd", ignored), end; entry != end;
         entry.increment(ignored)) {
      struct stat open {};
      if (stat(entry->path().c_str(), &open) != 0 || open.st_ino != info->inode ||
          open.st_dev != info->device) {
        continue;
      }
      std::ifstream lines(process.path() / "fdinfo" / entry->path().filename());
      bool locked = false;
      for (std::string line; std::getline(lines, line);) locked |= line.starts_with("lock:");
      if (!locked) continue;
      holders.push_back(pid);
      break;
    }
  }
  return holders;
}

bool IsStopped(int pid) {
  const std::string state = StatField(pid, 3);
  return state == "T" || state == "t";
}

Status WriteHolder(io::File* file, std::string_view directory, const std::string& contact = "") {
  const std::string text = StrCat(HolderText(directory), contact, "\n");
  STEPWELL_RETURN_IF_ERROR(file->WriteAt(0, AsBytes(text)));
  return file->Truncate(text.size());
}

// The holder of a lock of this directory: who has it alone makes files anew here.
Result<std::unique_ptr<io::File>> LockDirectory(io::FileSystem* file_system,
                                                const std::string& store_path) {
  STEPWELL_ASSIGN_OR_RETURN(auto directory, file_system->Open(store_path, {}));
  const int descriptor = directory->descriptor();
  const auto deadline = std::chrono::steady_clock::now() + kSeparateWait;
  while (descriptor >= 0 && flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return io::LockStatus(errno, store_path);
    if (std::chrono::steady_clock::now() >= deadline) {
      return UnavailableError(StrCat(store_path, ": another process is opening it"));
    }
    std::this_thread::sleep_for(kLockInterval);
  }
  return directory;
}

Result<bool> HasOtherName(io::FileSystem* file_system, const std::string& path) {
  STEPWELL_ASSIGN_OR_RETURN(const auto info, io::StatIfThere(file_system, path));
  return info && info->link_count > 1;
}

// Gives this store a LOCK and a STEPWELL of its own if one of them has another name, unless a
// process of this very directory has LOCK. STEPWELL comes first. Once LOCK is this store's, a
// locked STEPWELL is taken for that of a writer of this store whose LOCK was removed.
Status LeaveCopies(io::FileSystem* file_system, const std::string& store_path) {
  const std::string lock_path = LockFilePath(store_path);
  const std::string slot_path = SlotFilePath(store_path);
  STEPWELL_ASSIGN_OR_RETURN(bool lock_copied, HasOtherName(file_system, lock_path));
  STEPWELL_ASSIGN_OR_RETURN(bool slot_copied, HasOtherName(file_system, slot_path));
  if (!lock_copied && !slot_copied) return OkStatus();
  STEPWELL_ASSIGN_OR_RETURN(const auto directory, LockDirectory(file_system, store_path));
  STEPWELL_ASSIGN_OR_RETURN(lock_copied, HasOtherName(file_system, lock_path));
  STEPWELL_ASSIGN_OR_RETURN(slot_copied, HasOtherName(file_system, slot_path));
  if (!lock_copied && !slot_copied) return OkStatus();
  bool others_have_it = false;
  auto lock = file_system->Open(lock_path, {.write = true});
  if (!lock.ok() && lock.status().code() != StatusCode::kNotFound) return lock.status();
  if (lock.ok()) {
    STEPWELL_ASSIGN_OR_RETURN(const bool locked, (*lock)->TryLock(io::LockKind::kExclusive));
    if (!locked) {
      const std::optional<Holder> holder = ReadHolder(lock->get());
      STEPWELL_ASSIGN_OR_RETURN(const io::FileInfo own, file_system->Stat(store_path));
      others_have_it = lock_copied && holder && !holder->directory.empty() &&
                       holder->directory != DirectoryText(own);
      if (!others_have_it) return OkStatus();
    }
  }
  if (slot_copied) {
    STEPWELL_ASSIGN_OR_RETURN(const auto slots,
                              SlotFile::Open(file_system, store_path, /*write=*/true, nullptr));
    STEPWELL_ASSIGN_OR_RETURN(const bool locked, slots->file()->TryLock(io::LockKind::kExclusive));
    if (!locked && !others_have_it) return OkStatus();
    const Status read = slots->Read().status();
    if (IsDamage(read)) return OkStatus();  // it is made anew from the log
    STEPWELL_RETURN_IF_ERROR(read);
    STEPWELL_RETURN_IF_ERROR(slots->LeaveCopies(file_system, store_path));
  }
  if (!lock_copied) return OkStatus();
  const std::string anew = lock_path + ".new";
  const Status removed = file_system->Remove(anew);
  if (!removed.ok() && removed.code() != StatusCode::kNotFound) return removed;
  STEPWELL_RETURN_IF_ERROR(
      file_system->Open(anew, {.write = true, .create = true, .exclusive = true}).status());
  STEPWELL_RETURN_IF_ERROR(file_system->Rename(anew, lock_path));
  return file_system->SyncDirectory(store_path);
}

Result<std::unique_ptr<io::File>> LockOnce(io::FileSystem* file_system,
                                           const std::string& store_path,
                                           std::chrono::milliseconds timeout) {
  STEPWELL_ASSIGN_OR_RETURN(
      std::unique_ptr<io::File> file,
      file_system->Open(LockFilePath(store_path), {.write = true, .create = true}));
  std::optional<Holder> holder;
  // A holder that has not written its name yet leaves an older text: seen as dead, tried again.
  const auto holder_is_dead = [&]() -> Status {
    holder = ReadHolder(file.get());
    return holder && IsRunning(*holder) ? HeldByRunning(store_path, *holder) : OkStatus();
  };
  STEPWELL_ASSIGN_OR_RETURN(const bool locked, LockWithin(file.get(), io::LockKind::kExclusive,
                                                          timeout, kLockInterval, holder_is_dead));
  if (!locked) return HeldByDead(store_path, holder, timeout);
  return file;
}

}  // namespace

std::string BootId() { return FirstLine("/proc/sys/kernel/random/boot_id"); }

Result<bool> LockWithin(io::File* file, io::LockKind kind, std::chrono::milliseconds timeout,
                        std::chrono::milliseconds interval, const std::function<Status()>& go_on) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    STEPWELL_ASSIGN_OR_RETURN(const bool locked, file->TryLock(kind));
    if (locked) return true;
    if (go_on) STEPWELL_RETURN_IF_ERROR(go_on());
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(interval);
  }
}

Result<std::unique_ptr<io::File>> AcquireLock(io::FileSystem* file_system,
                                              const std::string& store_path,
                                              std::chrono::milliseconds timeout) {
  for (int attempt = 0; attempt < kAcquireAttemptsMax; ++attempt) {
    STEPWELL_RETURN_IF_ERROR(LeaveCopies(file_system, store_path));
    STEPWELL_ASSIGN_OR_RETURN(auto file, LockOnce(file_system, store_path, timeout));
    // Another process may have made the file anew before this one locked it.
    STEPWELL_ASSIGN_OR_RETURN(const bool named, io::IsNamed(file_system, file.get()));
    STEPWELL_ASSIGN_OR_RETURN(const io::FileInfo info, file->Info());
    if (!named || info.link_count > 1) continue;
    // The lock counts, the name in it is for people: a full disk must still open, to be emptied.
    STEPWELL_ASSIGN_OR_RETURN(const io::FileInfo directory, file_system->Stat(store_path));
    const Status written = WriteHolder(file.get(), DirectoryText(directory));
    if (!written.ok() && written.code() != StatusCode::kResourceExhausted) return written;
    return file;
  }
  return UnavailableError(
      StrCat(store_path,
             ": LOCK has another name (it was copied by links, or is being replaced) "
             "and cannot be made anew"));
}

Status WriteContact(io::File* lock_file, const LockContact& contact) {
  const std::optional<Holder> self = ReadHolder(lock_file);
  return WriteHolder(lock_file, self ? self->directory : "",
                     StrCat(" socket=", contact.socket, " ask=", contact.request_key,
                            " answer=", contact.reply_key));
}

Result<LockContact> ReadContact(io::FileSystem* file_system, const std::string& store_path) {
  STEPWELL_ASSIGN_OR_RETURN(const auto file, file_system->Open(LockFilePath(store_path), {}));
  const std::optional<Holder> holder = ReadHolder(file.get());
  if (!holder || holder->contact.socket.empty() || holder->contact.request_key.empty() ||
      holder->contact.reply_key.empty()) {
    return NotFoundError(store_path + ": the process that writes takes no requests");
  }
  return holder->contact;
}

std::string DescribeLockHolders(io::File* file) {
  std::string text;
  for (const int pid : LockHolders(file)) {
    text += StrCat(text.empty() ? "" : ", ", "process ", pid, pid == getpid() ? " (this one)" : "",
                   IsStopped(pid) ? ", which is stopped" : "");
  }
  return text.empty() ? "a process that cannot be seen from here" : text;
}

Status LockSlotFile(io::File* slot_file, const std::string& store_path,
                    std::chrono::milliseconds timeout) {
  // A holder that can be seen is not just waiting for its last writes.
  const auto refused = [&] {
    return UnavailableError(
        StrCat(store_path, ": ", DescribeLockHolders(slot_file),
               " has it open for writing; the file LOCK was removed, but a store still "
               "has only one writer"));
  };
  STEPWELL_ASSIGN_OR_RETURN(
      const bool locked,
      LockWithin(slot_file, io::LockKind::kExclusive, timeout, kLockInterval,
                 [&] { return LockHolders(slot_file).empty() ? OkStatus() : refused(); }));
  return locked ? OkStatus() : refused();
}

Status CheckNotForked(int pid) {
  if (getpid() == pid) return OkStatus();
  return FailedPreconditionError(StrCat("the store was opened by process ", pid,
                                        " and cannot be used after fork, in process ", getpid(),
                                        ": open it again there"));
}

}  // namespace stepwell::db
