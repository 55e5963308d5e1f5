// SPDX-License-Identifier: Apache-2.0
// C: steps, leaves, arrays and values.
#include <chrono>
#include <cstdlib>
#include <memory>
#include <vector>

#include "api/c/support.h"

using stepwell::OkStatus;
using stepwell::Result;
using stepwell::Status;
using stepwell::StatusCode;
using stepwell::c::Guard;

struct stepwell_step_list {
  std::vector<stepwell::StepInfo> steps;
};
struct stepwell_leaf_list {
  struct Entry {
    stepwell::LeafInfo info;
    std::string item;
    std::string path;
  };
  std::vector<Entry> leaves;
};

namespace {

Status OutOfRange() { return {StatusCode::kOutOfRange, "there is no entry of this index"}; }

Status FillStepInfo(const stepwell::StepInfo& in, stepwell_step_info* info) {
  stepwell_step_info out{};
  out.step = in.step;
  out.time_ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(in.time.time_since_epoch()).count();
  out.pinned = in.pinned ? 1 : 0;
  out.item_count = in.items.size();
  out.leaves = in.leaves;
  out.chunks = in.chunks;
  out.logical_bytes = in.logical_bytes;
  out.stored_bytes = in.stored_bytes;
  out.metadata_json = in.metadata_json.c_str();
  out.metrics_json = in.metrics_json.c_str();
  out.taint = in.taint.c_str();
  return stepwell::c::CopyStructOut(out, info, offsetof(stepwell_step_info, taint));
}

Status FillItemInfo(const stepwell::StepInfo& in, size_t item, stepwell_item_info* info) {
  if (item >= in.items.size()) return OutOfRange();
  stepwell_item_info out{};
  out.name = in.items[item].name.c_str();
  out.leaves = in.items[item].leaves;
  out.logical_bytes = in.items[item].logical_bytes;
  out.stored_bytes = in.items[item].stored_bytes;
  out.nonfinite = in.items[item].nonfinite;
  return stepwell::c::CopyStructOut(out, info, offsetof(stepwell_item_info, nonfinite));
}

stepwell_leaf_statistics StatisticsOf(const stepwell::LeafStatistics& in) {
  stepwell_leaf_statistics out{};
  out.elements = in.elements;
  out.nonfinite = in.nonfinite;
  out.min = in.min;
  out.max = in.max;
  out.sum = in.sum;
  out.norm = in.norm();
  out.changed = in.changed;
  out.changed_count = static_cast<int>(in.changed_count);
  return out;
}

stepwell_type TypeOf(stepwell::LeafType type) {
  switch (type) {
    case stepwell::LeafType::kArray:
      return STEPWELL_TYPE_ARRAY;
    case stepwell::LeafType::kNone:
      return STEPWELL_TYPE_NONE;
    case stepwell::LeafType::kBool:
      return STEPWELL_TYPE_BOOL;
    case stepwell::LeafType::kInt:
      return STEPWELL_TYPE_INT;
    case stepwell::LeafType::kFloat:
      return STEPWELL_TYPE_FLOAT;
    case stepwell::LeafType::kComplex:
      return STEPWELL_TYPE_COMPLEX;
    case stepwell::LeafType::kStr:
      return STEPWELL_TYPE_STR;
    case stepwell::LeafType::kBytes:
      return STEPWELL_TYPE_BYTES;
    case stepwell::LeafType::kNode:
      return STEPWELL_TYPE_NODE;
  }
  return STEPWELL_TYPE_BYTES;
}

Result<stepwell::ReadRequest> RequestOf(const stepwell_read_request* request) {
  STEPWELL_REQUIRE_(request);
  stepwell_read_request in;
  STEPWELL_RETURN_IF_ERROR(stepwell::c::CopyStructIn(request, &in));
  STEPWELL_REQUIRE_(in.path);
  constexpr uint32_t kRankMax = 64;  // of the format
  if (in.rank > kRankMax) return stepwell::InvalidArgumentError("more than 64 axes");
  if ((in.start == nullptr) != (in.stop == nullptr)) {
    return stepwell::InvalidArgumentError("start and stop go together");
  }
  stepwell::ReadRequest out;
  out.path = stepwell::c::PathOf(in.item, in.path);
  out.dtype = static_cast<stepwell::DType>(in.dtype);
  if (in.start != nullptr) {
    out.slice.start.assign(in.start, in.start + in.rank);
    out.slice.stop.assign(in.stop, in.stop + in.rank);
  }
  out.out = in.out;
  out.out_bytes = in.out_bytes;
  if (in.strides_bytes != nullptr) {
    out.strides_bytes.assign(in.strides_bytes, in.strides_bytes + in.rank);
  }
  return out;
}

using Lister =
    Result<std::vector<stepwell::LeafInfo>> (stepwell::Step::*)(const stepwell::Path&) const;

stepwell_code ListLeaves(const stepwell_step* step, const char* item, const char* path,
                         Lister lister, stepwell_leaf_list** list) {
  return Guard([&]() -> Status {
    STEPWELL_REQUIRE_(list);
    *list = nullptr;
    STEPWELL_REQUIRE_(step);
    STEPWELL_REQUIRE_(path);
    STEPWELL_ASSIGN_OR_RETURN(auto leaves, (step->step.*lister)(stepwell::c::PathOf(item, path)));
    auto made = std::make_unique<stepwell_leaf_list>();
    for (stepwell::LeafInfo& leaf : leaves) {
      STEPWELL_ASSIGN_OR_RETURN(const auto components, leaf.path.ToComponents());
      std::string in_item = leaf.path.item().value_or("state");
      made->leaves.push_back(
          {std::move(leaf), std::move(in_item), stepwell::PathToText(components)});
    }
    *list = made.release();
    return OkStatus();
  });
}

struct ValueWriter {
  stepwell_value* out;

