// SPDX-License-Identifier: Apache-2.0
// Python's flattened leaves as the engine's inputs.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "api/python/host_copies.h"
#include "db/store.h"

namespace stepwell::python {

// In what form a row has its data.
enum class RowTag : uint8_t { kNode, kArray, kValue, kJax, kShards };

// Details that only rows of shards, and leaves with a chosen chunk shape, have.
struct RowDetails {
  std::vector<uint64_t> shape;
  std::optional<std::vector<uint64_t>> shard_shape;  // none: one shard is the whole array
  std::vector<std::vector<uint64_t>> origins;        // the position of each shard in the array
  bool partial = false;                              // other processes save the rest
  // db::LeafInput's
  uint64_t chunk_bytes_max = 0;
  std::vector<uint32_t> chunk_axes;
};

// A container or leaf of a tree that is saved, as stepwell/_pytree/tree.py makes it. Small: a state
// has one for each leaf, made anew for each save.
struct Row {
  std::string path{};  // format::EncodePath's
  // kArray: an ndarray. kJax: a jax.Array on one CPU device. kShards: a list of single-device
  // jax.Arrays, or of ndarrays that are not changed. kValue: bytes. kNode: None.
  nanobind::object data{};
  int dtype = 0;  // its number in the format
  RowTag tag = RowTag::kNode;
  format::ValueType value_type = format::ValueType::kNone;
  format::ContainerKind container = format::ContainerKind::kNotContainer;  // kNode
  bool weak_type = false;                                                  // kJax, kShards
  bool far = false;          // kShards: jax.Arrays on other devices than the CPU
  uint64_t child_count = 0;  // kNode
  // str, or null for "".
  nanobind::object type_name{};  // kNode
  nanobind::object prng_impl{};  // kJax, kShards
  nanobind::object sharding{};   // kJax, kShards
  // The type of the NNX Variable that holds the value; if Variables are nested, all types,
  // outermost first, with a space between.
  nanobind::object variable_types{};
  nanobind::object source{};              // kShards: the jax.Array that the shards are of, or null
  std::unique_ptr<RowDetails> details{};  // null: none
};

// An item to save.
struct ItemRows {
  nanobind::str name;
  nanobind::list rows;  // of Row
  format::ItemKind kind = format::ItemKind::kTree;
};

// The jax.Arrays of one save, by the hashes of their leaves' keys. An array is immutable: one that
// is there again is unchanged. Holds weak references. Needs the GIL.
class SavedArrays {
 public:
  explicit SavedArrays(uint64_t ticket) : ticket_(ticket) {}
  ~SavedArrays();
  SavedArrays(const SavedArrays&) = delete;
  SavedArrays& operator=(const SavedArrays&) = delete;

  uint64_t ticket() const { return ticket_; }  // db::SaveRequest's
  // `since`: the ticket of the first of the saves up to this one that all had this array there.
  void Add(const format::Hash128& key, PyObject* array, uint64_t since);

  struct LowBits {
    size_t operator()(const format::Hash128& key) const { return key.low; }
  };
  // Looks at the arrays of a save from first to last: the next save has the same leaves in the same
  // order, as a rule.
  class Cursor {
   public:
    explicit Cursor(const SavedArrays* arrays) : arrays_(arrays) {}  // may be null: of no save
    // Returns `since`, as it was given to Add; 0: this save had another array there, or none.
    uint64_t SavedSince(const format::Hash128& key, PyObject* array);

   private:
    const SavedArrays* const arrays_;
    size_t next_ = 0;
    std::unordered_map<format::Hash128, size_t, LowBits> places_;  // once an order differs
  };

 private:
  struct Entry {
    format::Hash128 key;
    PyObject* reference = nullptr;
    uint64_t since = 0;
  };
  const uint64_t ticket_;
  std::vector<Entry> entries_;
};

// `items`: of ItemRows. `to_numpy`: called with a jax.Array whose memory cannot be
// viewed directly; returns an ndarray that is not changed elsewhere. Raises on paths that are
// too long. Needs the GIL.
// `far` gets the shards that are on other devices.
// `before` (may be null) are the arrays of an earlier save; those of this one are added to `saved`.
std::vector<db::ItemInput> ItemsFromPython(const nanobind::list& items, nanobind::object to_numpy,
                                           HostCopies* far, const SavedArrays* before,
                                           SavedArrays* saved);

// A str as UTF-8, lone surrogates as their three bytes.
std::string TextOf(PyObject* text);
// The str of UTF-8 with such surrogates; other bytes as "\\xff".
nanobind::str TextObject(std::string_view text);
// A component of a path, (type, value).
format::PathComponent ComponentFromPython(nanobind::handle component);
// A path, a tuple of components, as format::EncodePath gives it. Raises on bad paths.
std::string EncodedPath(const nanobind::tuple& path);

}  // namespace stepwell::python
