// SPDX-License-Identifier: Apache-2.0
// A pin file holds its commit as 20 decimal digits and a newline: one length, so one write moves
// it.
#include "db/log/pins.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "db/layout.h"
#include "db/log/lock.h"
#include "io/guard.h"

namespace stepwell::db {
namespace {

constexpr std::chrono::milliseconds kPinInterval{1};
constexpr int kCreateTriesMax = 1000;
constexpr size_t kDigits = 20;
constexpr size_t kPinBytes = kDigits + 1;
// Later than every commit: of a reader that reads nothing at the moment.
constexpr uint64_t kNothing = ~uint64_t{0};

std::string PinText(uint64_t commit) {
  const std::string digits = std::to_string(commit);
  return std::string(kDigits - digits.size(), '0') + digits + "\n";
}

// None for what is not (yet) a commit.
Result<std::optional<uint64_t>> ReadPin(io::File* file) {
  const std::optional<uint64_t> none;
  std::string text(kPinBytes, '\0');
  STEPWELL_ASSIGN_OR_RETURN(const size_t size,
                            file->ReadAt(0, std::as_writable_bytes(std::span(text))));
  if (size != kPinBytes || text.back() != '\n') return none;
  uint64_t commit = 0;
  const char* const end = text.data() + kDigits;
  const auto [stop, error] = std::from_chars(text.data(), end, commit);
  if (error != std::errc() || stop != end) return none;
  return std::optional(commit);
}

// The process that made a pin file (of its own pid namespace), for people.
std::optional<int> PidOfName(std::string_view name) {
  const size_t dash = name.find('-');
  int pid = 0;
  if (dash == std::string_view::npos) return std::nullopt;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + dash + 1, end, pid);
  if (error != std::errc() || stop != end) return std::nullopt;
  return pid;
}

// Adds the pin of one file; that of a reader that is gone is removed instead.
Status AddPin(io::FileSystem* file_system, const std::string& path, ReaderPins* pins) {
  // To write, for an exclusive lock.
  Result<std::unique_ptr<io::File>> file = file_system->Open(path, {.write = true});
  if (file.status().code() == StatusCode::kNotFound) return OkStatus();
  if (file.status().code() == StatusCode::kPermissionDenied) {
    // Another user's. An unlocked one may be in the making: it pins nothing before its first Set,
    // which waits for RECLAIM.
    file = file_system->Open(path, {});
    if (file.status().code() == StatusCode::kNotFound) return OkStatus();
    STEPWELL_RETURN_IF_ERROR(file.status());
    STEPWELL_ASSIGN_OR_RETURN(const bool alive, (*file)->LockedByOther());
    if (!alive) return OkStatus();
  } else {
    STEPWELL_RETURN_IF_ERROR(file.status());
    // Each open file has its own lock, so this also fails for a pin of this very process.
    STEPWELL_ASSIGN_OR_RETURN(const bool dead, (*file)->TryLock(io::LockKind::kExclusive));
    if (dead) {
      // Under the lock: a reader that is just making this file notices, see ReaderPin::Create. Not
      // when another pass was faster: the name may be that of the file it then made.
      STEPWELL_ASSIGN_OR_RETURN(const bool named, io::IsNamed(file_system, file->get()));
      if (named) {
        file_system->Remove(path).IgnoreError("the next pass tries again; it pins nothing");
      }
      return OkStatus();
    }
  }
  STEPWELL_ASSIGN_OR_RETURN(const auto commit, ReadPin(file->get()));
  if (!commit) {
    pins->unknown = true;
  } else if (*commit != kNothing) {
    pins->commits.push_back(*commit);
  }
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<ReclaimLock>> ReclaimLock::Acquire(io::FileSystem* file_system,
                                                          const std::string& store_path,
                                                          io::LockKind kind,
                                                          const std::atomic<bool>* stop,
                                                          std::chrono::milliseconds timeout) {
  STEPWELL_ASSIGN_OR_RETURN(
      std::unique_ptr<io::File> file,
      file_system->Open(ReclaimFilePath(store_path), {.write = true, .create = true}));
  auto lock = std::unique_ptr<ReclaimLock>(new ReclaimLock(std::move(file)));
  CloseInForkedChild(lock.get(), lock->file_->descriptor());
  const auto not_stopped = [stop] {
    const bool stopped = stop != nullptr && stop->load();
    return stopped ? CancelledError("the store is being closed") : OkStatus();
  };
  STEPWELL_ASSIGN_OR_RETURN(
      const bool locked, LockWithin(lock->file_.get(), kind, timeout, kPinInterval, not_stopped));
  if (locked) return lock;
  return UnavailableError(StrCat(lock->file_->path(), ": waited ", timeout.count(), " ms for ",
                                 DescribeLockHolders(lock->file_.get())));
}

ReclaimLock::~ReclaimLock() { ForgetForkDescriptors(this); }

Result<std::unique_ptr<ReaderPin>> ReaderPin::Create(io::FileSystem* file_system,
                                                     const std::string& store_path,
                                                     uint64_t random_id) {
  const std::string directory = ReadersPath(store_path);
  const Status made = file_system->CreateDirectory(directory);
  if (!made.ok() && made.code() != StatusCode::kAlreadyExists) return made;
  char name[48];
  std::snprintf(name, sizeof(name), "%016llx-%d", static_cast<unsigned long long>(random_id),
                static_cast<int>(getpid()));
  const std::string path = StrCat(directory, "/", name);
  for (int tries = 0; tries < kCreateTriesMax; ++tries) {
    STEPWELL_ASSIGN_OR_RETURN(
        std::unique_ptr<io::File> file,
        file_system->Open(path, {.write = true, .create = true, .exclusive = true}));
    // Before it is locked ReadPins may take it for a dead reader's. It removes it under that same
    // lock, so once the lock is here, either the name is gone or it stays.
    STEPWELL_ASSIGN_OR_RETURN(const bool locked, LockWithin(file.get(), io::LockKind::kExclusive,
                                                            ReclaimLock::kTimeout, kPinInterval));
    if (!locked) {
      return UnavailableError(StrCat(path, ": waited for ", DescribeLockHolders(file.get())));
    }
    STEPWELL_ASSIGN_OR_RETURN(const bool named, io::IsNamed(file_system, file.get()));
    if (!named) continue;
    auto pin = std::unique_ptr<ReaderPin>(new ReaderPin(file_system, std::move(file)));
    CloseInForkedChild(pin.get(), pin->file_->descriptor());
    return pin;
  }
  return UnavailableError(StrCat(path, ": a pin that was made went away again, many times"));
}

ReaderPin::~ReaderPin() {
  ForgetForkDescriptors(this);
  io::Quietly([this] {
    const Result<bool> named = io::IsNamed(file_system_, file_.get());
    if (named.ok() && *named) {
      file_system_->Remove(file_->path()).IgnoreError("an unlocked pin is removed by reclaim");
    }
  });
}

Status ReaderPin::Set(uint64_t commit) { return file_->WriteAt(0, AsBytes(PinText(commit))); }

Status ReaderPin::Rest() { return Set(kNothing); }

Result<ReaderPins> ReadPins(io::FileSystem* file_system, const std::string& store_path) {
  const std::string directory = ReadersPath(store_path);
  const Result<std::vector<std::string>> names = file_system->List(directory);
  ReaderPins pins;
  if (names.status().code() == StatusCode::kNotFound) return pins;
  STEPWELL_RETURN_IF_ERROR(names.status());
  for (const std::string& name : *names) {
    STEPWELL_RETURN_IF_ERROR(AddPin(file_system, StrCat(directory, "/", name), &pins));
  }
  std::sort(pins.commits.begin(), pins.commits.end());
  pins.commits.erase(std::unique(pins.commits.begin(), pins.commits.end()), pins.commits.end());
  return pins;
}

std::vector<std::string> DescribeOldPins(io::FileSystem* file_system, const std::string& store_path,
                                         uint64_t tip, int64_t now_ns) {
  std::vector<std::string> texts;
  const std::string directory = ReadersPath(store_path);
  const auto names = file_system->List(directory);
  if (!names.ok()) return texts;
  for (const std::string& name : *names) {
    const auto file = file_system->Open(StrCat(directory, "/", name), {});
    if (!file.ok()) continue;
    const auto alive = (*file)->LockedByOther();
    const auto commit = ReadPin(file->get());
    if (!alive.ok() || !*alive || !commit.ok() || commit->value_or(0) >= tip) continue;
    std::string text = StrCat("readers/", name, ": ");
    text += *commit ? StrCat("commit ", **commit) : "keeps everything (it names no commit)";
    const auto info = (*file)->Info();
    if (info.ok() && info->modified_ns > 0 && now_ns > info->modified_ns) {
      text += StrCat(", for ", (now_ns - info->modified_ns) / 1'000'000'000, " s");
    }
    if (const auto pid = PidOfName(name)) text += StrCat(", process ", *pid);
    texts.push_back(std::move(text));
  }
  return texts;
}

}  // namespace stepwell::db
