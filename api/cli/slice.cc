// SPDX-License-Identifier: Apache-2.0
#include "api/cli/slice.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <string_view>

#include "api/cli/text.h"

namespace stepwell::cli {
namespace {

std::string_view Trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t end = text.find(separator);
    parts.push_back(Trim(text.substr(0, end)));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

Result<int64_t> ParseNumber(std::string_view text, std::string_view part) {
  int64_t number = 0;
  const std::string_view digits = text.starts_with('+') ? text.substr(1) : text;
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (parsed.ec != std::errc() || parsed.ptr != digits.data() + digits.size()) {
    return InvalidArgumentError(
        StrCat("in --slice, \"", part, "\" is not an index, START:STOP:STEP or ..."));
  }
  return number;
}

Result<AxisRange> ParseIndex(std::string_view part, size_t axis, int64_t length) {
  STEPWELL_ASSIGN_OR_RETURN(int64_t index, ParseNumber(part, part));
  if (index < -length || index >= length) {
    return InvalidArgumentError(StrCat("in --slice, index ", index, " is out of bounds for axis ",
                                       axis, " with ", length, " elements"));
  }
  return AxisRange{static_cast<uint64_t>(index < 0 ? index + length : index), 1, 1, true};
}

// As Python does for a sequence of `length` elements: what lies outside is cut off.
Result<AxisRange> ParseRange(std::string_view part, size_t axis, int64_t length) {
  const std::vector<std::string_view> fields = Split(part, ':');
  if (fields.size() > 3) {
    return InvalidArgumentError(StrCat("in --slice, \"", part, "\" has more than two colons"));
  }
  int64_t step = 1;
  if (fields.size() == 3 && !fields[2].empty()) {
    STEPWELL_ASSIGN_OR_RETURN(step, ParseNumber(fields[2], part));
    if (step == 0) return InvalidArgumentError(StrCat("in --slice, axis ", axis, " has step 0"));
    step = std::max(step, -std::numeric_limits<int64_t>::max());
  }
  const int64_t below = step < 0 ? -1 : 0;
  const int64_t above = step < 0 ? length - 1 : length;
  const auto bound = [&](std::string_view field, int64_t absent) -> Result<int64_t> {
    if (field.empty()) return absent;
    STEPWELL_ASSIGN_OR_RETURN(int64_t number, ParseNumber(field, part));
    if (number < 0) number += length;
    return std::clamp(number, below, above);
  };
  STEPWELL_ASSIGN_OR_RETURN(const int64_t start, bound(fields[0], step < 0 ? above : below));
  STEPWELL_ASSIGN_OR_RETURN(const int64_t stop, bound(fields[1], step < 0 ? below : above));
  const int64_t span = step < 0 ? start - stop : stop - start;
  if (span <= 0) return AxisRange{0, 1, 0, false};
  const uint64_t size = StepSize({0, step, 0, false});
  return AxisRange{static_cast<uint64_t>(start), step, (static_cast<uint64_t>(span) - 1) / size + 1,
                   false};
}

}  // namespace

Ranges WholeRanges(const Shape& shape) {
  Ranges ranges;
  for (const uint64_t extent : shape) ranges.push_back({0, 1, extent, false});
  return ranges;
}

Result<Ranges> ParseSlice(const std::string& text, const Shape& shape) {
  std::string_view inner = Trim(text);
  if (inner.size() >= 2 && inner.front() == '[' && inner.back() == ']') {
    inner = Trim(inner.substr(1, inner.size() - 2));
  }
  if (inner.size() > 1 && inner.back() == ',') inner.remove_suffix(1);  // as in Python: a[0,]
  if (inner.empty()) return InvalidArgumentError("--slice is empty; \"...\" is the whole array");
  std::vector<std::string_view> parts = Split(inner, ',');
  const auto ellipsis = std::find(parts.begin(), parts.end(), "...");
  const size_t given = parts.size() - (ellipsis == parts.end() ? 0 : 1);
  if (given > shape.size()) {
    return InvalidArgumentError(
        StrCat("--slice names ", Plural(given, "axis", "axes"), "; the array has ", shape.size()));
  }
  const size_t left_out = shape.size() - given;
  if (ellipsis == parts.end()) {
    parts.insert(parts.end(), left_out, ":");
  } else {
    parts.insert(parts.erase(ellipsis), left_out, ":");
  }
  if (std::find(parts.begin(), parts.end(), "...") != parts.end()) {
    return InvalidArgumentError("--slice has more than one \"...\"");
  }
  Ranges ranges;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    const auto length = static_cast<int64_t>(shape[axis]);
    const bool index = parts[axis].find(':') == std::string_view::npos;
    STEPWELL_ASSIGN_OR_RETURN(AxisRange range, index ? ParseIndex(parts[axis], axis, length)
                                                     : ParseRange(parts[axis], axis, length));
    ranges.push_back(range);
  }
  return ranges;
}

