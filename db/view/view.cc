// SPDX-License-Identifier: Apache-2.0
#include "db/view/view.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "db/log/lock.h"
#include "db/view/options.h"
#include "db/view/view_set.h"
#include "format/orbax/orbax_files.h"
#include "io/guard.h"
#include "io/thread.h"

namespace stepwell::db {
namespace {

using std::chrono::milliseconds;

// Between two looks at whether a reader still holds what is dead.
constexpr milliseconds kHeldInterval{100};
// Bounds how often in a row a step may vanish before its directory is made.
constexpr int kVanishedMax = 20;
// Bounds how often the last look is repeated because of them. A writer elsewhere may go on for
// ever.
constexpr int kLastPassesMax = 3;
// Between tries after errors: doubled from the first to the last.
constexpr milliseconds kRetryInterval{500};
constexpr int kRetryDoublings = 7;
constexpr milliseconds kRetryMaxReading{5000};  // for stores that are polled
constexpr milliseconds kAskInterval{100};
constexpr milliseconds kWaitMax = std::chrono::hours(24 * 365);  // a sum with now overflows later
constexpr int kMakeTimePerScan = 4;

}  // namespace

OrbaxView::OrbaxView(StoreReader& store, const ViewOptions& options,
                     std::unique_ptr<ViewFolder> folder)
    : store_(&store), options_(options), pid_(getpid()), folder_(std::move(folder)) {
  counts_.path = folder_->path();
  stats_ = counts_;
}

Result<std::shared_ptr<OrbaxView>> OrbaxView::Open(StoreReader& store, const std::string& path,
                                                   const ViewOptions& options,
                                                   const std::string& before) {
  STEPWELL_ASSIGN_OR_RETURN(
      auto folder, ViewFolder::Open(store, path, options.checkpoint, options.beside, before));
  std::shared_ptr<OrbaxView> view(new OrbaxView(store, options, std::move(folder)));
  STEPWELL_RETURN_IF_ERROR(view->Begin());
  return view;
}

// Removes, or takes over, what an earlier session left.
Status OrbaxView::Begin() {
  STEPWELL_ASSIGN_OR_RETURN(snapshot_, store_->Snapshot());
  STEPWELL_ASSIGN_OR_RETURN(const auto there, folder_->List());
  for (const auto& [name, identity] : there) shown_[name] = {identity};
  Wanted wanted = WantedOf(*snapshot_);
  // A held directory is removed, too, because a power cut may have left it.
  std::erase_if(wanted, [this](const auto& each) { return !IsShown(each.first, each.second); });
  RemoveDead(wanted, /*held_too=*/true);
  Publish();
  return OkStatus();
}

}  // namespace stepwell::db

stepwell::View::~View() = default;

