// SPDX-License-Identifier: Apache-2.0
#include "db/mesh/sharding.h"

#include <algorithm>
#include <map>

#include <nlohmann/json.hpp>

#include "io/bytes.h"

namespace stepwell {
namespace {

using Json = nlohmann::json;

constexpr size_t kDrawnMax = 8;      // slices of an axis
constexpr size_t kBlocksMax = 4;     // drawings, where over two axes are split
constexpr size_t kCellTextMax = 12;  // device ids in a cell

Json Parse(std::string_view text) {
  return Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
}

const Json* Find(const Json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

std::string TextAt(const Json& object, const char* name) {
  const Json* text = Find(object, name);
  return text != nullptr && text->is_string() ? text->get<std::string>() : std::string();
}

// Nested lists of {"id": n}, `depth` deep.
bool AddDevices(const Json& json, size_t depth, std::vector<int64_t>* devices) {
  if (depth == 0) {
    const Json* id = Find(json, "id");
    if (id == nullptr || !id->is_number_integer()) return false;
    devices->push_back(id->get<int64_t>());
    return devices->size() <= Mesh::kDevicesMax;
  }
  if (!json.is_array()) return false;
  return std::all_of(json.begin(), json.end(),
                     [&](const Json& inner) { return AddDevices(inner, depth - 1, devices); });
}

bool AddSpec(const Json& json, PartitionSpec* spec) {
  if (!json.is_array()) return false;
  for (const Json& entry : json) {
    std::vector<std::string>& names = spec->axes.emplace_back();
    if (entry.is_string()) {
      names.push_back(entry.get<std::string>());
    } else if (entry.is_array()) {
      for (const Json& name : entry) {
        if (!name.is_string()) return false;
        names.push_back(name.get<std::string>());
      }
    } else if (!entry.is_null()) {
      return false;
    }
  }
  return true;
}

// Names and words of the JSON go to terminals.
std::string Clean(std::string text) {
  for (char& c : text) {
    if (static_cast<uint8_t>(c) < 0x20 || c == 0x7F) c = '?';
  }
  return text;
}

std::string ShapeText(std::span<const uint64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += StrCat(i == 0 ? "" : ", ", shape[i]);
  return text + "]";
}

// "0-3,6", cut where it is long.
std::string IdsText(std::vector<int64_t> ids) {
  std::sort(ids.begin(), ids.end());
  std::string text;
  for (size_t i = 0; i < ids.size();) {
    size_t end = i + 1;
    while (end < ids.size() && ids[end] == ids[end - 1] + 1) ++end;
    std::string part = std::to_string(ids[i]);
    if (end - i > 1) part += StrCat(end - i > 2 ? "-" : ",", ids[end - 1]);
    if (text.size() + part.size() > kCellTextMax) return StrCat(text, ",… (", ids.size(), ")");
    text += StrCat(text.empty() ? "" : ",", part);
    i = end;
  }
  return text;
}

size_t Width(const std::string& text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }));
}

std::string Pad(const std::string& text, size_t width) {
  return text + std::string(width - std::min(width, Width(text)), ' ');
}

// Which of `count` slices are drawn: the first ones and the last. None in a place: left out here.
std::vector<std::optional<uint64_t>> Drawn(uint64_t count) {
  std::vector<std::optional<uint64_t>> drawn;
  for (uint64_t i = 0; i < count && (count <= kDrawnMax || i + 2 < kDrawnMax); ++i) {
    drawn.emplace_back(i);
  }
  if (count > kDrawnMax) {
    drawn.emplace_back(std::nullopt);
    drawn.emplace_back(count - 1);
  }
  return drawn;
}

class Drawing {
 public:
  Drawing(std::span<const uint64_t> shape, const SavedSharding& sharding) : shape_(shape) {
    for (uint64_t device = 0; device < sharding.devices.size(); ++device) {
      const Slice slice = ShardOf(shape, sharding.mesh, sharding.spec, device);
      if (device == 0) {
        for (size_t axis = 0; axis < shape.size(); ++axis) {
          extents_.push_back(slice.stop[axis] - slice.start[axis]);
          const auto& spec = sharding.spec.axes;
          parts_.push_back(axis < spec.size() ? PartsOf(sharding.mesh, spec[axis]) : 1);
          if (parts_.back() > 1) split_.push_back(axis);
        }
      }
      // An empty axis has many slices that are alike, and they begin at the same place.
      holders_[slice.start].push_back(sharding.devices[device]);
    }
  }

  const std::vector<uint64_t>& extents() const { return extents_; }
  uint64_t slices() const { return holders_.size(); }

  std::string ToText() const {
    if (holders_.size() < 2) return "";
    const size_t outer = split_.size() > 2 ? split_.size() - 2 : 0;
    uint64_t blocks = 1;
    for (size_t i = 0; i < outer; ++i) blocks *= parts_[split_[i]];
    std::string text;
    for (uint64_t block = 0; block < std::min<uint64_t>(blocks, kBlocksMax); ++block) {
      text += Block(block, outer);
    }
    if (blocks > kBlocksMax) text += StrCat("  … and ", blocks - kBlocksMax, " more of these\n");
    return text;
  }

 private:
  std::string RangeText(size_t axis, uint64_t part) const {
    return StrCat(part * extents_[axis], ":", (part + 1) * extents_[axis]);
  }

