// SPDX-License-Identifier: Apache-2.0
#include "api/cpp/step.h"

#include <algorithm>
#include <new>

#include "db/read/restore_plan.h"
#include "io/bytes.h"

namespace stepwell {
namespace {

constexpr size_t kArrayAlignment = 64;

// A request's memory against the array: what the engine takes for granted.
Status CheckMemory(const ReadRequest& request, std::span<const uint64_t> extents,
                   uint64_t item_bytes) {
  STEPWELL_ASSIGN_OR_RETURN(const uint64_t count, format::ElementCount(extents, item_bytes));
  if (!request.strides_bytes.empty() && request.strides_bytes.size() != extents.size()) {
    return InvalidArgumentError(StrCat(Counted(request.strides_bytes.size(), "stride", "strides"),
                                       " for ", Counted(extents.size(), "axis", "axes")));
  }
  if (count == 0) return OkStatus();
  uint64_t needed = count * item_bytes;
  if (!request.strides_bytes.empty()) needed = item_bytes;
  bool overflow = false;
  for (size_t axis = 0; axis < request.strides_bytes.size(); ++axis) {
    const int64_t stride = request.strides_bytes[axis];
    if (stride < 0 || (stride == 0 && extents[axis] > 1)) {
      return InvalidArgumentError(
          StrCat("axis ", axis, ": memory to read into has no stride of ", stride));
    }
    uint64_t span = 0;
    overflow |= __builtin_mul_overflow(static_cast<uint64_t>(stride), extents[axis] - 1, &span);
    overflow |= __builtin_add_overflow(needed, span, &needed);
  }
  if (overflow || needed > request.out_bytes) {
    return InvalidArgumentError(
        StrCat("the memory is too small: ", request.out_bytes, " bytes where ",
               overflow ? std::string("more than 2^64") : std::to_string(needed), " are needed"));
  }
  if (request.out == nullptr) return InvalidArgumentError("the memory to read into is null");
  return OkStatus();
}

Result<format::Box> BoxOf(const Slice& slice, const format::Shape& shape) {
  if (slice.start.empty() && slice.stop.empty()) return format::WholeArray(shape);
  if (slice.start.size() != shape.size() || slice.stop.size() != shape.size()) {
    return InvalidArgumentError(StrCat("a slice of ", slice.start.size(), " and ",
                                       slice.stop.size(), " axes in an array of ", shape.size()));
  }
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    if (slice.start[axis] > slice.stop[axis] || slice.stop[axis] > shape[axis]) {
      return InvalidArgumentError(StrCat("axis ", axis, ": ", slice.start[axis], " to ",
                                         slice.stop[axis], " is not a slice of ", shape[axis]));
    }
  }
  return format::Box{slice.start, slice.stop};
}

format::Shape Extents(const format::Box& box) {
  format::Shape extents(box.start.size());
  for (size_t axis = 0; axis < extents.size(); ++axis) {
    extents[axis] = box.stop[axis] - box.start[axis];
  }
  return extents;
}

// The record is wrong, not the caller: the disk says more bytes than there are.
Result<Array> NewArray(const format::LeafRecord& leaf, format::Shape extents) {
  Array array;
  array.dtype = leaf.dtype;
  const uint64_t item_bytes = FindDType(leaf.dtype)->item_bytes;
  STEPWELL_ASSIGN_OR_RETURN(const uint64_t count, format::ElementCount(extents, item_bytes));
  array.shape = std::move(extents);
  array.size_bytes = count * item_bytes;
  const size_t size_bytes = std::max<uint64_t>(array.size_bytes, 1);
  auto* data = static_cast<std::byte*>(operator new(size_bytes, std::align_val_t(kArrayAlignment),
                                                    std::nothrow));
  if (data == nullptr) {
    return ResourceExhaustedError(StrCat("no memory for an array of ", array.size_bytes, " bytes"));
  }
  array.data = std::shared_ptr<std::byte[]>(
      data, [](std::byte* memory) { operator delete(memory, std::align_val_t(kArrayAlignment)); });
  return array;
}

Result<const format::LeafRecord*> FindArray(const LeafTable& table, const Path& path) {
  STEPWELL_ASSIGN_OR_RETURN(const format::LeafRecord* leaf, table.FindLeaf(path));
  STEPWELL_RETURN_IF_ERROR(db::CheckLeaf(*leaf));
  if (leaf->kind != format::LeafKind::kArray) {
    return InvalidArgumentError("a value is here, not an array").WithContext(path.ToText());
  }
  return leaf;
}

}  // namespace

