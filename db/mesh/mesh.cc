// SPDX-License-Identifier: Apache-2.0
#include <stepwell/mesh.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "db/mesh/sharding.h"
#include "io/bytes.h"

namespace stepwell {
namespace {

constexpr std::string_view kBlanks = " \t";

std::string_view Trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

// Cuts at commas that stand in no parentheses. A comma behind the last part, as Python has it in
// (x,), begins no other. False where parentheses do not match.
bool SplitList(std::string_view text, std::vector<std::string_view>* parts) {
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    const char c = i < text.size() ? text[i] : ',';
    if (c == '(') ++depth;
    if (c == ')' && --depth < 0) return false;
    if (c != ',' || depth > 0) continue;
    const std::string_view part = Trim(text.substr(begin, i - begin));
    if (!part.empty() || i < text.size()) parts->push_back(part);
    begin = i + 1;
  }
  return depth == 0;
}

// Takes off one pair of parentheses around all; false when there is none.
bool Unwrap(std::string_view* text) {
  if (text->size() < 2 || text->front() != '(' || text->back() != ')') return false;
  *text = text->substr(1, text->size() - 2);
  return true;
}

bool IsName(std::string_view text) {
  return !text.empty() && text != "None" && text.find_first_of("(),= \t'\"") == text.npos;
}

constexpr size_t kDevicesShownMax = 32;
constexpr size_t kLeavesShownMax = 1000;

using Rows = std::vector<std::vector<std::string>>;

std::string Array(const LoadPlan::Leaf& leaf) {
  const DTypeInfo* dtype = FindDType(leaf.dtype);
  std::string text = dtype == nullptr ? "?" : std::string(dtype->name);
  for (size_t i = 0; i < leaf.shape.size(); ++i) {
    text += StrCat(i == 0 ? "[" : ", ", leaf.shape[i]);
  }
  return text + (leaf.shape.empty() ? "[]" : "]");
}

std::vector<std::string> CostCells(const LoadPlan::Cost& cost) {
  return {std::to_string(cost.chunks), std::to_string(cost.reads), HumanBytes(cost.bytes_read),
          HumanBytes(cost.bytes_needed), HumanBytes(cost.bytes_out)};
}

void AddRow(std::vector<std::string> cells, const LoadPlan::Cost& cost, Rows* rows) {
  for (std::string& cell : CostCells(cost)) cells.push_back(std::move(cell));
  rows->push_back(std::move(cells));
}

// The size of a mesh axis that is known to be there.
uint64_t SizeOf(const Mesh& mesh, const std::string& name) {
  for (const MeshAxis& axis : mesh.axes) {
    if (axis.name == name) return axis.size;
  }
  return 0;
}

std::string SizesText(const Mesh& mesh, const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    text += StrCat(text.empty() ? "" : " and ", name, "=", SizeOf(mesh, name));
  }
  return text;
}

Status CheckSpec(const Mesh& mesh, const PartitionSpec& spec) {
  std::set<std::string> used;
  for (const auto& names : spec.axes) {
    for (const std::string& name : names) {
      if (SizeOf(mesh, name) == 0) {
        return InvalidArgumentError(StrCat("spec ", spec.ToText(), " names mesh axis \"", name,
                                           "\"; the mesh has ", mesh.ToText()));
      }
      if (!used.insert(name).second) {
        return InvalidArgumentError(
            StrCat("spec ", spec.ToText(), " names mesh axis \"", name, "\" twice"));
      }
    }
  }
  return OkStatus();
}

}  // namespace

uint64_t PartsOf(const Mesh& mesh, const std::vector<std::string>& names) {
  uint64_t parts = 1;
  for (const std::string& name : names) parts *= SizeOf(mesh, name);
  return parts;
}

// ---- meshes -------------------------------------------------------------------------------------

