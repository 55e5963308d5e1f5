// SPDX-License-Identifier: Apache-2.0
#include "api/cli/command.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <regex>
#include <set>
#include <system_error>
#include <utility>

#include <stepwell/checkpoint.h>

#include "api/cli/output.h"
#include "api/cli/text.h"

namespace stepwell::cli {

CLI::App* AddCommand(CLI::App* program, Invocation* invocation, const std::string& name,
                     const std::string& what, std::function<Result<CommandResult>()> run) {
  CLI::App* command = program->add_subcommand(name, what);
  command->add_flag("--json", invocation->json, "print one JSON document");
  command->callback([invocation, run = std::move(run)] { invocation->run = run; });
  return command;
}

void AddStore(CLI::App* command, std::string* store) {
  command->add_option("STORE", *store, "the store's directory")->required();
}

CLI::Option* AddStep(CLI::App* command, std::string* step) {
  return command->add_option("STEP", *step, "a number, or latest");
}

CLI::Option* AddSteps(CLI::App* command, std::vector<std::string>* steps) {
  return command
      ->add_option("STEP", *steps, "numbers, ranges as 100-200 (both ends too), or latest")
      ->required();
}

CLI::Option* AddPath(CLI::App* command, std::string* path) {
  return command->add_option("PATH", *path, "only what is at and below this path");
}

void AddCheckpointOptions(CLI::App* command, ExportOptions* options) {
  AddChoice(command, "--zarr", &options->zarr_format, "2|3",
            "the version of zarr (3: readers check every chunk)", {{"2", 2}, {"3", 3}});
  AddChoice(command, "--layout", &options->layout, "v0|v1",
            "of which of Orbax's interfaces; default v1",
            {{"v0", ExportLayout::kV0}, {"v1", ExportLayout::kV1}});
  AddChoice(command, "--leaves", &options->leaves, "TYPE",
            "numpy (loads anywhere) or jax (those that were, with their shardings)",
            {{"numpy", ExportLeaves::kNumpy}, {"jax", ExportLeaves::kJax}});
  AddChoice(command, "--on-unsupported", &options->on_unsupported, "WHAT",
            "what the format cannot hold: error (mirror: the step is not shown), skip, or widen",
            {{"error", OnUnsupported::kError},
             {"skip", OnUnsupported::kSkip},
             {"widen", OnUnsupported::kWiden}});
  command->add_option("--step-prefix", options->step_prefix, "v0: ckpt makes ckpt_7")
      ->type_name("NAME");
  command
      ->add_option("--step-digits", options->step_digits, "v0: zeros in front of the step's number")
      ->type_name("N")
      ->check(CLI::Range(0, 20).description(""));
  command->add_flag("--unnamed-default", options->unnamed_default,
                    "v0: call a single item \"default\", as managers without item names expect");
}

void WarnOf(LogLevel level, std::string_view message) {
  if (level >= LogLevel::kWarning) Warn(std::string(message));
}

namespace {

// What to do instead with a pushed run.
std::string HintOfRun(bool reads) {
  return reads ? "of a pushed run `stepwell ls URL` lists the steps, `stepwell cat URL STEP PATH` "
                 "prints arrays, and `stepwell pull URL STORE` saves a step in a store"
               : "change the step in the store that it was pushed from, and push it again with "
                 "--if-exists replace; `stepwell rm URL STEP` deletes a step of a run";
}

}  // namespace

Status CheckNoUrl(const std::string& path, std::string_view takes, const std::string& hint,
                  Invocation* invocation) {
  static const std::regex kUrl("[A-Za-z][A-Za-z0-9+.-]*://.*");
  static const std::regex kOneSlash(
      "((gs|gcs|s3|s3a|az|azure|abfss?|adl|r2|hdfs|https?|memory):)/.*|file:/.*");
  std::smatch match;
  if (std::regex_match(path, kUrl)) {
    invocation->hint = hint;
    return InvalidArgumentError(
        StrCat("a URL was given; `stepwell ", invocation->command, "` takes ", takes));
  }
  if (std::regex_match(path, match, kOneSlash)) {
    return InvalidArgumentError(
        StrCat("\"", path.substr(0, path.find('/') + 1), "\" has one slash, a URL has two: ",
               path.substr(0, path.find('/')), path.starts_with("file:") ? "///" : "//", "..."));
  }
  return OkStatus();
}

namespace {

Result<Store> Open(const std::string& path, OpenOptions options, Invocation* invocation) {
  STEPWELL_RETURN_IF_ERROR(CheckNoUrl(path, "a store, which is a directory of this machine",
                                      HintOfRun(options.read_only), invocation));
  options.untrusted = invocation->untrusted;
  options.discard = invocation->discard;
  options.log = WarnOf;
  const bool read_only = options.read_only;
  Result<Store> store = Store::Open(path, options);
  const StatusCode code = store.status().code();
  if (store.status().os_error() == 0 &&
      (code == StatusCode::kNotFound || code == StatusCode::kUnimplemented)) {
    std::error_code unreadable;
    const bool is_run = std::filesystem::exists(path + "/stepwell-run.json", unreadable);
    invocation->hint =
        is_run ? StrCat("it is a pushed run, whose URL is file:///...; ", HintOfRun(read_only))
               : "a store is the directory into which a training saved with Stepwell";
  }
  invocation->opened = store.ok();
  return store;
}

}  // namespace

Result<Store> OpenStore(const std::string& path, bool read_only, Invocation* invocation,
                        bool create) {
  OpenOptions options;
  options.read_only = read_only;
  options.create = create;
  if (read_only) {
    const std::vector<std::string> within = StoresWithin(path);
    if (within.size() == 1) return Open(within[0], std::move(options), invocation);
  }
  return Open(path, std::move(options), invocation);
}

Result<Store> OpenToChange(const std::string& path, Invocation* invocation) {
  OpenOptions options;
  options.create = false;
  options.through_writer = true;
  return Open(path, std::move(options), invocation);
}

Result<uint64_t> ParseStep(const std::string& text) {
  uint64_t step = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), step);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size() ||
      step > static_cast<uint64_t>(INT64_MAX)) {
    return InvalidArgumentError(
        StrCat("STEP must be a number from 0 to 2^63-1 or \"latest\", not \"", text, "\""));
  }
  return step;
}