namespace stepwell::db {

OrbaxView::~OrbaxView() {
  if (getpid() == pid_) {
    Close(/*keep=*/true).IgnoreError("call Close for the error");
    return;
  }
  // A forked child: the thread is not here, and what this holds is the parent's.
  (void)thread_.release();
  (void)folder_.release();
  (void)new auto(std::move(snapshot_));
  (void)new auto(std::move(shown_));
}

Status OrbaxView::Start() {
  const io::MutexLock close(&close_mutex_);
  if (closed()) return OkStatus();
  thread_ = std::make_unique<std::thread>();
  auto started = io::StartThread("stepwell-view", [this] { Run(); });
  if (!started.ok()) thread_.reset();
  STEPWELL_ASSIGN_OR_RETURN(std::thread thread, std::move(started));
  *thread_ = std::move(thread);
  store_->OnChange(this, [this] { Changed(); });
  return OkStatus();
}

void OrbaxView::Changed() {
  const io::MutexLock lock(&mutex_);
  ++asked_;
  changed_.NotifyAll();
}

Result<bool> OrbaxView::WaitUntilCurrent(milliseconds timeout,
                                         const std::function<bool()>& keep_waiting) {
  STEPWELL_RETURN_IF_ERROR(CheckNotForked(pid_));
  const auto end = Clock::now() + std::min(timeout, kWaitMax);
  const io::MutexLock lock(&mutex_);
  const uint64_t wanted = ++asked_;
  changed_.NotifyAll();
  while (done_ < wanted && !closed_) {
    const auto until = keep_waiting ? std::min(end, Clock::now() + kAskInterval) : end;
    while (done_ < wanted && !closed_ && changed_.WaitUntil(&mutex_, until)) {
    }
    if (done_ >= wanted || closed_) break;
    if (Clock::now() >= end) return false;
    const io::MutexUnlock unlocked(&mutex_);
    if (!keep_waiting()) return false;
  }
  if (done_ >= wanted) return true;
  return FailedPreconditionError(StrCat(path(), ": the view is closed"));
}

Status OrbaxView::Close(bool keep) {
  STEPWELL_RETURN_IF_ERROR(CheckNotForked(pid_));
  const io::MutexLock close(&close_mutex_);
  if (closed()) return OkStatus();
  store_->OnChange(this, nullptr);
  if (!keep) StopMaking();
  {
    const io::MutexLock lock(&mutex_);
    stop_ = true;
    changed_.NotifyAll();
  }
  if (thread_ != nullptr) thread_->join();
  thread_.reset();
  if (!keep) {
    RemoveAll();
    store_->views().Forget(path());
  }
  counts_.following = false;
  Publish();
  shown_.clear();
  snapshot_.reset();
  folder_->Release();
  const io::MutexLock lock(&mutex_);
  closed_ = true;
  changed_.NotifyAll();
  return OkStatus();
}

bool OrbaxView::closed() const {
  const io::MutexLock lock(&mutex_);
  return closed_;
}

std::string OrbaxView::PathOf(uint64_t step) const {
  return StrCat(path(), "/", folder_->NameOf(step));
}

ViewStats OrbaxView::Stats() const {
  const io::MutexLock lock(&mutex_);
  return stats_;
}

void OrbaxView::Run() {
  const io::MutexLock lock(&mutex_);
  for (int last_passes = 0;;) {
    const uint64_t asked = asked_;
    if (stop_) ++last_passes;
    Outcome outcome = Outcome::kRetry;
    {
      const io::MutexUnlock unlocked(&mutex_);
      const Status passed = io::Guarded("show what was committed", [&] {
        outcome = Pass(asked);
        return OkStatus();
      });
      if (!passed.ok()) Failed(passed);
      retries_ = outcome == Outcome::kRetry ? std::min(retries_ + 1, kRetryDoublings) : 0;
      Publish();
    }
    if (outcome == Outcome::kAgain && last_passes < kLastPassesMax) continue;
    done_ = asked;
    changed_.NotifyAll();
    if (last_passes > 0) return;
    WaitForWork(asked, outcome);
  }
}

void OrbaxView::WaitForWork(uint64_t asked, Outcome outcome) {
  milliseconds wait = milliseconds::max();
  if (Polls()) wait = options_.poll;
  if (counts_.held > 0) wait = std::min(wait, kHeldInterval);
  if (outcome == Outcome::kRetry) {
    const milliseconds retry = kRetryInterval * (1 << retries_);
    wait = Polls() ? std::min(retry, kRetryMaxReading) : std::min(wait, retry);
  }
  if (lost_) wait = milliseconds::max();
  const bool for_ever = wait == milliseconds::max();
  const auto end = for_ever ? Clock::time_point::max() : Clock::now() + wait;
  while (asked_ <= asked && !stop_) {
    if (for_ever) {
      changed_.Wait(&mutex_);
    } else if (!changed_.WaitUntil(&mutex_, end)) {
      return;
    }
  }
}

bool OrbaxView::AskedSince(uint64_t asked) const {
  const io::MutexLock lock(&mutex_);
  return asked_ > asked;
}

// Returns true where nothing announces changes: in stores of other processes.
bool OrbaxView::Polls() const {
  if (store_->read_only()) return true;
  return snapshot_ != nullptr &&
         std::any_of(snapshot_->steps.begin(), snapshot_->steps.end(),
                     [](const StoreSnapshot::Step& step) { return step.group.has_value(); });
}

bool OrbaxView::IsShown(const std::string& name, const StoreSnapshot::Step& step) const {
  const auto it = shown_.find(name);
  return it != shown_.end() && it->second.identity == folder_->IdentityOf(step);
}

bool OrbaxView::IsRefused(const std::string& name, const StoreSnapshot::Step& step) const {
  const auto it = refused_.find(name);
  return it != refused_.end() && it->second.identity == folder_->IdentityOf(step);
}

bool OrbaxView::IsGone(const std::string& name, const StoreSnapshot::Step& step) const {
  const auto it = gone_.find(name);
  return it != gone_.end() && it->second == folder_->IdentityOf(step);
}

OrbaxView::Wanted OrbaxView::WantedOf(const StoreSnapshot& snapshot) const {
  Wanted wanted;
  for (const StoreSnapshot::Step& step : snapshot.steps) {
    wanted.emplace(folder_->NameOf(step.step), step);
  }
  return wanted;
}

// Removes directories of dead steps first, so that their segments have no other name when reclaim
// looks at them. Until then `snapshot_` keeps reclaim away. The new snapshot holds the live steps
// before the old one is dropped.
OrbaxView::Outcome OrbaxView::Pass(uint64_t asked) {
  if (lost_) return Outcome::kDone;
  const auto begun = Clock::now();
  if (const Status there = folder_->CheckThere(); !there.ok()) {
    Failed(there);
    if (there.code() != StatusCode::kNotFound) return Outcome::kRetry;
    lost_ = true;
    shown_.clear();
    snapshot_.reset();
    return Outcome::kDone;
  }
  if (const Status looked = FindRemoved(); !looked.ok()) {
    Failed(looked);
    return Outcome::kRetry;
  }
  auto next = store_->Snapshot();
  if (!next.ok()) {
    Failed(next.status().WithContext("looking for steps"));
    return Outcome::kRetry;
  }
  const Wanted wanted = WantedOf(**next);
  std::erase_if(refused_, [&](const auto& each) { return !wanted.contains(each.first); });
  std::erase_if(gone_, [&](const auto& each) { return !wanted.contains(each.first); });
  bool good = RemoveDead(wanted, /*held_too=*/false);
  good = ReplaceMoved(wanted) && good;
  snapshot_ = std::move(*next);
  const Outcome made = MakeMissing(wanted, asked, Clock::now() - begun);
  if (made == Outcome::kDone && !good) return Outcome::kRetry;
  if (made == Outcome::kDone) last_logged_.clear();
  return made;
}

// Directories that other programs removed are not shown any more. A step comes back only when it is
// saved or moved. A step whose name they took comes back when they release the name.
Status OrbaxView::FindRemoved() {
  STEPWELL_ASSIGN_OR_RETURN(const auto names, folder_->Names());  // sorted
  const auto is_there = [&names](const std::string& name) {
    return std::binary_search(names.begin(), names.end(), name);
  };
  for (auto it = shown_.begin(); it != shown_.end();) {
    if (is_there(it->first)) {
      ++it;
      continue;
    }
    gone_[it->first] = it->second.identity;
    it = shown_.erase(it);
  }
  std::erase_if(refused_, [&](const auto& each) {
    return each.second.is_taken && !is_there(each.first) &&
           !is_there(StrCat(each.first, format::orbax::kTemporaryMark));
  });
  return OkStatus();
}

// False when an error kept something from going. It is tried again, but its space is given back all
// the same: a view's directory that cannot be written must not fill the store's disk.
bool OrbaxView::RemoveDead(const Wanted& wanted, bool held_too) {
  bool good = true;
  for (auto it = shown_.begin(); it != shown_.end();) {
    if (wanted.contains(it->first)) {
      ++it;
      continue;
    }
    const auto removed = folder_->Remove(it->first, held_too);
    if (removed.ok() && *removed) {
      ++counts_.removed;
      it = shown_.erase(it);
      continue;
    }
    it->second.held = removed.ok();
    if (!removed.ok()) {
      Failed(removed.status().WithContext("removing what was deleted"));
      good = false;
    }
    ++it;
  }
  return good;
}

// Steps whose chunks reclaim has moved, or that were replaced or changed: the new directory takes
// the place of the old one.
bool OrbaxView::ReplaceMoved(const Wanted& wanted) {
  bool good = true;
  for (const auto& [name, step] : wanted) {
    const auto it = shown_.find(name);
    if (it == shown_.end() || IsShown(name, step)) continue;
    if (!folder_->IsOwn(name)) {
      shown_.erase(it);
      continue;
    }
    it->second.held = false;
    if (Make(name, step, /*replace=*/true) == Outcome::kRetry) good = false;
    if (IsShown(name, step) || it->second.held) continue;
    // The directory of a dead step goes, with or without a successor.
    const auto removed = folder_->Remove(name, /*held_too=*/false);
    if (removed.ok() && *removed) {
      ++counts_.removed;
      shown_.erase(it);
    } else if (removed.ok()) {
      it->second.held = true;
    } else {
      Failed(removed.status().WithContext("removing what was replaced"));
      good = false;
    }
  }
  return good;
}

// Looking again is for newer steps. It comes after steps were made for longer than looking took,
// which grows with what is there: so it has an end, and takes a small part of the time.
OrbaxView::Outcome OrbaxView::MakeMissing(const Wanted& wanted, uint64_t asked,
                                          Clock::duration looked) {
  const auto look_again = Clock::now() + kMakeTimePerScan * looked;
  std::vector<std::pair<uint64_t, const std::string*>> missing;
  for (const auto& [name, step] : wanted) {
    if (shown_.contains(name) || IsRefused(name, step) || IsGone(name, step)) continue;
    missing.emplace_back(step.step, &name);
  }
  std::sort(missing.begin(), missing.end());
  Outcome outcome = Outcome::kDone;
  for (auto it = missing.rbegin(); it != missing.rend(); ++it) {  // readers want the newest
    const std::string& name = *it->second;
    const Outcome made = Make(name, wanted.at(name), /*replace=*/false);
    if (made == Outcome::kAgain) return made;
    if (made == Outcome::kRetry) outcome = made;
    const bool is_made = shown_.contains(name);
    if (is_made && std::next(it) != missing.rend() && Clock::now() >= look_again &&
        AskedSince(asked)) {
      return Outcome::kAgain;
    }
  }
  return outcome;
}

OrbaxView::Outcome OrbaxView::Make(const std::string& name, const StoreSnapshot::Step& step,
                                   bool replace) {
  if (!making_ || IsRefused(name, step)) return Outcome::kDone;
  const std::string identity = folder_->IdentityOf(step);
  const auto made = folder_->Make(*store_, step, replace, [this] { return making_.load(); });
  if (made.ok() && *made) {
    ++counts_.made;
    counts_.removed += replace ? 1 : 0;
    shown_[name] = {identity};
    refused_.erase(name);
    gone_.erase(name);
    vanished_ = 0;
    return Outcome::kDone;
  }
  if (made.ok()) {  // held
    shown_.at(name).held = true;
    return Outcome::kDone;
  }
  bool is_refused = false;
  switch (made.status().code()) {
    case StatusCode::kCancelled:  // StopMaking()
      return Outcome::kDone;
    case StatusCode::kUnavailable:
    case StatusCode::kNotFound:  // the step, or the directory: the next pass sees which
      if (!folder_->CheckThere().ok()) return Outcome::kRetry;
      if (++vanished_ < kVanishedMax) return Outcome::kAgain;
      vanished_ = 0;
      break;
    case StatusCode::kInvalidArgument:
    case StatusCode::kUnimplemented:
      if (!folder_->CheckThere().ok()) return Outcome::kRetry;
      refused_[name] = {identity, /*is_taken=*/false};
      is_refused = true;
      break;
    case StatusCode::kAlreadyExists:  // beside other programs' checkpoints that is usual
      if (!folder_->beside() || replace) break;
      refused_[name] = {identity, /*is_taken=*/true};
      is_refused = true;
      break;
    default:
      break;
  }
  Failed(made.status().WithContext(StrCat("step ", step.step, " is not shown")));
  return is_refused ? Outcome::kDone : Outcome::kRetry;
}

void OrbaxView::Failed(const Status& status) {
  ++counts_.errors;
  counts_.last_error = status.message();
  if (last_logged_ == counts_.last_error) return;
  last_logged_ = counts_.last_error;
  Log(options_.log, LogLevel::kWarning, StrCat("view ", path(), ": ", status.message()));
}

void OrbaxView::RemoveAll() {
  if (lost_) return;
  RemoveDead({}, /*held_too=*/false);
  if (shown_.empty()) folder_->Leave();
}

void OrbaxView::Publish() {
  counts_.shown = shown_.size();
  counts_.held = static_cast<uint64_t>(std::count_if(
      shown_.begin(), shown_.end(), [](const auto& each) { return each.second.held; }));
  counts_.not_shown = refused_.size();
  counts_.following = counts_.following && !lost_;
  const io::MutexLock lock(&mutex_);
  stats_ = counts_;
}

Result<std::shared_ptr<OrbaxView>> OpenView(StoreReader& store, const std::string& path,
                                            const ViewOptions& options) {
  STEPWELL_RETURN_IF_ERROR(ViewFolder::CheckOptions(options.checkpoint));
  STEPWELL_ASSIGN_OR_RETURN(const std::string canonical, CanonicalPath(path));
  STEPWELL_ASSIGN_OR_RETURN(const std::string store_path, CanonicalPath(store.path()));
  STEPWELL_RETURN_IF_ERROR(ViewFolder::CheckPlace(canonical, store_path, options.beside));
  if (auto there = store.views().Take(canonical, options.checkpoint); there != nullptr) {
    return there;
  }
  STEPWELL_ASSIGN_OR_RETURN(auto view, OrbaxView::Open(store, path, options));
  const Status added =
      store.views().Add(view, {view->path(), options.beside, options.checkpoint}, options.log);
  if (!added.ok()) return added.WithContext(store.path());
  if (const Status started = view->Start(); !started.ok()) {
    view->Close(/*keep=*/false).IgnoreError("only after a fork");
    return started.WithContext(StrCat("view ", view->path()));
  }
  return view;
}

}  // namespace stepwell::db
