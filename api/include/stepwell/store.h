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
// Errors are values (Status, Result); nothing here throws but std::bad_alloc. Every function is
// thread-safe, but that objects of one's own (requests, options, a Store being moved) are not to be
// changed beside a call. After fork the child can use no store of its parent: every call fails with
// kFailedPrecondition; it opens the directory again, read-only beside the parent.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <stepwell/array.h>
#include <stepwell/dtype.h>
#include <stepwell/export.h>
#include <stepwell/keep.h>
#include <stepwell/log.h>
#include <stepwell/mesh.h>
#include <stepwell/orbax_export.h>
#include <stepwell/path.h>
#include <stepwell/reports.h>
#include <stepwell/result.h>
#include <stepwell/save_handle.h>
#include <stepwell/status.h>

namespace stepwell {

struct OpenOptions {
  bool read_only = false;  // takes no lock, creates nothing, works beside a live writer
  bool create = true;      // with write access: make the store where there is none
  // Only with read_only, for a directory that may have been made to do harm. Nothing is made in it,
  // pins neither: a step that its writer deletes meanwhile is kNotFound.
  bool untrusted = false;
  // A new store is its owner's alone (0700, 0600), and so are exports of it; false: as the umask
  // has it. A store that is there goes on as its STEPWELL file is.
  bool private_files = true;
  // A step stays as long as one rule keeps it or it is pinned; the others are deleted with each
  // commit. None: every step stays.
  std::vector<KeepRule> keep{};
  CodecPolicy codec = CodecPolicy::kAuto;
  uint64_t staging_bytes = 0;  // bound of the memory for saves; 0: min(1 GiB, 1/8 of memory)
  size_t threads = 0;          // that encode and decode; 0: min(4, cores)
  std::chrono::milliseconds lock_timeout{10000};  // waited while a killed writer's I/O drains
  uint64_t reclaim_bytes_per_second = uint64_t{128} << 20;  // moved by reclaim, at most
  // A file for the save pipeline's spans in Chrome's trace format, made at Open and written at
  // Close (the newest 262,144 spans); "": none. Not for read-only stores.
  std::string trace_path{};
  LogSink log{};  // silent when empty
};

// ---- saving -------------------------------------------------------------------------------------

// One step to be saved: leaves in one or more items.
class STEPWELL_API SaveRequest {
 public:
  explicit SaveRequest(uint64_t step_number) : step(step_number) {}

  // Adds a leaf. Components of a text path become mapping keys; containers (dict for keys, list for
  // indices, an object for attributes) come from the paths. Without Path::In the item is "state".
  // Mistakes are reported by Save, with the leaf's path: a bad path, two leaves at one place, a
  // leaf below another.
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

// ---- reading ------------------------------------------------------------------------------------

struct ItemInfo {
  std::string name;
  uint64_t leaves = 0;
  uint64_t logical_bytes = 0;  // decoded
  uint64_t stored_bytes = 0;   // on disk, compressed
};

struct StepInfo {
  uint64_t step = 0;
  std::chrono::system_clock::time_point time;  // of the commit
  bool pinned = false;
  std::vector<ItemInfo> items;
  uint64_t leaves = 0;
  uint64_t chunks = 0;
  uint64_t logical_bytes = 0;
  uint64_t stored_bytes = 0;
  // Of Step::info only; Store::Steps leaves them empty, because each would be a read from disk.
  std::string metadata_json;
  std::string metrics_json;
};

enum class LeafType { kArray, kNone, kBool, kInt, kFloat, kComplex, kStr, kBytes };

struct LeafInfo {
  Path path;  // exact: item and components
  LeafType type = LeafType::kArray;
  DType dtype = DType::kInvalid;  // kArray, as all below
  std::vector<uint64_t> shape;
  std::vector<uint64_t> chunk_shape;  // a slice reads whole chunks
  uint64_t logical_bytes = 0;
  uint64_t stored_bytes = 0;
};

// An array, or a slice of it, into the caller's memory.
struct ReadRequest {
  Path path{};
  DType dtype = DType::kInvalid;  // what `out` holds; not checked when kInvalid
  Slice slice{};
  void* out = nullptr;                   // the slice's first element
  size_t out_bytes = 0;                  // memory from `out` on; nothing is written behind it
  std::vector<int64_t> strides_bytes{};  // of `out`, not negative; {}: C order of the slice
};

// Where memory is: the host's, or a GPU's as cudaMalloc gives it.
enum class MemoryKind { kHost, kCuda };

// A device's slice of an array, in C order, into the caller's memory.
struct ShardMemory {
  uint64_t device = 0;  // of the plan's mesh
  Path path{};
  DType dtype = DType::kInvalid;  // what `out` holds; not checked when kInvalid
  void* out = nullptr;
  size_t out_bytes = 0;
  // kCuda: compiled when the library is configured with STEPWELL_CUDA, and not yet run on a GPU.
  MemoryKind memory = MemoryKind::kHost;
};

// A committed step, as it was when it was opened: deleting or replacing it does not disturb this,
// but its space is given back only afterwards. Copies share. When its store is closed, everything
// but info() fails with kFailedPrecondition.
//
// Every read verifies the checksums of what it reads: kDataLoss names file and offset. A path that
// is not there is kNotFound, with the nearest; one that several leaves are spelled like is
// kInvalidArgument: give components.
class STEPWELL_API Step {
 public:
  const StepInfo& info() const;

