// SPDX-License-Identifier: Apache-2.0
// Stepwell: a store of training steps in a directory, for one writer and many readers.
//
//   auto store = stepwell::Store::Open("run1");
//   stepwell::SaveRequest request(/*step=*/7);
//   request.Put("params/kernel", stepwell::ArrayView::Of(weights.data(), {256, 256}));
//   auto handle = store->Save(std::move(request));  // returns at once, goes on in the background
//   stepwell::Status saved = handle->Wait();        // OK: durable and visible
//   auto kernel = store->Read(7)->ReadVector<float>("params/kernel");
//
// Errors are values (Status, Result); the only exception is std::bad_alloc. Every function is
// thread-safe, but do not change an object that you pass in (requests, options), or move a Store,
// during a call. After fork the child can use no store of its parent: every call fails with
// kFailedPrecondition; it opens the directory again, read-only beside the parent.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <stepwell/archive_export.h>
#include <stepwell/array.h>
#include <stepwell/export.h>
#include <stepwell/import.h>
#include <stepwell/open_options.h>
#include <stepwell/orbax_export.h>
#include <stepwell/path.h>
#include <stepwell/reports.h>
#include <stepwell/result.h>
#include <stepwell/save_handle.h>
#include <stepwell/status.h>
#include <stepwell/step.h>
#include <stepwell/view.h>

namespace stepwell {

// ---- saving -------------------------------------------------------------------------------------

// One step to be saved: leaves in one or more items.
class STEPWELL_API SaveRequest {
 public:
  explicit SaveRequest(uint64_t step_number) : step(step_number) {}

  // Adds a leaf. Components of a text path become mapping keys; containers (dict for keys, list for
  // indices, an object for attributes or a mixture) come from the paths. Without Path::In the item
  // is "state". Mistakes are reported by Save, with the leaf's path: a bad path, two leaves at one
  // place, a leaf below another.
  void Put(Path path, ArrayView array) { leaves_.push_back({std::move(path), std::move(array)}); }
  void Put(Path path, Value value) { leaves_.push_back({std::move(path), std::move(value)}); }

  uint64_t step;              // 0 … 2^63 − 1, saved in any order
  std::string metadata_json;  // any JSON, for people; "": none
  std::string metrics_json;   // a JSON object of numbers, for KeepRule::kBest; "": none
  // kReplace: the old step stays until the new one is committed. kSkip: a step that is there is
  // kept and the handle says skipped().
  IfExists if_exists = IfExists::kError;

 private:
  friend class Store;
  struct Leaf {
    Path path;
    std::variant<ArrayView, Value> data;
  };
  std::vector<Leaf> leaves_;
};

// ---- the store ----------------------------------------------------------------------------------

class STEPWELL_API Store {
 public:
  // kUnavailable: another process writes (the message names it). kNotFound: there is none, and none
  // was to be created. kUnimplemented: not a store, or of a newer version. kDataLoss: damage that a
  // rebuild from the log cannot get past.
  static Result<Store> Open(const std::string& path, const OpenOptions& options = {});

  Store(Store&& other) noexcept;
  Store& operator=(Store&& other) noexcept;
  // Calls Close() and drops its error; call Close to see it.
  ~Store();

  const std::string& path() const;  // as given to Open

  // Returns when the request's memory may be changed again (held arrays: see ArrayView); the rest
  // goes on in the background and the handle tells. Mistakes in the request and kAlreadyExists come
  // from here, before any I/O. Waits while the staging memory is full or three saves are in flight.
  Result<SaveHandle> Save(SaveRequest request);
  // Waits for every save so far. Returns the first error not reported yet.
  Status Wait();

  // Committed steps, ascending; a read-only store looks for new ones each time. For a step that
  // several processes saved, chunks and stored bytes are process 0's; Step::info() has all.
  Result<std::vector<StepInfo>> Steps();
  // The `last` highest of them, with their metadata and metrics (of a damaged step none).
  Result<std::vector<StepInfo>> StepsWithTexts(size_t last);
  // kNotFound names the nearest steps. Of a read-only store that cannot write into the store's
  // readers/ directory, the step's reads fail with kNotFound, too, once it was deleted and erased.
  Result<Step> Read(uint64_t step);
  // The highest step that is not tainted. kNotFound: there is none.
  Result<Step> ReadLatest();

  // Durable when they return. kNotFound, and nothing changed, when one is not there. These, pins,
  // taints and the handles of saves: kOutcomeUnknown when the disk failed while the change was
  // committed; opening the store again decides. After any other error it was not done.
  Status Delete(const std::vector<uint64_t>& steps);
  // kInvalidArgument when no item would be left: delete the step instead.
  Status DeleteItems(uint64_t step, const std::vector<std::string>& items);
  // Pinned steps are kept whatever the rules say; deleting or replacing them fails with
  // kFailedPrecondition.
  Status SetPinned(const std::vector<uint64_t>& steps, bool pinned);
  // Taints steps: they are not to be resumed from, because of `why`, 1 to 1024 bytes of UTF-8. So
  // ReadLatest passes them over, and retention keeps an untainted step. Read reads them as any
  // other. A new taint takes the place of the old one; "" takes it away, and so does replacing.
  Status SetTaint(const std::vector<uint64_t>& steps, const std::string& why);