  Status operator()(std::monostate) const {
    out->type = STEPWELL_TYPE_NONE;
    return OkStatus();
  }
  Status operator()(bool value) const {
    out->type = STEPWELL_TYPE_BOOL;
    out->integer = value ? 1 : 0;
    return OkStatus();
  }
  Status operator()(int64_t value) const {
    out->type = STEPWELL_TYPE_INT;
    out->integer = value;
    return OkStatus();
  }
  Status operator()(double value) const {
    out->type = STEPWELL_TYPE_FLOAT;
    out->real = value;
    return OkStatus();
  }
  Status operator()(std::complex<double> value) const {
    out->type = STEPWELL_TYPE_COMPLEX;
    out->real = value.real();
    out->imaginary = value.imag();
    return OkStatus();
  }
  Status operator()(const std::string& value) const {
    out->type = STEPWELL_TYPE_STR;
    return Copy(value.data(), value.size());
  }
  Status operator()(const stepwell::Bytes& value) const {
    out->type = STEPWELL_TYPE_BYTES;
    return Copy(value.data(), value.size());
  }
  Status operator()(const stepwell::BigInt& value) const {
    out->type = STEPWELL_TYPE_INT;
    return Copy(value.decimal.data(), value.decimal.size());
  }

  Status Copy(const void* data, size_t size) const {
    auto* copy = static_cast<char*>(std::malloc(size + 1));
    if (copy == nullptr) return stepwell::ResourceExhaustedError("no memory for a value");
    if (size > 0) std::memcpy(copy, data, size);
    copy[size] = '\0';
    out->data = copy;
    out->data_bytes = size;
    return OkStatus();
  }
};

}  // namespace

stepwell_code stepwell_list_steps(stepwell_store* store, stepwell_step_list** list) {
  return Guard([&]() -> Status {
    STEPWELL_REQUIRE_(list);
    *list = nullptr;
    STEPWELL_REQUIRE_(store);
    STEPWELL_ASSIGN_OR_RETURN(auto steps, store->store.Steps());
    *list = new stepwell_step_list{std::move(steps)};
    return OkStatus();
  });
}

size_t stepwell_step_list_count(const stepwell_step_list* list) {
  return list == nullptr ? 0 : list->steps.size();
}

stepwell_code stepwell_step_list_get(const stepwell_step_list* list, size_t index,
                                     stepwell_step_info* info) {
  return Guard([&]() -> Status {
    STEPWELL_REQUIRE_(list);
    return index < list->steps.size() ? FillStepInfo(list->steps[index], info) : OutOfRange();
  });
}

stepwell_code stepwell_step_list_item(const stepwell_step_list* list, size_t index, size_t item,
                                      stepwell_item_info* info) {
  return Guard([&]() -> Status {
    STEPWELL_REQUIRE_(list);
    return index < list->steps.size() ? FillItemInfo(list->steps[index], item, info) : OutOfRange();
  });
}

void stepwell_step_list_free(stepwell_step_list* list) { delete list; }

stepwell_code stepwell_read(stepwell_store* store, uint64_t step, stepwell_step** opened) {
  return Guard([&]() -> Status {
    STEPWELL_REQUIRE_(opened);
    *opened = nullptr;
    STEPWELL_REQUIRE_(store);
    STEPWELL_ASSIGN_OR_RETURN(auto found, store->store.Read(step));
    *opened = new stepwell_step{std::move(found)};
    return OkStatus();
  });
}

