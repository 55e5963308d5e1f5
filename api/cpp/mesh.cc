// SPDX-License-Identifier: Apache-2.0
// Steps onto meshes.
#include <map>

#include "api/cpp/step.h"
#include "db/mesh/plan.h"
#include "io/bytes.h"

namespace stepwell {

Result<LoadPlan> Step::PlanLoad(const Mesh& mesh, const std::vector<SpecRule>& rules) const {
  STEPWELL_ASSIGN_OR_RETURN(const auto table, impl_->Table());
  return db::PlanMesh(table->tree(), mesh, rules);
}

Result<LoadStats> Step::ReadShards(const LoadPlan& plan,
                                   std::span<const ShardMemory> shards) const {
  STEPWELL_ASSIGN_OR_RETURN(const auto table, impl_->Table());
  std::map<std::string, const LoadPlan::Leaf*> planned;  // by the engine's key
  for (const LoadPlan::Leaf& leaf : plan.leaves) {
    STEPWELL_ASSIGN_OR_RETURN(std::string key, format::EncodeLeafKey(leaf.item, leaf.path));
    planned.emplace(std::move(key), &leaf);
  }
  std::vector<ReadRequest> requests;
  for (const ShardMemory& shard : shards) {
    STEPWELL_ASSIGN_OR_RETURN(const format::LeafRecord* record, table->FindLeaf(shard.path));
    const auto found = planned.find(record->key);
    if (found == planned.end()) {
      return InvalidArgumentError("this leaf is not in the plan, which has the step's arrays")
          .WithContext(shard.path.ToText());
    }
    const LoadPlan::Leaf& leaf = *found->second;
    if (leaf.shape != record->shape) {
      return InvalidArgumentError("the plan is of another step").WithContext(shard.path.ToText());
    }
    if (shard.device >= plan.mesh.device_count()) {
      return InvalidArgumentError(StrCat("no device ", shard.device, " in the mesh ",
                                         plan.mesh.ToText(), " of ", plan.mesh.device_count()))
          .WithContext(shard.path.ToText());
    }
    STEPWELL_RETURN_IF_ERROR(
        CheckShards(leaf.shape, plan.mesh, leaf.spec).WithContext(shard.path.ToText()));
    requests.push_back({.path = shard.path,
                        .dtype = shard.dtype,
                        .slice = ShardOf(leaf.shape, plan.mesh, leaf.spec, shard.device),
                        .out = shard.out,
                        .out_bytes = shard.out_bytes});
  }
  STEPWELL_ASSIGN_OR_RETURN(const auto loads, Impl::ToEngine(*table, requests));
  return impl_->reader->Load(loads);
}

}  // namespace stepwell
