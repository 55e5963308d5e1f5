// SPDX-License-Identifier: Apache-2.0
// The program's own parsing: whole command lines (one argument a line) run in this process on a
// small store, paths, and values of every type as text and JSON. What is printed is thrown away.
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <set>

#include "api/cli/command.h"
#include "api/cli/output.h"
#include "api/cli/program.h"
#include "api/cli/text.h"
#include "api/cli/values.h"
#include "api/cpp/core.h"
#include "fuzz/support/check.h"
#include "fuzz/support/input.h"
#include "fuzz/support/memory.h"
#include "fuzz/support/stores.h"

namespace stepwell::fuzz {
namespace {

// Commands read one store, `s` in the working directory; every argument is a name below it.
class Workplace {
 public:
  Workplace() {
    std::string name = (std::filesystem::temp_directory_path() / "stepwell-fuzz-XXXXXX").string();
    Check(mkdtemp(name.data()) != nullptr, "cannot make ", name);
    path_ = name;
    const BaseStore& base = BaseStores()[0];
    for (const auto& [file, size] : base.world->Files()) {
      if (file.ends_with("/BALLAST")) continue;
      const std::string to = path_ + "/s" + file.substr(kStorePath.size());
      std::filesystem::create_directories(std::filesystem::path(to).parent_path());
      const int descriptor = open(to.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
      const std::string bytes = base.world->Contents(file).value_or("");
      Check(write(descriptor, bytes.data(), size) == static_cast<ssize_t>(size), "writing ", to);
      close(descriptor);
    }
    home_ = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    quiet_ = open("/dev/null", O_WRONLY | O_CLOEXEC);
  }
  ~Workplace() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  // Runs one command line in there, with its output thrown away.
  int Run(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "stepwell");
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    Check(chdir(path_.c_str()) == 0, "chdir");
    int kept[2];
    for (int i = 0; i < 2; ++i) {
      kept[i] = fcntl(i + 1, F_DUPFD_CLOEXEC, 3);
      dup2(quiet_, i + 1);
    }
    const int status = cli::Main(static_cast<int>(arguments.size()), argv.data());
    std::fflush(stdout);
    for (int i = 0; i < 2; ++i) {
      dup2(kept[i], i + 1);
      close(kept[i]);
    }
    Check(fchdir(home_) == 0, "fchdir");
    return status;
  }

 private:
  std::string path_;
  int quiet_ = -1;
  int home_ = -1;
};

const Workplace& TheWorkplace() {
  static const Workplace workplace;
  return workplace;
}

// Nothing outside of the working directory is named, and the store is only read.
bool IsTame(const std::vector<std::string>& arguments) {
  static const std::set<std::string> reading = {"ls", "show", "verify"};
  bool command = false;
  for (const std::string& argument : arguments) {
    // Options of one letter may be joined with others and with what they name.
    const bool option = argument.starts_with('-');
    if (argument.starts_with('/') || (option && argument.find('/') != std::string::npos) ||
        argument.find("..") != std::string::npos || argument.find('\0') != std::string::npos) {
      return false;
    }
    if (!argument.empty() && argument[0] != '-' && !command) {
      command = true;
      if (argument.size() > 2 && std::isalpha(argument[0]) != 0 && !reading.contains(argument)) {
        return false;  // commands that write are not for here
      }
    }
  }
  return true;
}

void CommandLine(Input* input) {
  std::vector<std::string> arguments;
  std::string_view left = input->rest_text();
  while (!left.empty() && arguments.size() < 12) {
    const size_t end = std::min(left.find('\n'), left.size());
    arguments.emplace_back(left.substr(0, end));
    left.remove_prefix(std::min(end + 1, left.size()));
  }
  if (!IsTame(arguments)) return;
  const int status = TheWorkplace().Run(std::move(arguments));
  Check(status >= 0 && status <= 6, "exit status ", status);
}

void Paths(Input* input) {
  const std::string text(input->rest_text());
  (void)cli::ParseStep(text);
  (void)cli::Printable(text);
  (void)cli::ParsedJson(text);
  (void)Path(text).ToComponents();
  const std::string path = text.substr(0, text.find('\0'));
  const int status = TheWorkplace().Run({"show", "--", "s", "30", path});
  Check(status == 0 || status == 2 || status == 3, "exit status ", status, " of show");
}

void Values(Input* input) {
  const auto type = static_cast<format::ValueType>(input->Below(12));
  const auto value = DecodeValue(type, std::string(input->rest_text()));
  if (!value.ok()) return;
  (void)cli::ValueText(*value);
  (void)cli::JsonText(cli::ValueJson(*value));
}

}  // namespace
}  // namespace stepwell::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stepwell::fuzz;
  TheWorkplace();
  Input input(data, size);
  const uint64_t mode = input.Below(3);
  const MemoryLimit limit(size, {size_t{64} << 20, 64}, {size_t{512} << 20, 4096});
  if (mode == 0) CommandLine(&input);
  if (mode == 1) Paths(&input);
  if (mode == 2) Values(&input);
  return 0;
}
