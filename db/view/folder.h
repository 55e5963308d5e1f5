// SPDX-License-Identifier: Apache-2.0
// The directory of a view. Only what Stepwell made there is ever changed.
//
//   STEPWELL_VIEW            whose view it is, in words too; locked by the process that serves it
//   <step>/                  a checkpoint; other programs' ones have no stepwell-view
//   <step>/stepwell-view     which commit it is of; a reader that holds it (flock, shared) keeps
//                            the checkpoint
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "db/export/export.h"
#include "io/disk.h"

namespace stepwell::db {

inline constexpr std::string_view kViewMarkName = "STEPWELL_VIEW";
inline constexpr std::string_view kViewStepName = "stepwell-view";

class ViewFolder {
 public:
  // As OrbaxView::Open. `checkpoint.file_system` may be null.
  static Result<std::unique_ptr<ViewFolder>> Open(StoreReader& store, const std::string& path,
                                                  const ExportOptions& checkpoint, bool beside);
  ~ViewFolder();
  // kInvalidArgument: options that no view can have.
  static Status CheckOptions(const ExportOptions& checkpoint);
  // kInvalidArgument: no place for a view of `store`. Both paths are canonical.
  static Status CheckPlace(const std::string& path, const std::string& store, bool beside);

  const std::string& path() const { return path_; }
  bool beside() const { return beside_; }
  const std::string& options_text() const { return options_text_; }
  // kNotFound when the path is not what was opened any more.
  Status CheckThere() const;

  // Removes what killed processes left half done; the steps' directories that are there: name to
  // identity.
  Result<std::map<std::string, std::string>> List();
  // Of all that is there.
  Result<std::vector<std::string>> Names() const { return file_system_->List(path_); }
  std::string NameOf(uint64_t step) const;
  // What tells a step's directory from any other's, also after the commit number was used again
  // (a power cut), after the store was moved, and, where that is beside, after it was copied.
  std::string IdentityOf(const StoreSnapshot::Step& step) const;

  // These return false where a reader holds what is there under the name, which Remove minds
  // unless `held_too`. Make: with `replace` the old one gives way at the very end. kUnavailable:
  // the step is of another commit by now; kCancelled: `go_on`, which is asked now and then, said
  // no.
  Result<bool> Remove(const std::string& name, bool held_too);
  Result<bool> Make(StoreReader& store, const StoreSnapshot::Step& step, bool replace,
                    const std::function<bool()>& go_on);
  // Another process may serve it; nothing else is called afterwards.
  void Release();
  // The directory is no longer a view.
  void Leave();

 private:
  ViewFolder(io::FileSystem* file_system, std::string path, std::string store_path,
             std::string store_id, const ExportOptions& checkpoint, bool beside);
  Status Claim();
  Status SeeWhere();
  bool IsForeign(const std::string& name, const std::string& identity) const;
  Status CheckMark(const std::string& text) const;
  std::string MarkText() const;
  // Unlocks by itself: a child that was forked meanwhile shares the lock.
  struct Unlock {
    void operator()(io::File* file) const;
  };
  using LockedFile = std::unique_ptr<io::File, Unlock>;
  // The step's identity file, so locked that no reader gets it; null when a reader has it.
  Result<LockedFile> Hold(const std::string& name) const;
  std::string In(std::string_view name) const { return StrCat(path_, "/", name); }
  std::string TrashOf(std::string_view name) const;

  io::FileSystem* const file_system_;
  const std::string path_;        // absolute
  const std::string store_path_;  // absolute
  const std::string store_id_;
  const ExportOptions checkpoint_;
  const bool beside_;
  const std::string options_text_;
  const std::string boot_;
  std::unique_ptr<io::File> mark_;  // locked
  std::string where_;               // of the store, in identities; Claim sets it
};

}  // namespace stepwell::db
