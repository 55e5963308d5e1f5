// SPDX-License-Identifier: Apache-2.0
// `stepwell export STORE STEP DEST`: a step as a checkpoint of Orbax, or as one file of arrays.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <climits>
#include <cstdlib>
#include <map>
#include <utility>

#include "api/cli/command.h"
#include "api/cli/interrupts.h"
#include "api/cli/output.h"
#include "api/cli/text.h"

namespace stepwell::cli {
namespace {

enum class Format : uint8_t { kOrbax, kSafetensors, kNpz };
const std::map<std::string, Format> kFormats = {
    {"orbax", Format::kOrbax}, {"safetensors", Format::kSafetensors}, {"npz", Format::kNpz}};
const std::map<std::string, ExportMode> kModes = {{"auto", ExportMode::kAuto},
                                                  {"link", ExportMode::kLink},
                                                  {"reflink", ExportMode::kReflink},
                                                  {"copy", ExportMode::kCopy}};
template <typename Value>
std::string NameOf(Value value, const std::map<std::string, Value>& names) {
  const auto is_it = [&](const auto& each) { return each.second == value; };
  return std::find_if(names.begin(), names.end(), is_it)->first;
}

struct ExportArguments : StoreArguments {
  std::string destination;
  Format to = Format::kOrbax;
  ExportOptions options;
  std::string file_mode;
};

Status ParseFileMode(const std::string& text, uint32_t* mode) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *mode, /*base=*/8);
  if (error == std::errc() && stop == end && *mode != 0 && *mode <= 0777) return OkStatus();
  return InvalidArgumentError(StrCat("--file-mode is octal, as 644, not \"", text, "\""));
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
Status CheckNoOrbaxOptions(const CLI::App& command) {
  for (const char* option : {"--mode", "--zarr", "--layout", "--leaves", "--step-prefix",
                             "--step-digits", "--file-mode", "--unnamed-default"}) {
    if (command.count(option) > 0) {
      return InvalidArgumentError(StrCat(option, " is for --to orbax"));
    }
  }
  return OkStatus();
}

Result<ExportReport> ExportTo(const ExportArguments& arguments, const CLI::App& command,
                              Store* store, uint64_t step) {
  Progress progress("exporting");
  const Interrupts interrupts;
  const auto show = [&](uint64_t done, uint64_t all) {
    if (all > 0) progress.Update(done, all);
    return !Interrupts::Received();
  };
  const std::string destination = Absolute(arguments.destination);
  if (arguments.to == Format::kOrbax) {
    ExportOptions options = arguments.options;
    options.progress = show;
    if (!arguments.file_mode.empty()) {
      STEPWELL_RETURN_IF_ERROR(ParseFileMode(arguments.file_mode, &options.file_mode));
    }
    return store->Export(step, destination, options, arguments.path);
  }
  STEPWELL_RETURN_IF_ERROR(CheckNoOrbaxOptions(command));
  const ArchiveOptions archive{
      .format = arguments.to == Format::kNpz ? ArchiveFormat::kNpz : ArchiveFormat::kSafetensors,
      .on_unsupported = arguments.options.on_unsupported,
      .progress = show};
  return store->ExportArchive(step, destination, archive, arguments.path);
}

Result<CommandResult> RunExport(const ExportArguments& arguments, const CLI::App& command,
                                Invocation* invocation) {
  STEPWELL_RETURN_IF_ERROR(CheckNoUrl(arguments.destination, "a path of this machine to write to",
                                      "`stepwell push` sends a step to a URL", invocation));
  STEPWELL_ASSIGN_OR_RETURN(auto store, OpenStore(arguments.store, /*read_only=*/true, invocation));
  STEPWELL_ASSIGN_OR_RETURN(const Step opened, ReadStep(&store, arguments.step));
  const uint64_t step = opened.info().step;
  STEPWELL_ASSIGN_OR_RETURN(const ExportReport report, ExportTo(arguments, command, &store, step));
  CommandResult outcome;
  if (invocation->json) {
    outcome.text = JsonText({{"schema", kJsonSchema},
                             {"store", arguments.store},
                             {"step", step},
                             {"path", report.path},
                             {"to", NameOf(arguments.to, kFormats)},
                             {"mode", NameOf(report.mode, kModes)},
                             {"leaves", report.leaves},
                             {"chunks", report.chunks},
                             {"step_bytes", report.step_bytes},
                             {"apparent_bytes", report.apparent_bytes},
                             {"written_bytes", report.written_bytes},
                             {"skipped", LeavesJson(report.skipped)},
                             {"widened", LeavesJson(report.widened)},
                             {"as_numpy", LeavesJson(report.as_numpy)},
                             {"as_text", LeavesJson(report.as_text)}});
    return outcome;
  }
  outcome.text = StrCat(
      "exported step ", step, " to ", Printable(report.path), " by ", NameOf(report.mode, kModes),
      ": ", Plural(report.leaves, "leaf", "leaves"), ", ", Plural(report.chunks, "chunk", "chunks"),
      " of ", HumanBytes(report.step_bytes), ", ", HumanBytes(report.written_bytes),
      " written; copied elsewhere it takes ", HumanBytes(report.apparent_bytes), "\n");
  AddLeaves("left out", report.skipped, &outcome.text);
  AddLeaves("widened", report.widened, &outcome.text);
  AddLeaves("as NumPy array", report.as_numpy, &outcome.text);
  AddLeaves("with a key as text", report.as_text, &outcome.text);
  return outcome;
}

}  // namespace

void AddExport(CLI::App* program, Invocation* invocation) {
  auto arguments = std::make_shared<ExportArguments>();
  CLI::App* command = AddCommand(program, invocation, "export",
                                 "make a step a checkpoint of Orbax, or a file of arrays", nullptr);
  command->callback(
      [=] { invocation->run = [=] { return RunExport(*arguments, *command, invocation); }; });
  AddStore(command, &arguments->store);
  AddStep(command, &arguments->step)->required();
  command
      ->add_option("DIR", arguments->destination,
                   "the checkpoint or file, which must not exist; with --layout v0 the root of a "
                   "CheckpointManager")
      ->required();
  AddChoice(command, "--to", &arguments->to, "FORMAT",
            "orbax (a directory that TensorStore reads, too), safetensors or npz (a file)",
            kFormats);
  AddChoice(command, "--mode", &arguments->options.mode, "MODE",
            "link (whole segments, at once), reflink, copy, or auto: the first that is possible",
            kModes);
  AddCheckpointOptions(command, &arguments->options);
  command->add_option("--path", arguments->path, "only what is at and below this path")
      ->type_name("PATH");
  command
      ->add_option("--file-mode", arguments->file_mode,
                   "permissions of its files, as 644, for readers under another user")
      ->type_name("MODE");
}

}  // namespace stepwell::cli
