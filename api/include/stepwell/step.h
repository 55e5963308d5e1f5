// SPDX-License-Identifier: Apache-2.0
// A committed step: what is in it, and its arrays and values.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <stepwell/array.h>
#include <stepwell/dtype.h>
#include <stepwell/export.h>
#include <stepwell/mesh.h>
#include <stepwell/path.h>
#include <stepwell/reports.h>
#include <stepwell/result.h>
#include <stepwell/statistics.h>

namespace stepwell {

struct ItemInfo {
  std::string name;
  uint64_t leaves = 0;
  uint64_t logical_bytes = 0;  // decoded
  uint64_t stored_bytes = 0;   // on disk, compressed
  uint64_t nonfinite = 0;      // elements that are NaN or infinite, of leaves with statistics
};

struct StepInfo {
  uint64_t step = 0;
  std::chrono::system_clock::time_point time;  // of the commit
  // From the call of Save until all data was written and the commit began; its flushes follow. 0:
  // the store does not know.
  std::chrono::nanoseconds save_time{0};
  uint64_t commit = 0;  // its number, ascending in the store's history
  bool pinned = false;
  std::string taint;      // why it is not to be resumed from; "": it may be
  bool verified = false;  // the last Store::Verify that was recorded found it whole
  std::vector<ItemInfo> items;
  uint64_t leaves = 0;
  uint64_t chunks = 0;
  uint64_t logical_bytes = 0;
  uint64_t stored_bytes = 0;      // of all its chunks
  uint64_t referenced_bytes = 0;  // of these: chunks that earlier steps wrote; the rest is its own
  // The processes that saved it together, ascending; {}: one process alone.
  std::vector<uint32_t> processes;
  // Only Step::info fills these. Store::Steps leaves them empty, because each would be a read from
  // disk.
  std::string metadata_json;
  std::string metrics_json;

  // Returns the bytes of the chunks that the step wrote itself.
  uint64_t owned_bytes() const { return stored_bytes - referenced_bytes; }
  // Returns the elements that are NaN or infinite, of leaves with statistics.
  uint64_t nonfinite() const {
    uint64_t sum = 0;
    for (const ItemInfo& item : items) sum += item.nonfinite;
    return sum;
  }
  // Returns true if the only item is "state", whose name paths may leave out.
  bool only_state() const { return items.size() == 1 && items.front().name == "state"; }
};

// kNode, a container, appears only in Step::Tree.
enum class LeafType { kArray, kNone, kBool, kInt, kFloat, kComplex, kStr, kBytes, kNode };

struct LeafInfo {
  Path path;  // exact: item and components
  LeafType type = LeafType::kArray;
  DType dtype = DType::kInvalid;        // kArray; kInvalid: one that a newer version wrote
  std::vector<uint64_t> shape{};        // kArray
  std::vector<uint64_t> chunk_shape{};  // kArray: a slice reads whole chunks
  uint64_t logical_bytes = 0;
  uint64_t stored_bytes = 0;

  // Names the type that was saved: for arrays "numpy", "jax", "numpy scalar" or "jax key"; for
  // values "None", "int", ...; for containers "dict", "list", "tuple", "namedtuple", "object", or
  // "node" if the type is unknown.
  std::string kind{};
  // kNode: the name of its type, and how many children it has.
  std::string type_name{};
  uint64_t children = 0;
  // The type of the Flax NNX Variable that held the value; if Variables were nested, all types,
  // outermost first, with blanks between.
  std::string variable_types{};
  std::string codec{};  // "raw", "blosc-lz4", "lz4", "delta"; "mixed"
  uint64_t chunks = 0;  // 0 for values that are in the step's record
  // Set for such a value, if its bytes decode.
  std::optional<Value> value{};
  std::vector<uint64_t> shard_shape{};  // kArray: of one shard, whose borders chunks keep
  std::string sharding_json{};          // kArray: as Orbax spells it; "": none (ShardingText)
  std::string prng_impl{};              // kArray of "jax key"
  // kArray that was saved with OpenOptions::statistics.
  std::optional<LeafStatistics> statistics{};
};

// An array, or a slice of it, into the caller's memory.
struct ReadRequest {
  Path path{};
  DType dtype = DType::kInvalid;  // the type of `out`; not checked when kInvalid
  Slice slice{};
  void* out = nullptr;                   // the slice's first element
  size_t out_bytes = 0;                  // memory from `out` on; nothing is written behind it
  std::vector<int64_t> strides_bytes{};  // of `out`, not negative; {}: C order of the slice
};

// A device's slice of an array, in C order, into the caller's memory.
struct ShardMemory {
  uint64_t device = 0;  // of the plan's mesh
  Path path{};
  DType dtype = DType::kInvalid;  // the type of `out`; not checked when kInvalid
  void* out = nullptr;
  size_t out_bytes = 0;
};

// A committed step, as it was when it was opened: deleting or replacing it does not disturb this,
// but its space is given back only afterwards. Copies share. When its store is closed, everything
// but info() fails with kFailedPrecondition.
//
// Every read verifies the checksums of what it reads: kDataLoss names file and offset. A path that
// is not there is kNotFound, with the nearest; an ambiguous one is kInvalidArgument:
// pass components instead.
class STEPWELL_API Step {
 public:
  const StepInfo& info() const;

  // The leaves at or below `path`, in key order. Reads no array data.
  Result<std::vector<LeafInfo>> Leaves(const Path& path = {}) const;
  // The same with the containers, each before what is in it. Only here do empty containers appear.
  Result<std::vector<LeafInfo>> Tree(const Path& path = {}) const;
  // The one leaf at `path`; kInvalidArgument when there is a subtree.
  Result<LeafInfo> Leaf(const Path& path) const;

  // All requests in one go, each chunk read once, straight into the caller's memory where it can
  // be. On error the contents of `out` are undefined.
  Result<LoadStats> Read(std::span<const ReadRequest> requests) const;

  // Plans loading onto a mesh without reading any chunk. The first rule that takes an array counts,
  // and an array that none takes is replicated. kNotFound for a rule that takes nothing;
  // kInvalidArgument, naming the leaf, for a spec that does not fit mesh or array.
  Result<LoadPlan> PlanLoad(const Mesh& mesh, const std::vector<SpecRule>& rules = {}) const;
  // Fills the slices of a plan that are asked for, any of them: each chunk is read and decoded
  // once, however many devices want it. Otherwise as above.
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

}  // namespace stepwell
