// SPDX-License-Identifier: Apache-2.0
// What a LoadPlan looks like to people.
#include <algorithm>
#include <array>
#include <cstdio>

#include <stepwell/mesh.h>

#include "io/bytes.h"

namespace stepwell {
namespace {

constexpr size_t kDevicesShownMax = 32;
constexpr size_t kLeavesShownMax = 1000;

using Rows = std::vector<std::vector<std::string>>;

size_t Width(const std::string& text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }));
}

// The first `left` columns set left, the others right.
std::string Table(const Rows& rows, size_t left) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()), 0);
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], Width(row[i]));
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - Width(row[i]), ' ');
      line += StrCat(i == 0 ? "" : "  ", i < left ? row[i] + padding : padding + row[i]);
    }
    line.resize(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string Bytes(uint64_t bytes) {
  if (bytes < 1024) return StrCat(bytes, " B");
  static constexpr std::array<const char*, 6> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  while (value >= 1023.95 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  std::array<char, 32> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "%.1f %s", value, kUnits[unit]);
  return buffer.data();
}

std::string Array(const LoadPlan::Leaf& leaf) {
  const DTypeInfo* dtype = FindDType(leaf.dtype);
  std::string text = dtype == nullptr ? "?" : std::string(dtype->name);
  for (size_t i = 0; i < leaf.shape.size(); ++i) {
    text += StrCat(i == 0 ? "[" : ", ", leaf.shape[i]);
  }
  return text + (leaf.shape.empty() ? "[]" : "]");
}

std::vector<std::string> CostCells(const LoadPlan::Cost& cost) {
  return {std::to_string(cost.chunks), std::to_string(cost.reads), Bytes(cost.bytes_read),
          Bytes(cost.bytes_needed), Bytes(cost.bytes_out)};
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
  std::string text = Table(rows, 3);
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
  return StrCat(text, "\n", Table(rows, 2));
}

}  // namespace stepwell