  // One grid: rows are slices of the last but one axis that is split, columns of the last.
  std::string Block(uint64_t block, size_t outer) const {
    std::vector<uint64_t> start(shape_.size(), 0);
    std::string title;
    for (size_t i = outer; i-- > 0;) {
      const uint64_t part = block % parts_[split_[i]];
      block /= parts_[split_[i]];
      start[split_[i]] = part * extents_[split_[i]];
      title = StrCat("axis ", split_[i], " ", RangeText(split_[i], part), title.empty() ? "" : ", ",
                     title);
    }
    const size_t column_axis = split_.back();
    const bool flat = split_.size() < 2;
    const size_t row_axis = flat ? column_axis : split_[split_.size() - 2];
    const auto columns = Drawn(parts_[column_axis]);
    const auto rows = flat ? Drawn(1) : Drawn(parts_[row_axis]);
    std::vector<std::vector<std::string>> cells;
    cells.push_back({flat ? "" : StrCat("axis ", row_axis)});
    for (const auto& column : columns) {
      cells[0].push_back(column ? RangeText(column_axis, *column) : "…");
    }
    for (const auto& row : rows) {
      auto& line = cells.emplace_back();
      line.push_back(flat ? "" : row ? RangeText(row_axis, *row) : "…");
      if (row && !flat) start[row_axis] = *row * extents_[row_axis];
      for (const auto& column : columns) {
        if (column) start[column_axis] = *column * extents_[column_axis];
        const auto holders = holders_.find(start);
        line.push_back(!row || !column || holders == holders_.end() ? "…"
                                                                    : IdsText(holders->second));
      }
    }
    return StrCat(title.empty() ? "" : StrCat("  ", title, "\n"), Grid(cells, column_axis));
  }

  static std::string Grid(const std::vector<std::vector<std::string>>& cells, size_t column_axis) {
    std::vector<size_t> widths(cells[0].size(), 1);
    for (const auto& line : cells) {
      for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], Width(line[i]));
    }
    const auto border = [&](const char* left, const char* middle, const char* right) {
      std::string text = StrCat("  ", std::string(widths[0], ' '), " ");
      for (size_t i = 1; i < widths.size(); ++i) {
        text += i == 1 ? left : middle;
        for (size_t k = 0; k < widths[i] + 2; ++k) text += "─";
      }
      return text + right + "\n";
    };
    std::string text;
    for (size_t i = 0; i < cells.size(); ++i) {
      text += StrCat("  ", Pad(cells[i][0], widths[0]), " ");
      for (size_t k = 1; k < cells[i].size(); ++k) {
        text += StrCat(i == 0 ? "  " : "│ ", Pad(cells[i][k], widths[k]), " ");
      }
      text += i == 0 ? StrCat("  axis ", column_axis, "\n") : "│\n";
      if (i == 0) text += border("┌", "┬", "┐");
      if (i > 0) text += i + 1 < cells.size() ? border("├", "┼", "┤") : border("└", "┴", "┘");
    }
    return text;
  }

  const std::span<const uint64_t> shape_;
  std::vector<uint64_t> extents_;                                  // of a slice
  std::vector<uint64_t> parts_;                                    // by axis
  std::vector<size_t> split_;                                      // axes of several parts
  std::map<std::vector<uint64_t>, std::vector<int64_t>> holders_;  // by where a slice starts
};

}  // namespace

std::optional<SavedSharding> ParseSharding(std::string_view text) {
  const Json json = Parse(text);
  if (TextAt(json, "sharding_type") != "NamedSharding") return std::nullopt;
  const Json* shape = Find(json, "shape");
  const Json* names = Find(json, "axis_names");
  const Json* spec = Find(json, "partition_spec");
  const Json* device_mesh = Find(json, "device_mesh");
  const Json* ids = device_mesh == nullptr ? nullptr : Find(*device_mesh, "mesh");
  if (shape == nullptr || names == nullptr || spec == nullptr || ids == nullptr ||
      !shape->is_array() || !names->is_array() || shape->size() != names->size()) {
    return std::nullopt;
  }
  SavedSharding sharding;
  for (size_t i = 0; i < shape->size(); ++i) {
    if (!(*shape)[i].is_number_unsigned() || !(*names)[i].is_string()) return std::nullopt;
    sharding.mesh.axes.push_back({(*names)[i].get<std::string>(), (*shape)[i].get<uint64_t>()});
  }
  if (!sharding.mesh.Check().ok() || !AddSpec(*spec, &sharding.spec) ||
      !AddDevices(*ids, shape->size(), &sharding.devices) ||
      sharding.devices.size() != sharding.mesh.device_count()) {
    return std::nullopt;
  }
  sharding.memory_kind = TextAt(json, "memory_kind");
  return sharding;
}

std::string ShardingText(std::span<const uint64_t> shape, std::string_view json) {
  const std::optional<SavedSharding> sharding = ParseSharding(json);
  if (!sharding) {
    const Json parsed = Parse(json);
    const std::string device = TextAt(parsed, "device_str");
    if (!device.empty()) return StrCat("on one device, ", Clean(device), "\n");
    return json.empty() ? "not sharded\n" : "a sharding that is not over a mesh\n";
  }
  const std::string memory =
      sharding->memory_kind.empty() ? "" : StrCat(", in ", sharding->memory_kind, " memory");
  const std::string where =
      Clean(StrCat("over ", sharding->mesh.ToText(), " as ", sharding->spec.ToText(), memory));
  const Status status = CheckShards(shape, sharding->mesh, sharding->spec);
  if (!status.ok()) return StrCat(where, ": ", Clean(status.message()), "\n");
  const Drawing drawing(shape, *sharding);
  if (drawing.slices() < 2) return StrCat(where, ": whole on ", IdsText(sharding->devices), "\n");
  return StrCat(where, ": ", drawing.slices(), " slices of ", ShapeText(drawing.extents()), "\n",
                drawing.ToText());
}

}  // namespace stepwell