Result<Step> ReadStep(Store* store, const std::string& text) {
  if (text.empty() || text == "latest") return store->ReadLatest();
  STEPWELL_ASSIGN_OR_RETURN(const uint64_t step, ParseStep(text));
  return store->Read(step);
}

Result<std::vector<uint64_t>> StepNumbers(Store* store, const std::vector<std::string>& texts) {
  std::set<uint64_t> numbers;
  for (const std::string& text : texts) {
    if (const size_t dash = text.find('-'); dash != std::string::npos && dash > 0) {
      STEPWELL_ASSIGN_OR_RETURN(const uint64_t first, ParseStep(text.substr(0, dash)));
      STEPWELL_ASSIGN_OR_RETURN(const uint64_t last, ParseStep(text.substr(dash + 1)));
      if (last < first) {
        return InvalidArgumentError(StrCat("the range ", text, " ends before it begins"));
      }
      STEPWELL_ASSIGN_OR_RETURN(const auto steps, store->Steps());
      bool any = false;
      for (const StepInfo& each : steps) {
        if (each.step < first || each.step > last) continue;
        numbers.insert(each.step);
        any = true;
      }
      if (!any) {
        return NotFoundError(StrCat(store->path(), " has no step from ", first, " to ", last));
      }
    } else if (text == "latest") {
      STEPWELL_ASSIGN_OR_RETURN(const Step newest, store->ReadLatest());
      numbers.insert(newest.info().step);
    } else {
      const Result<uint64_t> step = ParseStep(text);
      if (!step.ok()) {
        return InvalidArgumentError(step.status().message() + "; ranges are written as 100-200");
      }
      numbers.insert(*step);
    }
  }
  return std::vector<uint64_t>(numbers.begin(), numbers.end());
}

}  // namespace stepwell::cli