Shape ResultShape(const Ranges& ranges) {
  Shape shape;
  for (const AxisRange& range : ranges) {
    if (!range.dropped) shape.push_back(range.count);
  }
  return shape;
}

uint64_t StepSize(const AxisRange& range) {
  return static_cast<uint64_t>(range.step < 0 ? -range.step : range.step);
}

SelectionBoxes::SelectionBoxes(Ranges ranges, Shape chunk_shape, uint64_t item_bytes,
                               uint64_t bytes_max)
    : ranges_(std::move(ranges)), chunk_shape_(std::move(chunk_shape)), bytes_max_(bytes_max) {
  for (const AxisRange& range : ranges_) {
    if (range.count == 0) return;
  }
  // The first axis of which one index has no more than `bytes_max` below it.
  inner_bytes_ = item_bytes;
  axis_ = ranges_.empty() ? 0 : ranges_.size() - 1;
  while (axis_ > 0) {
    const AxisRange& range = ranges_[axis_];
    const uint64_t bytes = inner_bytes_ * ((range.count - 1) * StepSize(range) + 1);
    if (bytes > bytes_max_) break;
    inner_bytes_ = bytes;
    --axis_;
  }
  next_.assign(axis_ + 1, 0);
}

uint64_t SelectionBoxes::CountAt(uint64_t first) const {
  const AxisRange& range = ranges_[axis_];
  const uint64_t left = range.count - first;
  const uint64_t step = StepSize(range);
  const uint64_t count = 1 + (std::max(bytes_max_ / inner_bytes_, uint64_t{1}) - 1) / step;
  if (count >= left) return left;
  // Back to the border of the chunk in which the next part would begin.
  const uint64_t extent = chunk_shape_[axis_];
  const uint64_t next_origin = range.At(first + count) / extent * extent;
  const uint64_t start = range.At(first);
  const uint64_t until_border =
      range.step > 0
          ? (next_origin > start ? (next_origin - start + step - 1) / step : 0)
          : (start >= next_origin + extent ? (start - (next_origin + extent)) / step + 1 : 0);
  return until_border == 0 ? count : until_border;
}

std::optional<Ranges> SelectionBoxes::Next() {
  if (next_.empty()) return std::nullopt;
  if (ranges_.empty()) {  // a scalar
    next_.clear();
    return Ranges{};
  }
  Ranges box = ranges_;
  for (size_t axis = 0; axis < axis_; ++axis) box[axis] = ranges_[axis].Part(next_[axis], 1);
  const uint64_t count = CountAt(next_[axis_]);
  box[axis_] = ranges_[axis_].Part(next_[axis_], count);
  next_[axis_] += count;
  for (size_t axis = axis_; next_[axis] == ranges_[axis].count; --axis) {
    if (axis == 0) {
      next_.clear();
      break;
    }
    next_[axis] = 0;
    ++next_[axis - 1];
  }
  return box;
}

}  // namespace stepwell::cli
