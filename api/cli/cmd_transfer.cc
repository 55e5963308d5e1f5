// SPDX-License-Identifier: Apache-2.0
// `stepwell push STORE STEP URL` and `stepwell pull URL STORE`: run by the Python package, whose
// libraries know object stores (obstore, fsspec). What is declared here is checked here; the rest
// is `python -m stepwell`.
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "api/cli/command.h"
#include "api/cli/output.h"
#include "api/cli/text.h"

namespace stepwell::cli {
namespace {

// Says what is missing; runs the package otherwise.
constexpr const char* kBootstrap = R"PY(
import json, sys
try:
    from stepwell.__main__ import run
except ImportError as error:
    text = (f"{sys.argv[1]} needs the Python package stepwell, which {sys.executable} cannot "
            f"import ({error}): install it there, or set STEPWELL_PYTHON to a Python that has it")
    if "--json" in sys.argv:
        failure = {"code": "error", "hint": None, "message": text}
        print(json.dumps({"error": failure, "schema": 1}, indent=2))
    else:
        print(f"stepwell: {text}", file=sys.stderr)
    sys.exit(1)
sys.exit(run(sys.argv[1:]))
)PY";

struct TransferArguments : StoreArguments {
  std::string url;
  std::vector<std::string> options;
  std::vector<std::string> items;
  std::string if_exists = "error";
  std::string work_dir;
  std::string layout = "v1";
  std::string leaves = "numpy";
  std::string on_unsupported = "error";
  bool unnamed_default = false;
  bool verify = false;
};

// Of a virtual environment that this program is in, or else the one of $PATH.
std::string Python() {
  const char* const chosen = std::getenv("STEPWELL_PYTHON");
  if (chosen != nullptr && *chosen != '\0') return chosen;
  std::string self(4096, '\0');
  const ssize_t length = readlink("/proc/self/exe", self.data(), self.size());
  if (length > 0) {
    self.resize(static_cast<size_t>(length));
    const std::string beside = self.substr(0, self.rfind('/')) + "/python3";
    if (access(beside.c_str(), X_OK) == 0) return beside;
  }
  return "python3";
}

// Does not return when it works.
Result<Outcome> RunPython(std::vector<std::string> words) {
  const std::string python = Python();
  words.insert(words.begin(), {python, "-c", kBootstrap});
  std::vector<char*> pointers;
  pointers.reserve(words.size() + 1);
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  execvp(python.c_str(), pointers.data());
  return FailedPreconditionError(StrCat("push and pull need Python with the package stepwell; ",
                                        python, ": ", std::strerror(errno),
                                        ". STEPWELL_PYTHON says which Python to use"));
}

void AddCommon(const TransferArguments& arguments, bool json, std::vector<std::string>* words) {
  words->insert(words->end(), {"--if-exists", arguments.if_exists});
  for (const std::string& option : arguments.options) words->push_back("--option=" + option);
  if (!arguments.work_dir.empty()) words->push_back("--work-dir=" + arguments.work_dir);
  if (json) words->emplace_back("--json");
}

Result<Outcome> RunPush(const TransferArguments& arguments, bool json) {
  std::vector<std::string> words = {"push"};
  AddCommon(arguments, json, &words);
  words.insert(words.end(), {"--layout", arguments.layout, "--leaves", arguments.leaves,
                             "--on-unsupported", arguments.on_unsupported});
  if (arguments.unnamed_default) words.emplace_back("--unnamed-default");
  if (arguments.verify) words.emplace_back("--verify");
  words.insert(words.end(), {"--", arguments.store, arguments.step, arguments.url});
  return RunPython(std::move(words));
}

Result<Outcome> RunPull(const TransferArguments& arguments, bool json) {
  std::vector<std::string> words = {"pull"};
  AddCommon(arguments, json, &words);
  if (!arguments.step.empty()) {
    STEPWELL_RETURN_IF_ERROR(ParseStep(arguments.step).status());
    words.insert(words.end(), {"--step", arguments.step});
  }
  for (const std::string& item : arguments.items) words.push_back("--item=" + item);
  words.insert(words.end(), {"--", arguments.url, arguments.store});
  return RunPython(std::move(words));
}

CLI::Option* AddChoice(CLI::App* command, const char* name, std::string* value, const char* type,
                       std::vector<std::string> choices, const char* what) {
  return command->add_option(name, *value, what)
      ->type_name(type)
      ->check(CLI::IsMember(std::move(choices)));
}

void AddUrl(CLI::App* command, std::string* url) {
  command->add_option("URL", *url, "s3://bucket/run1/900, gs://..., az://..., or a directory")
      ->required();
}

void AddShared(CLI::App* command, const std::shared_ptr<TransferArguments>& arguments) {
  command
      ->add_option("--option", arguments->options,
                   "for the library that opens the URL, such as region=eu-west-1; credentials are "
                   "taken from the environment, too")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command
      ->add_option("--work-dir", arguments->work_dir,
                   "where to put what is on its way; default: beside the store")
      ->type_name("DIR");
}

}  // namespace

void AddPush(CLI::App* program, Invocation* invocation) {
  auto arguments = std::make_shared<TransferArguments>();
  CLI::App* command =
      AddCommand(program, invocation, "push",
                 "copy a step to an object store, as an Orbax checkpoint with checksums",
                 [=] { return RunPush(*arguments, invocation->json); });
  AddStore(command, &arguments->store);
  AddStep(command, &arguments->step)->required();
  AddUrl(command, &arguments->url);
  AddShared(command, arguments);
  AddChoice(command, "--if-exists", &arguments->if_exists, "WHAT", {"error", "replace", "skip"},
            "what to do about a step that was pushed there: error, replace or skip");
  AddChoice(command, "--layout", &arguments->layout, "v0|v1", {"v0", "v1"},
            "of which of Orbax's interfaces; default v1");
  AddChoice(command, "--leaves", &arguments->leaves, "TYPE", {"numpy", "jax"},
            "numpy (loads anywhere) or jax (those that were, with their shardings)");
  AddChoice(command, "--on-unsupported", &arguments->on_unsupported, "WHAT",
            {"error", "skip", "widen"}, "what Orbax cannot hold: error, skip, or widen");
  command->add_flag("--unnamed-default", arguments->unnamed_default,
                    "v0: call a single item \"default\", as managers without item names expect");
  command->add_flag("--verify", arguments->verify, "read everything back before it counts");
}

void AddPull(CLI::App* program, Invocation* invocation) {
  auto arguments = std::make_shared<TransferArguments>();
  CLI::App* command =
      AddCommand(program, invocation, "pull", "save a step that push copied to an object store",
                 [=] { return RunPull(*arguments, invocation->json); });
  AddUrl(command, &arguments->url);
  AddStore(command, &arguments->store);
  AddShared(command, arguments);
  command->add_option("--step", arguments->step, "the step that it becomes; default: as it was")
      ->type_name("NUMBER");
  command->add_option("--item", arguments->items, "only this item; may be given more than once")
      ->type_name("NAME")
      ->allow_extra_args(false);
  AddChoice(command, "--if-exists", &arguments->if_exists, "WHAT", {"error", "replace", "skip"},
            "what to do about a step that is there: error, replace or skip");
}

}  // namespace stepwell::cli
