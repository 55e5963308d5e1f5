// SPDX-License-Identifier: Apache-2.0
// Items of an Orbax checkpoint as items of a save. Private to db/.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "db/import/arrays.h"
#include "db/import/import.h"
#include "db/import/shares.h"

namespace stepwell::db::import {

// A pytree on its way: its leaves, some of which wait for their arrays.
struct ImportTree {
  ItemInput item;
  std::string custom_metadata;  // of its _METADATA; "" when there is none
  std::unique_ptr<ValueIndex> index;
  struct ArrayLeaf {
    size_t leaf = 0;   // in item.leaves
    size_t array = 0;  // in the arrays of the step
    bool is_scalar = false;
    format::Shape shard_shape;
  };
  std::vector<ArrayLeaf> array_leaves;
};

// Reads what describes the item, and appends its arrays (without data) to `arrays`.
Result<ImportTree> ReadTree(io::FileSystem* file_system, const OrbaxItem& item,
                            uint64_t memory_bytes_max, std::vector<ImportArray>* arrays);
// Gives the leaves their arrays, of which these boxes have been read. Of another share than the
// first only the leaves stay of which it has something.
void FinishTree(std::span<const DealtArray> arrays, std::span<const ImportArray> read,
                const ImportShare& share, ImportTree* tree);

// An item that is JSON, as a tree of Python values.
Result<ItemInput> ReadJsonItem(io::FileSystem* file_system, const OrbaxItem& item);

// An item that is neither: its files, as an item of kind kFiles. kResourceExhausted: more than
// `memory_bytes_max`. kUnimplemented: the item has another kind of
// file, or too many files.
Result<ItemInput> ReadFilesItem(io::FileSystem* file_system, const OrbaxItem& item,
                                uint64_t memory_bytes_max);

// The record of an interior node.
LeafInput NodeInput(std::string key, format::ContainerKind container, uint64_t child_count);
// A Python value.
LeafInput ValueInput(std::string key, format::ValueType type, std::string value);
std::string FloatValue(double number);  // kFloat's bytes

}  // namespace stepwell::db::import
