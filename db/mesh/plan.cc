// SPDX-License-Identifier: Apache-2.0
#include "db/mesh/plan.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "db/read/restore_plan.h"
#include "format/piece.h"

namespace stepwell::db {
namespace {

using format::LeafKind;
using format::LeafRecord;

struct Leaf {
  const LeafRecord* record = nullptr;
  format::LeafKey key;
  const PartitionSpec* spec = nullptr;
};

// The records that a rule takes, its place and all below it.
Result<std::vector<size_t>> TakenBy(const SpecRule& rule, const StepTree& step) {
  STEPWELL_ASSIGN_OR_RETURN(const format::PathPattern path, format::PathPattern::Parse(rule.path));
  STEPWELL_ASSIGN_OR_RETURN(PathSelection selection, step.Resolve(path));
  if (selection.is_glob) return std::move(selection.numbers);
  const size_t place = selection.numbers.front();
  std::vector<size_t> taken;
  for (size_t n = place == StepTree::kRoot ? 0 : place; n < step.end(place); ++n) {
    taken.push_back(n);
  }
  return taken;
}

// The spec of each record.
Result<std::vector<const PartitionSpec*>> SpecsByRecord(std::span<const SpecRule> rules,
                                                        const StepTree& step) {
  static const PartitionSpec kReplicated;
  std::vector<const PartitionSpec*> specs(step.records().size(), nullptr);
  for (const SpecRule& rule : rules) {
    STEPWELL_ASSIGN_OR_RETURN(const std::vector<size_t> taken, TakenBy(rule, step));
    for (const size_t number : taken) {
      if (specs[number] == nullptr) specs[number] = &rule.spec;
    }
  }
  std::replace(specs.begin(), specs.end(), static_cast<const PartitionSpec*>(nullptr),
               &kReplicated);
  return specs;
}

LoadRequest RequestFor(const Leaf& leaf, const Mesh& mesh, uint64_t device) {
  Slice slice = ShardOf(leaf.record->shape, mesh, *leaf.spec, device);
  return {.leaf = leaf.record,
          .box = {std::move(slice.start), std::move(slice.stop)},
          .out = nullptr,
          .strides_bytes = {}};
}

uint64_t BytesOf(const LoadRequest& request) {
  if (request.leaf->kind != LeafKind::kArray) return request.leaf->logical_bytes;
  return format::ChunkBytes(format::Extents(request.box),
                            format::FindDType(request.leaf->dtype)->item_bytes);
}

Result<LoadPlan::Cost> CostFor(std::span<const LoadRequest> requests) {
  STEPWELL_ASSIGN_OR_RETURN(const PieceRequests split, SplitByPieces(requests));
  STEPWELL_ASSIGN_OR_RETURN(const RestorePlan plan, PlanRestore(split.requests));
  LoadPlan::Cost cost{.chunks = plan.chunks.size() + plan.deltas.size(),
                      .reads = plan.reads.size(),
                      .bytes_read = plan.bytes_read,
                      .bytes_needed = plan.bytes_needed};
  for (const LoadRequest& request : requests) cost.bytes_out += BytesOf(request);
  return cost;
}

// Devices that differ only along mesh axes that no spec names hold the same: the first of them.
class Classes {
 public:
  Classes(const Mesh& mesh, const std::vector<Leaf>& leaves) : mesh_(mesh) {
    std::set<std::string> named;
    for (const Leaf& leaf : leaves) {
      for (const auto& names : leaf.spec->axes) named.insert(names.begin(), names.end());
    }
    for (const MeshAxis& axis : mesh.axes) used_.push_back(named.count(axis.name) != 0);
  }
  uint64_t Of(uint64_t device) const {
    const std::vector<uint64_t> coordinates = mesh_.Coordinates(device);
    uint64_t first = 0;
    for (size_t i = 0; i < coordinates.size(); ++i) {
      first = first * mesh_.axes[i].size + (used_[i] ? coordinates[i] : 0);
    }
    return first;
  }

 private:
  const Mesh& mesh_;
  std::vector<bool> used_;  // by axis
};

Result<std::vector<Leaf>> MakeLeaves(std::span<const SpecRule> rules, const StepTree& step) {
  STEPWELL_ASSIGN_OR_RETURN(const auto specs, SpecsByRecord(rules, step));
  std::vector<Leaf> leaves;
  for (size_t number = 0; number < step.records().size(); ++number) {
    const LeafRecord& record = step.records()[number];
    if (record.kind == LeafKind::kNode) continue;
    STEPWELL_RETURN_IF_ERROR(CheckLeaf(record));
    STEPWELL_ASSIGN_OR_RETURN(format::LeafKey key, format::DecodeLeafKey(record.key));
    leaves.push_back({&record, std::move(key), specs[number]});
  }
  return leaves;
}

}  // namespace

Result<LoadPlan> PlanMesh(const StepTree& step, const Mesh& mesh, std::span<const SpecRule> rules) {
  STEPWELL_RETURN_IF_ERROR(mesh.Check());
  STEPWELL_ASSIGN_OR_RETURN(const std::vector<Leaf> leaves, MakeLeaves(rules, step));
  const Classes classes(mesh, leaves);
  LoadPlan plan;
  plan.mesh = mesh;
  std::map<uint64_t, std::vector<LoadRequest>> of_class;
  const uint64_t devices = mesh.device_count();
  for (uint64_t device = 0; device < devices; ++device) of_class[classes.Of(device)];
  std::vector<LoadRequest> all;
  for (const Leaf& leaf : leaves) {
    if (leaf.record->kind != LeafKind::kArray) {
      all.push_back({.leaf = leaf.record, .box = {}, .out = nullptr, .strides_bytes = {}});
      continue;
    }
    LoadPlan::Leaf& shown = plan.leaves.emplace_back();
    shown.item = leaf.key.item;
    shown.path = leaf.key.path;
    shown.dtype = leaf.record->dtype;
    shown.shape = leaf.record->shape;
    shown.spec = *leaf.spec;
    STEPWELL_RETURN_IF_ERROR(
        CheckShards(shown.shape, mesh, shown.spec).WithContext(shown.ToText()));
    std::set<std::vector<uint64_t>> starts;  // slices of one array differ in where they start
    for (auto& [device, requests] : of_class) {
      requests.push_back(RequestFor(leaf, mesh, device));
      if (starts.insert(requests.back().box.start).second) all.push_back(requests.back());
    }
    shown.slices = starts.size();
    shown.chunks = leaf.record->chunks.size();
  }
  STEPWELL_ASSIGN_OR_RETURN(plan.total, CostFor(all));
  std::map<uint64_t, LoadPlan::Cost> costs;
  for (const auto& [device, requests] : of_class) {
    STEPWELL_ASSIGN_OR_RETURN(costs[device], CostFor(requests));
  }
  for (uint64_t device = 0; device < devices; ++device) {
    plan.devices.push_back(costs[classes.Of(device)]);
  }
  return plan;
}

}  // namespace stepwell::db
