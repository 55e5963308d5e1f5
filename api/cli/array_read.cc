// SPDX-License-Identifier: Apache-2.0
#include "api/cli/array_read.h"

#include <algorithm>
#include <cstring>

#include "api/cli/text.h"

namespace stepwell::cli {
namespace {

// So few elements of a stepped range are read one by one, instead of all that lie between them.
constexpr uint64_t kSingleElementsMax = 8;

// How the elements of one axis get from the array to the staged box, and from there to the result.
struct AxisPlan {
  struct Segment {  // elements [start, stop) of the array, to `staged` and after
    uint64_t start = 0;
    uint64_t stop = 0;
    uint64_t staged = 0;
  };
  std::vector<Segment> segments;
  Ranges from_staged;
  uint64_t staged_extent = 0;

  bool Straight() const {
    return from_staged.empty() || (from_staged.size() == 1 && from_staged[0].step == 1);
  }
};

void AddRange(const AxisRange& range, uint64_t chunk_extent, AxisPlan* plan) {
  if (range.count == 0) return;
  const uint64_t step = StepSize(range);
  const uint64_t staged = plan->staged_extent;
  const uint64_t low = range.step > 0 ? range.start : range.At(range.count - 1);
  const bool singly = step > 1 && (step >= chunk_extent || range.count <= kSingleElementsMax);
  const uint64_t span = singly ? range.count : (range.count - 1) * step + 1;
  if (singly) {
    for (uint64_t i = 0; i < range.count; ++i) {
      plan->segments.push_back({low + i * step, low + i * step + 1, staged + i});
    }
  } else {
    plan->segments.push_back({low, low + span, staged});
  }
  const int64_t staged_step = singly ? (range.step > 0 ? 1 : -1) : range.step;
  plan->staged_extent += span;
  if (staged_step == 1 && !plan->from_staged.empty() && plan->from_staged.back().step == 1) {
    plan->from_staged.back().count += range.count;  // what is staged in order is one run
    return;
  }
  plan->from_staged.push_back(
      {range.step > 0 ? staged : staged + span - 1, staged_step, range.count, false});
}

class SelectionReader {
 public:
  SelectionReader(const LeafInfo& leaf, size_t item_bytes,
                  const std::vector<Ranges>& ranges_by_axis)
      : leaf_(leaf), item_bytes_(item_bytes), plans_(ranges_by_axis.size()) {
    for (size_t axis = 0; axis < plans_.size(); ++axis) {
      for (const AxisRange& range : ranges_by_axis[axis]) {
        AddRange(range, leaf.chunk_shape[axis], &plans_[axis]);
      }
      extents_.push_back(plans_[axis].staged_extent);
      straight_ = straight_ && plans_[axis].Straight();
    }
    strides_.resize(extents_.size());
    uint64_t stride = item_bytes;
    for (size_t axis = extents_.size(); axis-- > 0; stride *= extents_[axis]) {
      strides_[axis] = static_cast<int64_t>(stride);
    }
    slice_ = {extents_, extents_};
  }

  Status Load(const Step& step, std::byte* out) {
    uint64_t bytes = item_bytes_;
    for (const uint64_t extent : extents_) bytes *= extent;
    if (bytes == 0) return OkStatus();
    std::vector<std::byte> staged(straight_ ? 0 : bytes);
    std::byte* const box = straight_ ? out : staged.data();
    AddRequests(0, box);
    for (ReadRequest& request : requests_) {
      request.out_bytes = bytes - static_cast<size_t>(static_cast<std::byte*>(request.out) - box);
    }
    STEPWELL_RETURN_IF_ERROR(step.Read(requests_).status());
    if (!straight_) Gather(0, staged.data(), &out);
    return OkStatus();
  }

 private:
  void AddRequests(size_t axis, std::byte* at) {
    if (axis == plans_.size()) {
      requests_.push_back({.path = leaf_.path,
                           .dtype = leaf_.dtype,
                           .slice = slice_,
                           .out = at,
                           .strides_bytes = strides_});
      return;
    }
    for (const AxisPlan::Segment& segment : plans_[axis].segments) {
      slice_.start[axis] = segment.start;
      slice_.stop[axis] = segment.stop;
      AddRequests(axis + 1, at + segment.staged * static_cast<uint64_t>(strides_[axis]));
    }
  }

  void Gather(size_t axis, const std::byte* from, std::byte** out) const {
    if (axis == plans_.size()) {
      std::memcpy(*out, from, item_bytes_);
      *out += item_bytes_;
      return;
    }
    const auto stride = static_cast<size_t>(strides_[axis]);
    const bool innermost = axis + 1 == plans_.size();
    for (const AxisRange& range : plans_[axis].from_staged) {
      if (innermost && range.step == 1) {
        std::memcpy(*out, from + range.start * stride, range.count * stride);
        *out += range.count * stride;
        continue;
      }
      for (uint64_t i = 0; i < range.count; ++i) Gather(axis + 1, from + range.At(i) * stride, out);
    }
  }

  const LeafInfo& leaf_;
  const size_t item_bytes_;
  std::vector<AxisPlan> plans_;
  Shape extents_;         // of the staged box
  bool straight_ = true;  // the staged box is the result
  std::vector<int64_t> strides_;
  Slice slice_;
  std::vector<ReadRequest> requests_;
};

}  // namespace

Result<const DTypeInfo*> ElementType(const LeafInfo& leaf) {
  const DTypeInfo* info = FindDType(leaf.dtype);
  if (info == nullptr) {
    return UnimplementedError(
        StrCat(leaf.path.ToText(), " has an element type that is newer than this program"));
  }
  if (leaf.chunk_shape.size() != leaf.shape.size() ||
      std::find(leaf.chunk_shape.begin(), leaf.chunk_shape.end(), 0) != leaf.chunk_shape.end()) {
    return DataLossError("the array's record has a chunk shape that does not fit its shape");
  }
  return info;
}

Status LoadRanges(const Step& step, const LeafInfo& leaf, const std::vector<Ranges>& ranges_by_axis,
                  std::byte* out) {
  STEPWELL_ASSIGN_OR_RETURN(const DTypeInfo* info, ElementType(leaf));
  return SelectionReader(leaf, info->item_bytes, ranges_by_axis).Load(step, out);
}

Status LoadBox(const Step& step, const LeafInfo& leaf, const Ranges& box,
               std::vector<std::byte>* out) {
  STEPWELL_ASSIGN_OR_RETURN(const DTypeInfo* info, ElementType(leaf));
  std::vector<Ranges> by_axis;
  uint64_t bytes = info->item_bytes;
  for (const AxisRange& range : box) {
    by_axis.push_back({range});
    bytes *= range.count;
  }
  out->resize(bytes);
  return LoadRanges(step, leaf, by_axis, out->data());
}

}  // namespace stepwell::cli