Result<std::shared_ptr<const LeafTable>> Step::Impl::Table() {
  STEPWELL_RETURN_IF_ERROR(core->Check());
  const io::MutexLock lock(&mutex);
  if (table == nullptr) {
    STEPWELL_ASSIGN_OR_RETURN(auto records, reader->Leaves(""));
    STEPWELL_ASSIGN_OR_RETURN(LeafTable made, LeafTable::Make(reader->step(), std::move(records)));
    table = std::make_shared<const LeafTable>(std::move(made));
  }
  return table;
}

const StepInfo& Step::info() const { return impl_->info; }

Result<std::vector<LeafInfo>> Step::Leaves(const Path& path) const {
  STEPWELL_ASSIGN_OR_RETURN(std::vector<LeafInfo> tree, Tree(path));
  std::erase_if(tree, [](const LeafInfo& info) { return info.type == LeafType::kNode; });
  return tree;
}

Result<std::vector<LeafInfo>> Step::Tree(const Path& path) const {
  STEPWELL_ASSIGN_OR_RETURN(const auto table, impl_->Table());
  STEPWELL_ASSIGN_OR_RETURN(const auto records, table->Records(path));
  std::vector<LeafInfo> tree;
  for (const format::LeafRecord* record : records) {
    STEPWELL_ASSIGN_OR_RETURN(LeafInfo info, Describe(*record));
    tree.push_back(std::move(info));
  }
  return tree;
}

Result<std::string> Step::KeyOf(const Path& path) const {
  STEPWELL_ASSIGN_OR_RETURN(const auto table, impl_->Table());
  return table->FindKey(path);
}

Result<LeafInfo> Step::Leaf(const Path& path) const {
  STEPWELL_ASSIGN_OR_RETURN(const auto table, impl_->Table());
  STEPWELL_ASSIGN_OR_RETURN(const format::LeafRecord* leaf, table->FindLeaf(path));
  return Describe(*leaf);
}

Result<std::vector<db::LoadRequest>> Step::Impl::ToEngine(const LeafTable& leaves,
                                                          std::span<const ReadRequest> requests) {
  std::vector<db::LoadRequest> loads;
  for (const ReadRequest& request : requests) {
    STEPWELL_ASSIGN_OR_RETURN(const format::LeafRecord* leaf, FindArray(leaves, request.path));
    const auto prepare = [&]() -> Status {
      if (request.dtype != DType::kInvalid && request.dtype != leaf->dtype) {
        return internal::WrongDType(leaf->dtype, request.dtype);
      }
      STEPWELL_ASSIGN_OR_RETURN(format::Box box, BoxOf(request.slice, leaf->shape));
      const format::Shape extents = Extents(box);
      STEPWELL_RETURN_IF_ERROR(CheckMemory(request, extents, FindDType(leaf->dtype)->item_bytes));
      if (std::find(extents.begin(), extents.end(), 0) != extents.end()) return OkStatus();
      loads.push_back({.leaf = leaf,
                       .box = std::move(box),
                       .out = static_cast<std::byte*>(request.out),
                       .strides_bytes = request.strides_bytes});
      return OkStatus();
    };
    STEPWELL_RETURN_IF_ERROR(prepare().WithContext(request.path.ToText()));
  }
  return loads;
}

Result<LoadStats> Step::Read(std::span<const ReadRequest> requests) const {
  STEPWELL_ASSIGN_OR_RETURN(const auto table, impl_->Table());
  STEPWELL_ASSIGN_OR_RETURN(const auto loads, Impl::ToEngine(*table, requests));
  if (loads.empty()) return LoadStats{};
  return impl_->reader->Load(loads);
}

