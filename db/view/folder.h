// SPDX-License-Identifier: Apache-2.0
// The directory of a view. Only what Stepwell made there is ever changed.
//
//   STEPWELL_VIEW            whose view it is, in words too; locked by the process that serves it.
//                            Not beside the store, whose lock says both
//   <step>/                  a checkpoint; other programs' ones have no stepwell-view
//   <step>/stepwell-view     which commit it is of (mark.h); a reader that holds it (flock, shared)
//                            keeps the directory
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "db/export/export.h"
#include "db/view/mark.h"
#include "io/disk.h"

namespace stepwell::db {

inline constexpr std::string_view kViewMarkName = "STEPWELL_VIEW";

// Trades costs; tests set it.
struct ViewTuning {
  // Less than this of a step in a segment is copied. Measured (DESIGN.md, "The view"): a segment
  // more for each step costs about as much as the copy of so many bytes.
  std::atomic<uint64_t> link_bytes_min{uint64_t{8} << 20};
  std::atomic<bool> may_clone{true};  // false once the file system refused
};
inline ViewTuning view_tuning;

class ViewFolder {
 public:
  // The same as OrbaxView::Open. `checkpoint.file_system` may be null. `before` is
  // ViewHome::before.
  static Result<std::unique_ptr<ViewFolder>> Open(StoreReader& store, const std::string& path,
                                                  const ExportOptions& checkpoint, bool beside,
                                                  const std::string& before);
  ~ViewFolder();
  // kInvalidArgument: options that no view can have.
  static Status CheckOptions(const ExportOptions& checkpoint);
  // kInvalidArgument: no place for a view of `store`. Both paths are canonical.
  static Status CheckPlace(const std::string& path, const std::string& store, bool beside);

  const std::string& path() const { return path_; }
  bool beside() const { return beside_; }
  const std::string& options_text() const { return options_text_; }
  // kNotFound when the path is not what was opened any more. Beside its store a view is found
  // wherever the two are moved.
  Status CheckThere() const;

  // Removes what killed processes left half done; the steps' directories that are there: name to
  // identity.
  Result<std::map<std::string, std::string>> List();
  // Lists all entries, whoever made them.
  Result<std::vector<std::string>> Names() const { return file_system_->List(path_); }
  std::string NameOf(uint64_t step) const;
  // Returns a text that tells a step's directory from any other's, also after the commit number was
  // used again (a power cut), after the store was moved, and, for a store beside its view, after a
  // copy.
  std::string IdentityOf(const StoreSnapshot::Step& step) const;

  // Returns true if the name still has what this view made, or found, there, since people replace
  // steps by copies. Nothing else is removed or replaced.
  bool IsOwn(const std::string& name) const;
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
  ViewFolder(std::string path, std::string store_path, const ExportOptions& checkpoint,
             bool beside);
  Status Reach();
  Status Claim();
  Status ClaimBeside(StoreReader& store);
  void RemoveOldMark() const;
  Status CheckMark(const std::string& text) const;
  std::string MarkText() const;
  bool IsOwnName(std::string_view name) const;
  void RemoveLeft(const std::string& name);
  bool IsFinished(const std::string& name) const;
  std::optional<std::string> FindIdentity(const std::string& name) const;
  ViewMark MarkOf(const StoreSnapshot::Step& step) const;
  // Unlocks by itself: a child that was forked meanwhile shares the lock.
  struct Unlock {
    void operator()(io::File* file) const;
  };
  using LockedFile = std::unique_ptr<io::File, Unlock>;
  // The step's identity file, so locked that no reader gets it; null when a reader has it.
  Result<LockedFile> Hold(const std::string& name) const;
  std::string In(std::string_view name) const { return StrCat(path_, "/", name); }
  std::string TrashOf(std::string_view name) const;
  // Removes what has gone to TrashOf, durably gone from its name first. Best effort.
  void Dispose(const std::string& trash) const;

  // Follows no links below path_.
  std::unique_ptr<io::FileSystem> own_file_system_;  // null: that of the options
  io::FileSystem* file_system_ = nullptr;
  std::shared_ptr<const void> held_;  // beside: the directory, wherever it is moved
  const std::string path_;            // absolute
  const std::string store_path_;      // absolute
  const ExportOptions checkpoint_;
  const bool beside_;
  const std::string options_text_;
  const std::string boot_;
  ViewHome home_;                   // Claim sets it
  io::FileInfo store_directory_;    // beside
  std::unique_ptr<io::File> mark_;  // locked; null beside the store
  bool may_clone_ = true;           // until the file system said no
};

}  // namespace stepwell::db
