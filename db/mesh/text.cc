// SPDX-License-Identifier: Apache-2.0
// What a LoadPlan looks like to people.
#include <algorithm>

#include <stepwell/mesh.h>
#include <stepwell/text.h>

namespace stepwell {
namespace {

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

}  // namespace

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
