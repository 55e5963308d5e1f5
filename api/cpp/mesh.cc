// SPDX-License-Identifier: Apache-2.0
// Steps onto meshes.
#include <array>
#include <map>

#include "api/cpp/step.h"
#include "db/mesh/plan.h"
#include "io/bytes.h"
#ifdef STEPWELL_CUDA
#include "api/cpp/cuda.h"
#endif

namespace stepwell {
namespace {

Result<LoadStats> LoadIntoGpus(db::StepReader* reader, std::span<const db::LoadRequest> requests) {
#ifdef STEPWELL_CUDA
  return LoadIntoCuda(reader, requests);
#else
  (void)reader;
  return UnimplementedError(
      StrCat(requests.size(),
             " slices are to go into a GPU's memory, and this library was built "
             "without CUDA: configure it with -DSTEPWELL_CUDA=ON"));
#endif
}

}  // namespace

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
  std::array<std::vector<ReadRequest>, 2> requests;  // by MemoryKind
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
    requests[shard.memory == MemoryKind::kCuda].push_back(
        {.path = shard.path,
         .dtype = shard.dtype,
         .slice = ShardOf(leaf.shape, plan.mesh, leaf.spec, shard.device),
         .out = shard.out,
         .out_bytes = shard.out_bytes});
  }
  STEPWELL_ASSIGN_OR_RETURN(const auto host, Impl::ToEngine(*table, requests[0]));
  STEPWELL_ASSIGN_OR_RETURN(const auto gpus, Impl::ToEngine(*table, requests[1]));
  LoadStats stats;
  if (!gpus.empty()) {
    STEPWELL_ASSIGN_OR_RETURN(stats, LoadIntoGpus(impl_->reader.get(), gpus));
  }
  if (host.empty()) return stats;
  STEPWELL_ASSIGN_OR_RETURN(const LoadStats more, impl_->reader->Load(host));
  stats += more;
  return stats;
}

}  // namespace stepwell
