// SPDX-License-Identifier: Apache-2.0
#include "db/view/shown.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>

#include "db/environment.h"
#include "db/layout.h"
#include "db/read/log_view.h"
#include "db/view/mark.h"
#include "db/view/options.h"
#include "io/beneath.h"
#include "io/mutex.h"
#include "io/small_file.h"

namespace stepwell::db {
namespace {

constexpr uint64_t kSlotFileBytesMax = 64 << 10;
constexpr size_t kStoresKnownMax = 16;

struct LiveSave {
  uint64_t commit = 0;
  int64_t time_ns = 0;
};

// A store as it was when its slots were `slots`.
struct KnownStore {
  std::string slots;
  io::FileInfo directory;
  ViewHome home;
  std::map<uint64_t, LiveSave> live;
};

// By path: a process asks about the steps of one root again and again. Never destroyed: threads may
// ask while the process ends.
struct KnownStores {
  io::Mutex mutex;
  std::map<std::string, std::shared_ptr<const KnownStore>> stores STEPWELL_GUARDED_BY(mutex);
};
KnownStores& Known() {
  static auto* const known = new KnownStores;
  return *known;
}

Result<std::shared_ptr<const KnownStore>> ReadStore(io::FileSystem* files,
                                                    const std::string& path) {
  auto store = std::make_shared<KnownStore>();
  STEPWELL_ASSIGN_OR_RETURN(store->directory, files->Stat(path));
  STEPWELL_ASSIGN_OR_RETURN(store->slots,
                            io::ReadSmallFile(files, SlotFilePath(path), kSlotFileBytesMax));
  {
    const io::MutexLock lock(&Known().mutex);
    const auto it = Known().stores.find(path);
    if (it != Known().stores.end() && it->second->slots == store->slots &&
        io::IsSameFile(it->second->directory, store->directory)) {
      return it->second;
    }
  }
  StoreOptions options;
  options.read_only = true;
  options.threads = 1;
  STEPWELL_ASSIGN_OR_RETURN(Environment environment, MakeEnvironment(options));
  environment.own_file_system = io::FileSystemBeneath(path, io::FileModes::kUmask);
  environment.file_system = environment.own_file_system.get();
  environment.without_pins = true;
  STEPWELL_ASSIGN_OR_RETURN(const auto log,
                            LogFollower::Open(path, std::nullopt, std::move(environment), {}));
  STEPWELL_ASSIGN_OR_RETURN(const auto view, log->Refresh());
  store->home = {IdText(log->id()), WhereBeside(store->directory), ""};
  for (const auto& [step, live] : view->log->live) {
    store->live[step] = {live.record.commit, live.record.time_ns};
  }
  if (const auto views = ReadViews(files, path); views.ok() && views->where != store->home.where) {
    store->home.before = views->where;
  }
  const io::MutexLock lock(&Known().mutex);
  if (Known().stores.size() >= kStoresKnownMax) Known().stores.clear();
  Known().stores[path] = store;
  return std::shared_ptr<const KnownStore>(std::move(store));
}

std::optional<ShownStep> Classify(const ViewMark& mark, const std::string& name,
                                  const io::FileInfo& directory, const std::string& store_path,
                                  const KnownStore& store) {
  if (!directory.is_directory || !IsMadeBeside(mark, name, directory, store.home)) {
    return std::nullopt;
  }
  ShownStep shown;
  shown.store_path = store_path;
  shown.step = mark.step;
  shown.commit = mark.commit;
  const auto live = store.live.find(mark.step);
  // A save keeps its time when its chunks are moved, or items of it deleted, under a new commit.
  shown.is_live = live != store.live.end() && live->second.time_ns == mark.time_ns;
  if (shown.is_live) shown.commit = live->second.commit;
  return shown;
}

}  // namespace

Result<std::optional<ShownStep>> FindShownStep(const std::string& path) {
  const std::string given = WithoutTrailingSlashes(path);
  if (given.empty() || IsLink(given)) return std::optional<ShownStep>();
  STEPWELL_ASSIGN_OR_RETURN(const std::string canonical, CanonicalPath(given));
  const std::string root = ParentOf(canonical);
  const std::string name = canonical.substr(canonical.rfind('/') + 1);
  const auto files = io::FileSystemBeneath(root, io::FileModes::kUmask);
  const auto text = ReadMark(files.get(), canonical);
  if (!text.ok()) return std::optional<ShownStep>();
  const auto mark = DecodeMark(*text);
  if (!mark || mark->name != name) return std::optional<ShownStep>();
  // Older marks do not say it.
  const std::string beside = mark->directory.empty() ? std::string(kStoreBesideName) : mark->beside;
  if (!IsStoreBesideName(beside) || beside.find('/') != std::string::npos) {
    return std::optional<ShownStep>();
  }
  const auto directory = files->Stat(canonical);
  if (!directory.ok()) return std::optional<ShownStep>();
  const std::string store_path = StrCat(root == "/" ? "" : root, "/", beside);
  const auto store = ReadStore(files.get(), store_path);
  if (store.status().code() == StatusCode::kNotFound) return std::optional<ShownStep>();
  STEPWELL_RETURN_IF_ERROR(store.status());
  return Classify(*mark, name, *directory, store_path, **store);
}

}  // namespace stepwell::db
