// SPDX-License-Identifier: Apache-2.0
// The views of one store (view.h), which end with it. Those of a store that is open for writing are
// remembered in it, and the next open serves them again. Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "db/store.h"
#include "db/view/options.h"
#include "io/disk.h"
#include "io/log.h"
#include "io/mutex.h"

namespace stepwell::db {

class OrbaxView;

class ViewSet {
 public:
  ViewSet();
  ~ViewSet();

  // For a store that is being opened for writing, before it reclaims anything: takes from the
  // directories what the store does not have. Errors are logged.
  void OpenRemembered(StoreReader* store, io::FileSystem* file_system, const LogSink& log);
  // Lets them follow the store.
  void Start();

  // The one that serves `path` with these options; one with others is closed. Null: none.
  std::shared_ptr<OrbaxView> Take(const std::string& path, const ExportOptions& checkpoint);
  // kFailedPrecondition once it is closed.
  Status Add(const std::shared_ptr<OrbaxView>& view, const RememberedView& remembered,
             const LogSink& log);
  // It is not to be served again.
  void Forget(const std::string& path);
  // Closes all views, as OrbaxView::Close does.
  void Close(bool keep);
  std::vector<ViewStats> Stats() const;

 private:
  Status Remember(std::vector<RememberedView> views) STEPWELL_REQUIRES(mutex_);

  mutable io::Mutex mutex_;
  bool closed_ STEPWELL_GUARDED_BY(mutex_) = false;
  std::vector<std::shared_ptr<OrbaxView>> views_ STEPWELL_GUARDED_BY(mutex_);
  // Null: nothing is remembered.
  io::FileSystem* file_system_ STEPWELL_GUARDED_BY(mutex_) = nullptr;
  std::string store_path_ STEPWELL_GUARDED_BY(mutex_);
  LogSink log_ STEPWELL_GUARDED_BY(mutex_);
  std::vector<RememberedView> remembered_ STEPWELL_GUARDED_BY(mutex_);
};

}  // namespace stepwell::db
