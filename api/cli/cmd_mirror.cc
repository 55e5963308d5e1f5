// SPDX-License-Identifier: Apache-2.0
// `stepwell mirror STORE DIR`: the steps as checkpoints of Orbax, while the store goes on.
#include <algorithm>
#include <chrono>
#include <thread>

#include "api/cli/command.h"
#include "api/cli/interrupts.h"
#include "api/cli/output.h"
#include "api/cli/text.h"

namespace stepwell::cli {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kSlice{100};  // between two looks for Ctrl-C
constexpr double kIntervalMaxSeconds = 3600;

struct MirrorArguments : StoreArguments {
  std::string directory;
  ViewOptions options;
  double interval_seconds = 0.2;
  bool once = false;
  bool keep = false;
};

Json StatsJson(const std::string& store, const ViewStats& stats) {
  return {{"schema", kJsonSchema},  {"store", store},
          {"path", stats.path},     {"shown", stats.shown},
          {"held", stats.held},     {"not_shown", stats.not_shown},
          {"made", stats.made},     {"removed", stats.removed},
          {"errors", stats.errors}, {"last_error", stats.last_error}};
}

// Until everything that is committed now is shown. kCancelled: Ctrl-C.
Status CatchUp(View* view, uint64_t steps) {
  Progress progress("showing");
  const auto keep_waiting = [&] {
    const ViewStats stats = view->Stats();  // the end of a look counts the shown steps
    const uint64_t shown = std::min(std::max(stats.shown, stats.made), steps);
    progress.Update(shown, steps, Plural(steps, "step", "steps"));
    return !Interrupts::Received();
  };
  STEPWELL_ASSIGN_OR_RETURN(const bool current,
                            view->WaitUntilCurrent(milliseconds::max(), keep_waiting));
  return current ? OkStatus() : CancelledError("interrupted");
}

Status Follow(const MirrorArguments& arguments, View* view, bool json) {
  if (!json) {
    STEPWELL_RETURN_IF_ERROR(WriteStdout(
        StrCat(Printable(view->path()), " shows ", Plural(view->Stats().shown, "step", "steps"),
               " of ", Printable(arguments.store), " and follows it; Ctrl-C ends that\n")));
  }
  while (!Interrupts::Received()) {
    if (!view->Stats().following) return NotFoundError(view->Stats().last_error);
    std::this_thread::sleep_for(kSlice);
  }
  return OkStatus();
}

Result<CommandResult> RunMirror(const MirrorArguments& arguments, Invocation* invocation) {
  ViewOptions options = arguments.options;
  if (!(arguments.interval_seconds > 0 && arguments.interval_seconds <= kIntervalMaxSeconds)) {
    return InvalidArgumentError("--interval is a number of seconds above 0, at most an hour");
  }
  options.poll =
      std::chrono::ceil<milliseconds>(std::chrono::duration<double>(arguments.interval_seconds));
  options.log = WarnOf;
  STEPWELL_ASSIGN_OR_RETURN(auto store, OpenStore(arguments.store, /*read_only=*/true, invocation));
  const Interrupts interrupts;
  STEPWELL_ASSIGN_OR_RETURN(const auto view, store.OpenView(arguments.directory, options));
  STEPWELL_ASSIGN_OR_RETURN(const auto steps, store.Steps());
  Status status = CatchUp(view.get(), steps.size());
  if (status.ok() && !arguments.once) status = Follow(arguments, view.get(), invocation->json);
  const uint64_t shown = view->Stats().shown;
  const bool keep = arguments.once || arguments.keep;
  if (Interrupts::Received()) view->StopMaking();
  STEPWELL_RETURN_IF_ERROR(view->Close(keep));
  STEPWELL_RETURN_IF_ERROR(status);
  const ViewStats stats = view->Stats();
  CommandResult outcome;
  if (invocation->json) {
    outcome.text = JsonText(StatsJson(arguments.store, stats));
    return outcome;
  }
  const std::string path = Printable(stats.path);
  if (keep) {
    outcome.text = StrCat(path, " shows ", Plural(stats.shown, "step", "steps"),
                          "; steps that are deleted from now on stay there\n");
  } else {
    outcome.text = StrCat(path, ": ", Plural(shown, "step", "steps"), " taken away\n");
  }
  if (stats.not_shown > 0) {
    outcome.text += StrCat(Plural(stats.not_shown, "step", "steps"),
                           " not shown: ", Printable(stats.last_error), "\n");
  }
  return outcome;
}

}  // namespace

void AddMirror(CLI::App* program, Invocation* invocation) {
  auto arguments = std::make_shared<MirrorArguments>();
  CLI::App* command =
      AddCommand(program, invocation, "mirror",
                 "show the steps as checkpoints of Orbax while the store goes on, until Ctrl-C",
                 [=] { return RunMirror(*arguments, invocation); });
  AddStore(command, &arguments->store);
  command
      ->add_option("DIR", arguments->directory,
                   "gets a directory a step, which shares the store's data where it can: absent, "
                   "empty, or an earlier mirror of this store")
      ->required();
  command->add_flag("--once", arguments->once,
                    "end when everything is shown, and leave the directory as it is then");
  command->add_flag("--keep", arguments->keep,
                    "leave the directory as it is at the end, too, for a store at rest");
  ExportOptions* checkpoint = &arguments->options.checkpoint;
  AddCheckpointOptions(command, checkpoint);
  command->add_option("--item", checkpoint->items, "only this item; may be given again")
      ->type_name("NAME")
      ->allow_extra_args(false);
  command
      ->add_option("--interval", arguments->interval_seconds,
                   "how often the store is looked at; default 0.2")
      ->type_name("SECONDS");
}

}  // namespace stepwell::cli