  // Makes step `to` the newest: deletes all steps above it, in one commit; or taints them, unless
  // `taint` is empty, also those that were tainted before. Returns them. Wait() before for saves
  // under way. kNotFound: `to` is not there; kInvalidArgument: it is tainted; otherwise as Delete
  // and SetTaint.
  Result<std::vector<uint64_t>> RollBack(uint64_t to, const std::string& taint = {});

  // Writes a step, or the subtree or leaf at `path`, as a directory that Orbax and TensorStore read
  // as their own. It must not exist (kV0: the step's directory in it), it is there whole or not at
  // all, and it does not change when the store goes on; using, adding to or deleting it does the
  // store no harm. kInvalidArgument: what Orbax cannot hold, all of it listed with paths and
  // reasons (see OnUnsupported), nothing at `path`, a destination without a parent.
  // kAlreadyExists. kUnavailable: another export to there. kFailedPrecondition: the mode is not
  // possible there.
  Result<ExportReport> Export(uint64_t step, const std::string& destination,
                              const ExportOptions& options = {}, const Path& path = {});

  // The same as one file of arrays by name, which is written beside `destination` and renamed.
  // Names are paths below `path`, joined by "/". A .safetensors file has the step's metadata, one
  // string a key, "stepwell.step" and "stepwell.metrics". Errors as above.
  Result<ExportReport> ExportArchive(uint64_t step, const std::string& destination,
                                     const ArchiveOptions& options = {}, const Path& path = {});
  // Lets the store's steps appear below `directory`, which must be absent, empty, or an earlier
  // view of this store. kFailedPrecondition: the directory has other files, or is another store's
  // view. kUnavailable: it is served already. kInvalidArgument: options, or a place in the store.
  Result<std::shared_ptr<View>> OpenView(const std::string& directory,
                                         const ViewOptions& options = {});

  // Saves the Orbax checkpoint at `checkpoint`, a step's or an item's directory (<checkpoint.h>
  // finds them), bit for bit. Returns when it is read; the rest goes on as with Save. What is read
  // is checked as far as its format allows. kDataLoss: what is missing, cut off or does not decode;
  // kUnimplemented: a format that Stepwell does not read; kInvalidArgument: not a checkpoint, or
  // an unfinished one.
  Result<SaveHandle> Import(const std::string& checkpoint, uint64_t step,
                            const ImportOptions& options = {});
  // Reads the checkpoint a second time, and compares it with the step that it became. kDataLoss:
  // what differs. Of checkpoints that Orbax wrote, which have no checksums, nothing else can tell.
  Status VerifyImport(const std::string& checkpoint, uint64_t step,
                      const ImportOptions& options = {});

  // Gives back all space that can be given back now, and waits for it; it goes on by itself, too.
  Result<ReclaimReport> Reclaim();
  // Reads every chunk and checks its checksum. OK with problems in the report: damage was found,
  // or something could not be read (VerifyProblem::unchecked). Of a store that is open for writing
  // it records which steps it found whole, and which damaged (KeepRule::LastVerified), in one
  // commit; saves under way come before that.
  Result<VerifyReport> Verify(const VerifyOptions& options = {});
  // Rewrites the frames of steps whose first copy is damaged. With `accept_losses`, ends the losses
  // that Open found: what is live then counts as it is.
  Result<RepairReport> Repair(bool accept_losses = false);
  Result<StoreStats> Stats();
  // Which rules keep each step, and which steps the next save deletes: by OpenOptions::keep, or
  // without any, in a store open for reading, by the rules of the last process that saved.
  Result<RetentionReport> Retention();
  // Returns for each of these steps, or for all if none is named, the bytes that deleting it alone
  // would free: those of the chunks that no other step has. kNotFound: one is not there. No value:
  // the records of the step, or of one that has chunks in the same segments, cannot be read. Reads
  // the records of these steps, and no arrays. For a step that several processes saved, process 0's
  // chunks.
  Result<std::map<uint64_t, std::optional<uint64_t>>> FreesBytes(
      const std::vector<uint64_t>& steps = {});
  // Returns the report of Open.
  Result<RecoveryReport> Recovery();

  // Waits for saves, marks the store clean, gives the lock back. Idempotent; every later call fails
  // with kFailedPrecondition. Returns the first error not reported yet.
  Status Close();

 private:
  friend class Step;
  struct Core;
  explicit Store(std::shared_ptr<Core> core);
  Result<std::string> SubtreeKey(uint64_t step, const Path& path);

  std::shared_ptr<Core> core_;
};

}  // namespace stepwell