stepwell_code stepwell_read_latest(stepwell_store* store, stepwell_step** opened) {
  return Guard([&]() -> Status {
    STEPWELL_REQUIRE_(opened);
    *opened = nullptr;
    STEPWELL_REQUIRE_(store);
    STEPWELL_ASSIGN_OR_RETURN(auto found, store->store.ReadLatest());
    *opened = new stepwell_step{std::move(found)};
    return OkStatus();
  });
}

void stepwell_step_free(stepwell_step* step) { delete step; }

stepwell_code stepwell_step_get_info(const stepwell_step* step, stepwell_step_info* info) {
  return Guard([&]() -> Status {
    STEPWELL_REQUIRE_(step);
    return FillStepInfo(step->step.info(), info);
  });
}

stepwell_code stepwell_step_get_item(const stepwell_step* step, size_t item,
                                     stepwell_item_info* info) {
  return Guard([&]() -> Status {
    STEPWELL_REQUIRE_(step);
    return FillItemInfo(step->step.info(), item, info);
  });
}

stepwell_code stepwell_list_leaves(const stepwell_step* step, const char* item, const char* path,
                                   stepwell_leaf_list** list) {
  return ListLeaves(step, item, path, &stepwell::Step::Leaves, list);
}

stepwell_code stepwell_list_tree(const stepwell_step* step, const char* item, const char* path,
                                 stepwell_leaf_list** list) {
  return ListLeaves(step, item, path, &stepwell::Step::Tree, list);
}

size_t stepwell_leaf_list_count(const stepwell_leaf_list* list) {
  return list == nullptr ? 0 : list->leaves.size();
}

stepwell_code stepwell_leaf_list_get(const stepwell_leaf_list* list, size_t index,
                                     stepwell_leaf_info* info) {
  return Guard([&]() -> Status {
    STEPWELL_REQUIRE_(list);
    if (index >= list->leaves.size()) return OutOfRange();
    const stepwell_leaf_list::Entry& entry = list->leaves[index];
    stepwell_leaf_info out{};
    out.item = entry.item.c_str();
    out.path = entry.path.c_str();
    out.type = TypeOf(entry.info.type);
    out.dtype = static_cast<stepwell_dtype>(entry.info.dtype);
    out.rank = static_cast<uint32_t>(entry.info.shape.size());
    out.shape = entry.info.shape.data();
    out.chunk_shape = entry.info.chunk_shape.data();
    out.logical_bytes = entry.info.logical_bytes;
    out.stored_bytes = entry.info.stored_bytes;
    out.kind = entry.info.kind.c_str();
    out.type_name = entry.info.type_name.c_str();
    out.children = entry.info.children;
    out.codec = entry.info.codec.c_str();
    out.sharding_json = entry.info.sharding_json.c_str();
    if (entry.info.statistics) {
      out.has_statistics = 1;
      out.statistics = StatisticsOf(*entry.info.statistics);
    }
    return stepwell::c::CopyStructOut(out, info, offsetof(stepwell_leaf_info, kind));
  });
}

void stepwell_leaf_list_free(stepwell_leaf_list* list) { delete list; }

stepwell_code stepwell_read_arrays(const stepwell_step* step,
                                   const stepwell_read_request* const* requests, size_t count) {
  return Guard([&]() -> Status {
    STEPWELL_REQUIRE_(step);
    if (count > 0) STEPWELL_REQUIRE_(requests);
    std::vector<stepwell::ReadRequest> taken;
    for (size_t i = 0; i < count; ++i) {
      STEPWELL_ASSIGN_OR_RETURN(stepwell::ReadRequest request, RequestOf(requests[i]));
      taken.push_back(std::move(request));
    }
    return step->step.Read(taken).status();
  });
}

stepwell_code stepwell_read_array(const stepwell_step* step, const stepwell_read_request* request) {
  return stepwell_read_arrays(step, &request, 1);
}

stepwell_code stepwell_read_value(const stepwell_step* step, const char* item, const char* path,
                                  stepwell_value* value) {
  return Guard([&]() -> Status {
    stepwell_value out{};
    STEPWELL_RETURN_IF_ERROR(stepwell::c::CopyStructOut(out, value));
    STEPWELL_REQUIRE_(step);
    STEPWELL_REQUIRE_(path);
    STEPWELL_ASSIGN_OR_RETURN(const stepwell::Value read,
                              step->step.ReadValue(stepwell::c::PathOf(item, path)));
    STEPWELL_RETURN_IF_ERROR(
        std::visit(ValueWriter{&out}, static_cast<const stepwell::ValueVariant&>(read)));
    return stepwell::c::CopyStructOut(out, value);
  });
}

void stepwell_value_clear(stepwell_value* value) {
  if (value == nullptr) return;
  std::free(const_cast<char*>(value->data));
  value->data = nullptr;
  value->data_bytes = 0;
}
