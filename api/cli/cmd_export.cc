// SPDX-License-Identifier: Apache-2.0
// `stepwell export STORE STEP DEST`: a step as a checkpoint of Orbax, or as one file of arrays.
#include <unistd.h>

#include <array>
#include <charconv>
#include <climits>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "api/cli/command.h"
#include "api/cli/interrupts.h"
#include "api/cli/output.h"
#include "api/cli/text.h"

namespace stepwell::cli {
namespace {

struct ExportArguments : StoreArguments {
  std::string destination;
  std::string to = "orbax";
  std::string mode = "auto";
  std::string layout = "v1";
  std::string leaves = "numpy";
  std::string on_unsupported = "error";
  std::string zarr = "3";
  std::string step_prefix;
  std::string step_digits = "0";
  std::string file_mode;
  bool unnamed_default = false;
};

template <typename Value, size_t kCount>
using Choices = std::array<std::pair<std::string_view, Value>, kCount>;

constexpr Choices<ExportMode, 4> kModes = {{{"auto", ExportMode::kAuto},
                                            {"link", ExportMode::kLink},
                                            {"reflink", ExportMode::kReflink},
                                            {"copy", ExportMode::kCopy}}};
constexpr Choices<ExportLayout, 2> kLayouts = {
    {{"v1", ExportLayout::kV1}, {"v0", ExportLayout::kV0}}};
constexpr Choices<ExportLeaves, 2> kLeaves = {
    {{"numpy", ExportLeaves::kNumpy}, {"jax", ExportLeaves::kJax}}};
constexpr Choices<OnUnsupported, 3> kUnsupported = {{{"error", OnUnsupported::kError},
                                                     {"skip", OnUnsupported::kSkip},
                                                     {"widen", OnUnsupported::kWiden}}};
// None: Orbax.
constexpr Choices<std::optional<ArchiveFormat>, 3> kTo = {
    {{"orbax", std::nullopt},
     {"safetensors", ArchiveFormat::kSafetensors},
     {"npz", ArchiveFormat::kNpz}}};
constexpr Choices<int, 2> kZarr = {{{"3", 3}, {"2", 2}}};

template <typename Value, size_t kCount>
Status Choose(const char* option, const std::string& text, const Choices<Value, kCount>& choices,
              Value* out) {
  std::string known;
  for (const auto& [name, value] : choices) {
    if (name == text) {
      *out = value;
      return OkStatus();
    }
    known += StrCat(known.empty() ? "" : ", ", name);
  }
  return InvalidArgumentError(StrCat(option, " is one of ", known, ", not \"", text, "\""));
}

Result<ExportOptions> OptionsOf(const ExportArguments& arguments) {
  ExportOptions options;
  STEPWELL_RETURN_IF_ERROR(Choose("--mode", arguments.mode, kModes, &options.mode));
  STEPWELL_RETURN_IF_ERROR(Choose("--layout", arguments.layout, kLayouts, &options.layout));
  STEPWELL_RETURN_IF_ERROR(Choose("--leaves", arguments.leaves, kLeaves, &options.leaves));
  STEPWELL_RETURN_IF_ERROR(
      Choose("--on-unsupported", arguments.on_unsupported, kUnsupported, &options.on_unsupported));
  STEPWELL_RETURN_IF_ERROR(Choose("--zarr", arguments.zarr, kZarr, &options.zarr_format));
  STEPWELL_ASSIGN_OR_RETURN(const uint64_t digits, ParseStep(arguments.step_digits));
  if (digits > 20) return InvalidArgumentError("--step-digits is at most 20");
  options.step_digits = static_cast<int>(digits);
  if (!arguments.file_mode.empty()) {
    const char* const end = arguments.file_mode.data() + arguments.file_mode.size();
    const auto [stop, error] =
        std::from_chars(arguments.file_mode.data(), end, options.file_mode, /*base=*/8);
    if (error != std::errc() || stop != end || options.file_mode == 0 || options.file_mode > 0777) {
      return InvalidArgumentError(
          StrCat("--file-mode is octal, as 644, not \"", arguments.file_mode, "\""));
    }
  }
  options.step_prefix = arguments.step_prefix;
  options.unnamed_default = arguments.unnamed_default;
  return options;
}

const char* ModeName(ExportMode mode) {
  for (const auto& [name, value] : kModes) {
    if (value == mode) return name.data();
  }
  return "?";
}

Json LeavesJson(const std::vector<ExportReport::Leaf>& leaves) {
  Json list = Json::array();
  for (const auto& leaf : leaves) list.push_back({{"path", leaf.path}, {"reason", leaf.reason}});
  return list;
}

void AddLeaves(const char* what, const std::vector<ExportReport::Leaf>& leaves, std::string* text) {
  for (const auto& leaf : leaves) {
    *text += StrCat(what, " ", Printable(leaf.path), ": ", Printable(leaf.reason), "\n");
  }
}

std::string Absolute(const std::string& path) {
  if (path.empty() || path.front() == '/') return path;
  std::array<char, PATH_MAX> here{};
  return getcwd(here.data(), here.size()) == nullptr ? path : StrCat(here.data(), "/", path);
}

// kInvalidArgument when one of the options is given that are about Orbax alone.
Status CheckNoOrbaxOptions(const ExportArguments& arguments) {
  const ExportArguments unset;
  for (const auto& [option, given] :
       {std::pair("--mode", arguments.mode != unset.mode),
        std::pair("--zarr", arguments.zarr != unset.zarr),
        std::pair("--layout", arguments.layout != unset.layout),
        std::pair("--leaves", arguments.leaves != unset.leaves),
        std::pair("--step-prefix", arguments.step_prefix != unset.step_prefix),
        std::pair("--step-digits", arguments.step_digits != unset.step_digits),
        std::pair("--file-mode", !arguments.file_mode.empty()),
        std::pair("--unnamed-default", arguments.unnamed_default)}) {
    if (given) return InvalidArgumentError(StrCat(option, " is for --to orbax"));
  }
  return OkStatus();
}

Result<ExportReport> ExportTo(std::optional<ArchiveFormat> format, const ExportArguments& arguments,
                              Store* store, uint64_t step) {
  Progress progress("exporting");
  const Interrupts interrupts;
  const auto show = [&](uint64_t done, uint64_t all) {
    if (all > 0) progress.Update(done, all);
    return !Interrupts::Noted();
  };
  STEPWELL_ASSIGN_OR_RETURN(ExportOptions options, OptionsOf(arguments));
  const std::string destination = Absolute(arguments.destination);
  if (!format) {
    options.progress = show;
    return store->Export(step, destination, options, arguments.path);
  }
  STEPWELL_RETURN_IF_ERROR(CheckNoOrbaxOptions(arguments));
  const ArchiveOptions archive{
      .format = *format, .on_unsupported = options.on_unsupported, .progress = show};
  return store->ExportArchive(step, destination, archive, arguments.path);
}

Result<Outcome> RunExport(const ExportArguments& arguments, Invocation* invocation) {
  std::optional<ArchiveFormat> format;
  STEPWELL_RETURN_IF_ERROR(Choose("--to", arguments.to, kTo, &format));
  STEPWELL_ASSIGN_OR_RETURN(auto store,
                            OpenStore(Absolute(arguments.store), /*read_only=*/true, invocation));
  STEPWELL_ASSIGN_OR_RETURN(const Step opened, ReadStep(&store, arguments.step));
  const uint64_t step = opened.info().step;
  STEPWELL_ASSIGN_OR_RETURN(const ExportReport report, ExportTo(format, arguments, &store, step));
  Outcome outcome;
  if (invocation->json) {
    outcome.text = JsonText({{"schema", kJsonSchema},
                             {"store", arguments.store},
                             {"step", step},
                             {"path", report.path},
                             {"to", arguments.to},
                             {"mode", ModeName(report.mode)},
                             {"leaves", report.leaves},
                             {"chunks", report.chunks},
                             {"step_bytes", report.step_bytes},
                             {"apparent_bytes", report.apparent_bytes},
                             {"written_bytes", report.written_bytes},
                             {"skipped", LeavesJson(report.skipped)},
                             {"widened", LeavesJson(report.widened)},
                             {"as_numpy", LeavesJson(report.as_numpy)}});
    return outcome;
  }
  outcome.text = StrCat(
      "exported step ", step, " to ", Printable(report.path), " by ", ModeName(report.mode), ": ",
      Plural(report.leaves, "leaf", "leaves"), ", ", Plural(report.chunks, "chunk", "chunks"),
      " of ", HumanBytes(report.step_bytes), ", ", HumanBytes(report.written_bytes),
      " written; copied elsewhere it takes ", HumanBytes(report.apparent_bytes), "\n");
  AddLeaves("left out", report.skipped, &outcome.text);
  AddLeaves("widened", report.widened, &outcome.text);
  AddLeaves("as NumPy array", report.as_numpy, &outcome.text);
  return outcome;
}

}  // namespace

void AddExport(CLI::App* program, Invocation* invocation) {
  auto arguments = std::make_shared<ExportArguments>();
  CLI::App* command = AddCommand(program, invocation, "export",
                                 "make a step a checkpoint of Orbax, or a file of arrays",
                                 [=] { return RunExport(*arguments, invocation); });
  AddStore(command, &arguments->store);
  AddStep(command, &arguments->step)->required();
  command
      ->add_option("DIR", arguments->destination,
                   "the checkpoint or file, which must not exist; with --layout v0 the root of a "
                   "CheckpointManager")
      ->required();
  const auto option = [&](const char* name, std::string* value, const char* type,
                          const char* what) {
    command->add_option(name, *value, what)->type_name(type);
  };
  option("--to", &arguments->to, "FORMAT",
         "orbax (a directory that TensorStore reads, too), safetensors or npz (a file)");
  option("--mode", &arguments->mode, "MODE",
         "link (whole segments, at once), reflink, copy, or auto: the first that is possible");
  option("--zarr", &arguments->zarr, "2|3", "the version of zarr (3: readers check every chunk)");
  option("--path", &arguments->path, "PATH", "only what is at and below this path");
  option("--layout", &arguments->layout, "v0|v1", "of which of Orbax's interfaces; default v1");
  option("--leaves", &arguments->leaves, "TYPE",
         "numpy (loads anywhere) or jax (those that were, with their shardings)");
  option("--on-unsupported", &arguments->on_unsupported, "WHAT",
         "what the format cannot hold: error, skip, or widen");
  option("--step-prefix", &arguments->step_prefix, "NAME", "v0: ckpt makes ckpt_7");
  option("--step-digits", &arguments->step_digits, "N", "v0: zeros in front of the step's number");
  option("--file-mode", &arguments->file_mode, "MODE",
         "permissions of its files, as 644, for readers under another user");
  command->add_flag("--unnamed-default", arguments->unnamed_default,
                    "v0: call a single item \"default\", as managers without item names expect");
}

}  // namespace stepwell::cli