  // The leaves at or below `path`, in key order. Reads no array data.
  Result<std::vector<LeafInfo>> Leaves(const Path& path = {}) const;
  // The one leaf at `path`; kInvalidArgument when there is a subtree.
  Result<LeafInfo> Leaf(const Path& path) const;

  // All requests in one go, each chunk read once, straight into the caller's memory where it can
  // be. On error the contents of `out` are undefined.
  Result<LoadStats> Read(std::span<const ReadRequest> requests) const;

  // What loading onto a mesh takes; no chunk is read. The first rule that takes an array counts,
  // and an array that none takes is replicated. kNotFound for a rule that takes nothing;
  // kInvalidArgument, naming the leaf, for a spec that does not fit mesh or array.
  Result<LoadPlan> PlanLoad(const Mesh& mesh, const std::vector<SpecRule>& rules = {}) const;
  // Fills the slices of a plan that are asked for, any of them: each chunk is read and decoded
  // once, however many devices want it (once for the host's memory and once for GPUs'). Otherwise
  // as above. kUnimplemented: memory of a GPU, and a library that was configured without CUDA.
  Result<LoadStats> ReadShards(const LoadPlan& plan, std::span<const ShardMemory> shards) const;

  // Into new memory. kInvalidArgument: not an array, a slice beyond its shape, another dtype than
  // T.
  Result<Array> ReadArray(const Path& path, const Slice& slice = {}) const;
  template <typename T>
  Result<std::vector<T>> ReadVector(const Path& path, const Slice& slice = {}) const {
    static_assert(!std::is_same_v<T, bool>, "std::vector<bool> has no memory to read into");
    STEPWELL_ASSIGN_OR_RETURN(const uint64_t count, ElementCount(path, slice));
    std::vector<T> elements(count);
    const ReadRequest request{.path = path,
                              .dtype = DTypeOf<T>(),
                              .slice = slice,
                              .out = elements.data(),
                              .out_bytes = elements.size() * sizeof(T)};
    STEPWELL_RETURN_IF_ERROR(Read({&request, 1}).status());
    return elements;
  }
  Result<Value> ReadValue(const Path& path) const;

  // Everything at or below `path`, in key order, into new memory.
  struct LoadedLeaf {
    LeafInfo info;
    std::variant<Array, Value> data;
  };
  Result<std::vector<LoadedLeaf>> Load(const Path& path = {}) const;

 private:
  friend class Store;
  struct Impl;
  explicit Step(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  Result<uint64_t> ElementCount(const Path& path, const Slice& slice) const;
  Result<std::string> KeyOf(const Path& path) const;

  std::shared_ptr<Impl> impl_;
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
  // Close(), dropping its error: whoever wants that calls Close.
  ~Store();

  // Returns when the request's memory may be changed again (held arrays: see ArrayView); the rest
  // goes on in the background and the handle tells. Mistakes in the request and kAlreadyExists come
  // from here, before any I/O. Waits while the staging memory is full or three saves are in flight.
  Result<SaveHandle> Save(SaveRequest request);
  // Waits for every save so far. The first error that neither a handle nor this has told.
  Status Wait();

  // Committed steps, ascending; a read-only store looks for new ones each time. Of a step of
  // several processes chunks and stored bytes are those of process 0's part; Step::info() has all.
  Result<std::vector<StepInfo>> Steps();
  // kNotFound names the nearest steps. Of a read-only store that cannot write into the store's
  // readers/ directory, the step's reads fail with kNotFound, too, once it was deleted and erased.
  Result<Step> Read(uint64_t step);
  Result<Step> ReadLatest();

  // Durable when they return. kNotFound, and nothing changed, when one is not there. These, pins
  // and the handles of saves: kOutcomeUnknown when the disk failed while the change was committed;
  // opening the store again decides. After any other error it was not done.
  Status Delete(const std::vector<uint64_t>& steps);
  // kInvalidArgument when no item would be left: delete the step instead.
  Status DeleteItems(uint64_t step, const std::vector<std::string>& items);
  // Pinned steps are kept whatever the rules say; deleting or replacing them fails with
  // kFailedPrecondition.
  Status SetPinned(const std::vector<uint64_t>& steps, bool pinned);

  // Makes a step, or the subtree or leaf at `path`, a directory that Orbax and TensorStore read as
  // their own. It must not exist (kV0: the step's directory in it), it is there whole or not at
  // all, and it does not change when the store goes on; using, adding to or deleting it does the
  // store no harm. kInvalidArgument: what Orbax cannot hold, all of it listed with paths and
  // reasons (see OnUnsupported), nothing at `path`, a destination without a parent.
  // kAlreadyExists. kUnavailable: another export to there. kFailedPrecondition: the mode is not
  // possible there.
  Result<ExportReport> Export(uint64_t step, const std::string& destination,
                              const ExportOptions& options = {}, const Path& path = {});

  // Gives back all space that can be given back now, and waits for it; it goes on by itself, too.
  Result<ReclaimReport> Reclaim();
  // Reads every chunk and checks its checksum. OK with problems in the report: damage was found,
  // or something could not be read (VerifyProblem::unchecked).
  Result<VerifyReport> Verify(const VerifyOptions& options = {});
  Result<StoreStats> Stats();
  // What Open found.
  Result<RecoveryReport> Recovery();

  // Waits for saves, marks the store clean, gives the lock back. Idempotent; every later call fails
  // with kFailedPrecondition. The first error not told yet.
  Status Close();

 private:
  friend class Step;
  struct Core;
  explicit Store(std::shared_ptr<Core> core);

  std::shared_ptr<Core> core_;
};

}  // namespace stepwell
