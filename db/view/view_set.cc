// SPDX-License-Identifier: Apache-2.0
#include "db/view/view_set.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "db/layout.h"
#include "db/view/mark.h"
#include "db/view/view.h"

namespace stepwell::db {
namespace {

// The view is not wanted any more: its directory is gone, or is something else by now.
bool IsAbandoned(io::FileSystem* file_system, const std::string& path) {
  const auto is_there = [&](const std::string& name) {
    return file_system->Stat(name).status().code() != StatusCode::kNotFound;
  };
  return !is_there(StrCat(path, "/", kViewMarkName)) && is_there(ParentOf(path));
}

}  // namespace

ViewSet::ViewSet() = default;
ViewSet::~ViewSet() = default;

void ViewSet::OpenRemembered(StoreReader* store, io::FileSystem* file_system, const LogSink& log) {
  const io::MutexLock lock(&mutex_);
  file_system_ = file_system;
  store_path_ = store->path();
  log_ = log;
  auto remembered = ReadViews(file_system, store_path_);
  if (!remembered.ok()) {
    Log(log, LogLevel::kWarning,
        StrCat(store_path_, ": its views are not known: ", remembered.status().message()));
    return;
  }
  for (const RememberedView& each : remembered->views) {
    if (!each.beside && IsAbandoned(file_system, each.path)) {
      Log(log, LogLevel::kInfo, StrCat("view ", each.path, " is gone"));
      continue;
    }
    ViewOptions options;
    options.checkpoint = each.checkpoint;
    options.beside = each.beside;
    options.log = log;
    auto view = OrbaxView::Open(*store, each.path, options, remembered->where);
    if (view.ok()) {
      views_.push_back(std::move(*view));
    } else {
      Log(log, LogLevel::kWarning,
          StrCat("view ", each.path, " does not follow: ", view.status().message()));
    }
    remembered_.push_back(each);
  }
  // Writes down the store's present place, too, once the views have seen the former one.
  const auto directory = file_system->Stat(store_path_);
  const bool moved = directory.ok() && WhereBeside(*directory) != remembered->where;
  if (remembered_.size() == remembered->views.size() && (!moved || remembered_.empty())) return;
  Remember(remembered_).IgnoreError("the next open does it");
}

void ViewSet::Start() {
  std::vector<std::shared_ptr<OrbaxView>> views;
  LogSink log;
  {
    const io::MutexLock lock(&mutex_);
    views = views_;
    log = log_;
  }
  // Without the lock: a view that is closed takes this one while it holds its own.
  for (const auto& view : views) {
    const Status started = view->Start();
    if (started.ok()) continue;
    Log(log, LogLevel::kWarning,
        StrCat("view ", view->path(), " does not follow: ", started.message()));
    view->Close(/*keep=*/true).IgnoreError("only after a fork");
  }
}

std::shared_ptr<OrbaxView> ViewSet::Take(const std::string& path, const ExportOptions& checkpoint) {
  std::shared_ptr<OrbaxView> found;
  {
    const io::MutexLock lock(&mutex_);
    const auto is_it = [&path](const auto& view) {
      return view->path() == path && view->Stats().following;
    };
    const auto it = std::find_if(views_.begin(), views_.end(), is_it);
    if (it == views_.end()) return nullptr;
    if ((*it)->options_text() == ViewOptionsText(checkpoint)) return *it;
    found = *it;
  }
  found->Close(/*keep=*/true).IgnoreError("only after a fork");
  return nullptr;
}

Status ViewSet::Add(const std::shared_ptr<OrbaxView>& view, const RememberedView& remembered,
                    const LogSink& log) {
  std::vector<std::shared_ptr<OrbaxView>> gone;  // they end without the lock
  const io::MutexLock lock(&mutex_);
  if (closed_) return FailedPreconditionError("the store is closed");
  const auto left = std::stable_partition(views_.begin(), views_.end(),
                                          [](const auto& each) { return !each->closed(); });
  std::move(left, views_.end(), std::back_inserter(gone));
  views_.erase(left, views_.end());
  views_.push_back(view);
  if (file_system_ == nullptr) return OkStatus();
  auto views = remembered_;
  std::erase_if(views, [&](const auto& each) { return each.path == remembered.path; });
  views.push_back(remembered);
  if (const Status status = Remember(std::move(views)); !status.ok()) {
    Log(log, LogLevel::kWarning,
        StrCat("view ", remembered.path,
               ": the next open of the store will not serve it: ", status.message()));
  }
  return OkStatus();
}

void ViewSet::Forget(const std::string& path) {
  const io::MutexLock lock(&mutex_);
  auto views = remembered_;
  std::erase_if(views, [&](const auto& each) { return each.path == path; });
  if (file_system_ == nullptr || views.size() == remembered_.size()) return;
  Remember(std::move(views)).IgnoreError("the next open finds no view there");
}

Status ViewSet::Remember(std::vector<RememberedView> views) {
  STEPWELL_RETURN_IF_ERROR(WriteViews(file_system_, store_path_, views));
  remembered_ = std::move(views);
  return OkStatus();
}

void ViewSet::Close(bool keep) {
  std::vector<std::shared_ptr<OrbaxView>> views;
  {
    const io::MutexLock lock(&mutex_);
    closed_ = true;
    views = views_;  // they stay in the statistics
  }
  for (const auto& view : views) view->Close(keep).IgnoreError("only after a fork");
}

std::vector<ViewStats> ViewSet::Stats() const {
  const io::MutexLock lock(&mutex_);
  std::vector<ViewStats> stats;
  for (const auto& view : views_) stats.push_back(view->Stats());
  return stats;
}

}  // namespace stepwell::db