Result<uint64_t> Step::ElementCount(const Path& path, const Slice& slice) const {
  STEPWELL_ASSIGN_OR_RETURN(const auto table, impl_->Table());
  STEPWELL_ASSIGN_OR_RETURN(const format::LeafRecord* leaf, FindArray(*table, path));
  STEPWELL_ASSIGN_OR_RETURN(const format::Box box, BoxOf(slice, leaf->shape));
  return format::ElementCount(Extents(box), FindDType(leaf->dtype)->item_bytes);
}

Result<Array> Step::ReadArray(const Path& path, const Slice& slice) const {
  STEPWELL_ASSIGN_OR_RETURN(const auto table, impl_->Table());
  STEPWELL_ASSIGN_OR_RETURN(const format::LeafRecord* leaf, FindArray(*table, path));
  Result<format::Box> box = BoxOf(slice, leaf->shape);
  if (!box.ok()) return box.status().WithContext(path.ToText());
  STEPWELL_ASSIGN_OR_RETURN(Array array, NewArray(*leaf, Extents(*box)));
  if (array.size_bytes == 0) return array;
  const db::LoadRequest load{
      .leaf = leaf, .box = std::move(box).value(), .out = array.data.get(), .strides_bytes = {}};
  STEPWELL_RETURN_IF_ERROR(impl_->reader->Load({&load, 1}).status());
  return array;
}

Result<Value> Step::ReadValue(const Path& path) const {
  STEPWELL_ASSIGN_OR_RETURN(const auto table, impl_->Table());
  STEPWELL_ASSIGN_OR_RETURN(const format::LeafRecord* leaf, table->FindLeaf(path));
  if (leaf->kind != format::LeafKind::kValue) {
    return InvalidArgumentError("an array is here, not a value").WithContext(path.ToText());
  }
  STEPWELL_ASSIGN_OR_RETURN(std::vector<LoadedLeaf> loaded, impl_->Load({leaf}));
  return std::move(std::get<Value>(loaded.front().data));
}

Result<std::vector<Step::LoadedLeaf>> Step::Load(const Path& path) const {
  STEPWELL_ASSIGN_OR_RETURN(const auto table, impl_->Table());
  STEPWELL_ASSIGN_OR_RETURN(const auto leaves, table->Leaves(path));
  return impl_->Load(leaves);
}

Result<std::vector<Step::LoadedLeaf>> Step::Impl::Load(
    const std::vector<const format::LeafRecord*>& leaves) const {
  std::vector<LoadedLeaf> loaded(leaves.size());
  std::vector<std::string> values(leaves.size());
  std::vector<db::LoadRequest> loads;
  for (size_t i = 0; i < leaves.size(); ++i) {
    const format::LeafRecord& leaf = *leaves[i];
    STEPWELL_RETURN_IF_ERROR(db::CheckLeaf(leaf));
    STEPWELL_ASSIGN_OR_RETURN(loaded[i].info, Describe(leaf));
    db::LoadRequest load;
    load.leaf = &leaf;
    if (leaf.kind == format::LeafKind::kArray) {
      STEPWELL_ASSIGN_OR_RETURN(Array array, NewArray(leaf, leaf.shape));
      load.box = format::WholeArray(leaf.shape);
      load.out = array.data.get();
      const bool empty = array.size_bytes == 0;
      loaded[i].data = std::move(array);
      if (empty) continue;
    } else if (leaf.chunk_count == 0) {
      values[i] = leaf.inline_value;
      continue;
    } else {
      values[i].resize(leaf.logical_bytes);
      load.out = reinterpret_cast<std::byte*>(values[i].data());
    }
    loads.push_back(std::move(load));
  }
  if (!loads.empty()) STEPWELL_RETURN_IF_ERROR(reader->Load(loads).status());
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (leaves[i]->kind == format::LeafKind::kArray) continue;
    Result<Value> value = DecodeValue(leaves[i]->value_type, std::move(values[i]));
    if (!value.ok()) return value.status().WithContext(loaded[i].info.path.ToText());
    loaded[i].data = std::move(value).value();
  }
  return loaded;
}

}  // namespace stepwell