Result<Mesh> Mesh::Parse(std::string_view text) {
  Mesh mesh;
  std::vector<std::string_view> parts;
  SplitList(text, &parts);
  for (const std::string_view part : parts) {
    const size_t equals = part.find('=');
    const std::string_view name = Trim(part.substr(0, equals));
    const std::string_view size =
        equals == part.npos ? std::string_view() : Trim(part.substr(equals + 1));
    MeshAxis& axis = mesh.axes.emplace_back();
    axis.name = name;
    const auto parsed = std::from_chars(size.data(), size.data() + size.size(), axis.size);
    if (!IsName(name) || size.empty() || parsed.ec != std::errc() ||
        parsed.ptr != size.data() + size.size()) {
      return InvalidArgumentError(StrCat(
          "a mesh is written like \"data=2,model=4\", axes with their numbers of devices, not \"",
          text, "\""));
    }
  }
  STEPWELL_RETURN_IF_ERROR(mesh.Check());
  return mesh;
}

std::string Mesh::ToText() const {
  std::string text;
  for (const MeshAxis& axis : axes) {
    text += StrCat(text.empty() ? "" : ", ", axis.name, "=", axis.size);
  }
  return text.empty() ? "no axes" : text;
}

Status Mesh::Check() const {
  std::set<std::string> names;
  uint64_t count = 1;
  for (const MeshAxis& axis : axes) {
    if (axis.name.empty()) return InvalidArgumentError("a mesh axis has no name");
    if (axis.size == 0) return InvalidArgumentError(StrCat("mesh axis ", axis.name, " is empty"));
    if (!names.insert(axis.name).second) {
      return InvalidArgumentError(StrCat("the mesh has two axes \"", axis.name, "\""));
    }
    if (__builtin_mul_overflow(count, axis.size, &count) || count > kDevicesMax) {
      return InvalidArgumentError(
          StrCat("the mesh ", ToText(), " has over ", kDevicesMax, " devices"));
    }
  }
  return OkStatus();
}

uint64_t Mesh::device_count() const {
  uint64_t count = 1;
  for (const MeshAxis& axis : axes) count *= axis.size;
  return count;
}

std::vector<uint64_t> Mesh::Coordinates(uint64_t device) const {
  std::vector<uint64_t> coordinates(axes.size());
  for (size_t i = axes.size(); i-- > 0;) {
    coordinates[i] = device % axes[i].size;
    device /= axes[i].size;
  }
  return coordinates;
}

// ---- specs --------------------------------------------------------------------------------------

Result<PartitionSpec> PartitionSpec::Parse(std::string_view text) {
  const auto bad = [&] {
    return InvalidArgumentError(
        StrCat("a spec is written like \"(model, None)\" or \"((data, model), None)\", for each "
               "array axis the mesh axes, not \"",
               text, "\""));
  };
  PartitionSpec spec;
  std::string_view inner = Trim(text);
  if (inner.empty()) return bad();
  if (!Unwrap(&inner) && inner.find(',') != inner.npos) return bad();
  std::vector<std::string_view> entries;
  if (!SplitList(inner, &entries)) return bad();
  for (std::string_view entry : entries) {
    std::vector<std::string>& names = spec.axes.emplace_back();
    if (entry == "None") continue;
    std::vector<std::string_view> parts = {entry};
    if (Unwrap(&entry)) {
      parts.clear();
      if (!SplitList(entry, &parts)) return bad();
    }
    for (const std::string_view part : parts) {
      if (!IsName(part)) return bad();
      names.emplace_back(part);
    }
  }
  return spec;
}

std::string PartitionSpec::ToText() const {
  std::string text;
  for (const auto& names : axes) {
    if (!text.empty()) text += ", ";
    if (names.empty()) text += "None";
    if (names.size() == 1) text += names.front();
    if (names.size() < 2) continue;
    for (size_t i = 0; i < names.size(); ++i) text += StrCat(i == 0 ? "(" : ", ", names[i]);
    text += ")";
  }
  return StrCat("(", text, ")");
}

// ---- shards -------------------------------------------------------------------------------------

