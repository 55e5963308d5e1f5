// SPDX-License-Identifier: Apache-2.0
// `stepwell explain STORE STEP --mesh AXES --spec RULE`: what loading a step onto a mesh takes.
#include "api/cli/command.h"
#include "api/cli/output.h"
#include "api/cli/text.h"
#include "api/cli/tree.h"
#include "api/cli/values.h"

namespace stepwell::cli {
namespace {

struct ExplainArguments : StoreArguments {
  std::string mesh;
  std::vector<std::string> specs;
  bool slices = false;
};

// "params/**=(model,data)": a path, which may have "=" in it, and behind the last "=" a spec.
Result<SpecRule> ParseRule(const std::string& text) {
  const size_t equals = text.rfind('=');
  if (equals == std::string::npos) {
    return InvalidArgumentError(
        StrCat("--spec is written like 'params/**=(model,data)', a path or glob and a spec, not \"",
               text, "\""));
  }
  STEPWELL_ASSIGN_OR_RETURN(PartitionSpec spec, PartitionSpec::Parse(text.substr(equals + 1)));
  return SpecRule{text.substr(0, equals), std::move(spec)};
}

Json CostJson(const LoadPlan::Cost& cost) {
  return {{"chunks", cost.chunks},
          {"reads", cost.reads},
          {"bytes_read", cost.bytes_read},
          {"bytes_needed", cost.bytes_needed},
          {"bytes_out", cost.bytes_out}};
}

// [[start, stop] of each axis] of each device.
Json SlicesJson(const LoadPlan& plan, const LoadPlan::Leaf& leaf) {
  Json devices = Json::array();
  for (uint64_t device = 0; device < plan.devices.size(); ++device) {
    const Slice slice = ShardOf(leaf.shape, plan.mesh, leaf.spec, device);
    Json axes = Json::array();
    for (size_t axis = 0; axis < leaf.shape.size(); ++axis) {
      axes.push_back({slice.start[axis], slice.stop[axis]});
    }
    devices.push_back(std::move(axes));
  }
  return devices;
}

Json PlanJson(const LoadPlan& plan, bool slices) {
  Json mesh = Json::array();
  for (const MeshAxis& axis : plan.mesh.axes) {
    mesh.push_back({{"name", axis.name}, {"size", axis.size}});
  }
  Json arrays = Json::array();
  for (const LoadPlan::Leaf& leaf : plan.leaves) {
    Json spec = Json::array();
    for (const auto& names : leaf.spec.axes) spec.push_back(names);
    Json array = {{"path", leaf.ToText()},          {"item", leaf.item},
                  {"dtype", DTypeName(leaf.dtype)}, {"shape", leaf.shape},
                  {"spec", std::move(spec)},        {"slices", leaf.slices},
                  {"chunks", leaf.chunks}};
    if (slices) array["devices"] = SlicesJson(plan, leaf);
    arrays.push_back(std::move(array));
  }
  Json devices = Json::array();
  for (uint64_t device = 0; device < plan.devices.size(); ++device) {
    Json json = CostJson(plan.devices[device]);
    json["device"] = device;
    json["at"] = plan.mesh.Coordinates(device);
    devices.push_back(std::move(json));
  }
  return {{"schema", kJsonSchema},
          {"mesh", std::move(mesh)},
          {"arrays", std::move(arrays)},
          {"devices", std::move(devices)},
          {"total", CostJson(plan.total)}};
}

Result<CommandResult> RunExplain(const ExplainArguments& arguments, Invocation* invocation) {
  STEPWELL_ASSIGN_OR_RETURN(const Mesh mesh, Mesh::Parse(arguments.mesh));
  std::vector<SpecRule> rules;
  for (const std::string& text : arguments.specs) {
    STEPWELL_ASSIGN_OR_RETURN(SpecRule rule, ParseRule(text));
    rules.push_back(std::move(rule));
  }
  STEPWELL_ASSIGN_OR_RETURN(auto store, OpenStore(arguments.store, /*read_only=*/true, invocation));
  STEPWELL_ASSIGN_OR_RETURN(const Step step, ReadStep(&store, arguments.step));
  STEPWELL_ASSIGN_OR_RETURN(const LoadPlan plan, step.PlanLoad(mesh, rules));
  CommandResult outcome;
  if (invocation->json) {
    Json json = PlanJson(plan, arguments.slices);
    json["store"] = arguments.store;
    json["step"] = step.info().step;
    outcome.text = JsonText(json);
    return outcome;
  }
  outcome.text = StrCat("step ", step.info().step, " onto the mesh ", mesh.ToText(), ", ",
                        Plural(mesh.device_count(), "device", "devices"), "\n\n", plan.ToText());
  return outcome;
}

}  // namespace

void AddExplain(CLI::App* program, Invocation* invocation) {
  auto arguments = std::make_shared<ExplainArguments>();
  CLI::App* command =
      AddCommand(program, invocation, "explain", "print what loading a step onto a mesh takes",
                 [=] { return RunExplain(*arguments, invocation); });
  AddStore(command, &arguments->store);
  AddStep(command, &arguments->step);
  command
      ->add_option("--mesh", arguments->mesh,
                   "axes and their numbers of devices, like data=2,model=4")
      ->type_name("AXES")
      ->required();
  command
      ->add_option("--spec", arguments->specs,
                   "how the arrays at a path or glob are split, like 'params/**=(model,None)'; may "
                   "be given again, the first that takes an array counts, others are replicated")
      ->type_name("RULE")
      ->allow_extra_args(false);
  command->add_flag("--slices", arguments->slices, "with --json: each device's slice, too");
}

}  // namespace stepwell::cli