Status CheckShards(std::span<const uint64_t> shape, const Mesh& mesh, const PartitionSpec& spec) {
  STEPWELL_RETURN_IF_ERROR(mesh.Check());
  STEPWELL_RETURN_IF_ERROR(CheckSpec(mesh, spec));
  if (spec.axes.size() > shape.size()) {
    return InvalidArgumentError(StrCat("spec ", spec.ToText(), " is of ",
                                       Counted(spec.axes.size(), "axis", "axes"),
                                       ", and the array has ", shape.size()));
  }
  for (size_t axis = 0; axis < spec.axes.size(); ++axis) {
    const uint64_t parts = PartsOf(mesh, spec.axes[axis]);
    // Never 0 in a mesh that was checked: NOLINTNEXTLINE(clang-analyzer-core.DivideZero)
    if (shape[axis] % parts == 0) continue;
    return InvalidArgumentError(StrCat("axis ", axis, " of ", shape[axis], " cannot be split into ",
                                       parts, " equal parts as spec ", spec.ToText(), " over ",
                                       SizesText(mesh, spec.axes[axis]), " asks"));
  }
  return OkStatus();
}

Slice ShardOf(std::span<const uint64_t> shape, const Mesh& mesh, const PartitionSpec& spec,
              uint64_t device) {
  const std::vector<uint64_t> coordinates = mesh.Coordinates(device);
  Slice slice{std::vector<uint64_t>(shape.size(), 0), {shape.begin(), shape.end()}};
  for (size_t axis = 0; axis < spec.axes.size(); ++axis) {
    uint64_t parts = 1;
    uint64_t part = 0;
    for (const std::string& name : spec.axes[axis]) {  // major to minor
      for (size_t i = 0; i < mesh.axes.size(); ++i) {
        if (mesh.axes[i].name != name) continue;
        parts *= mesh.axes[i].size;
        part = part * mesh.axes[i].size + coordinates[i];
      }
    }
    const uint64_t extent = shape[axis] / parts;
    slice.start[axis] = part * extent;
    slice.stop[axis] = slice.start[axis] + extent;
  }
  return slice;
}

Result<std::vector<Slice>> Shards(std::span<const uint64_t> shape, const Mesh& mesh,
                                  const PartitionSpec& spec) {
  STEPWELL_RETURN_IF_ERROR(CheckShards(shape, mesh, spec));
  std::vector<Slice> slices;
  const uint64_t devices = mesh.device_count();
  slices.reserve(devices);
  for (uint64_t device = 0; device < devices; ++device) {
    slices.push_back(ShardOf(shape, mesh, spec, device));
  }
  return slices;
}

// ---- plans as text ------------------------------------------------------------------------------

std::string LoadPlan::Leaf::ToText() const {
  const std::string below = PathToText(path);
  if (item == "state") return below;
  const std::string name = PathToText({PathComponent::Key(item)});
  return below.empty() ? name : StrCat(name, "/", below);
}

std::string LoadPlan::ToText() const {
  Rows rows = {{"ARRAY", "TYPE", "SPEC", "SLICES", "CHUNKS"}};
  for (const Leaf& leaf : leaves) {
    if (rows.size() > kLeavesShownMax) break;
    rows.push_back({leaf.ToText(), Array(leaf), leaf.spec.ToText(), std::to_string(leaf.slices),
                    std::to_string(leaf.chunks)});
  }
  std::string text = Table(rows, {false, false, false});
  if (leaves.size() > kLeavesShownMax) {
    text += StrCat("… and ", leaves.size() - kLeavesShownMax, " more\n");
  }
  rows = {{"DEVICE", "AT", "CHUNKS", "READS", "READ", "NEEDED", "MEMORY"}};
  for (size_t i = 0; i < devices.size() && i < kDevicesShownMax; ++i) {
    std::string where;
    const std::vector<uint64_t> at = mesh.Coordinates(i);
    for (size_t axis = 0; axis < at.size(); ++axis) {
      where += StrCat(axis == 0 ? "" : ",", mesh.axes[axis].name, "=", at[axis]);
    }
    AddRow({std::to_string(i), where}, devices[i], &rows);
  }
  if (devices.size() > kDevicesShownMax) {
    rows.push_back({"…", StrCat("and ", devices.size() - kDevicesShownMax, " more")});
  }
  AddRow({"all", "at once"}, total, &rows);
  return StrCat(text, "\n", Table(rows, {false, false}));
}

}  // namespace stepwell
