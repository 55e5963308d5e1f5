// SPDX-License-Identifier: Apache-2.0
#include "api/cli/python.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include <stepwell/checkpoint.h>
#include <stepwell/text.h>

namespace stepwell::cli {
namespace {

// Says what is missing; runs the package otherwise. What fails is often something that the package
// imports, and not always with an ImportError: the first error of all says what it is.
constexpr const char* kBootstrap = R"PY(
import json, sys
try:
    from stepwell.__main__ import run
except (Exception, KeyboardInterrupt) as error:
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    text = (f"{sys.argv[1]} needs the Python package stepwell, which {sys.executable} (Python "
            f"{'.'.join(map(str, sys.version_info[:3]))}) cannot import ({reason}): install it "
            "there, or set STEPWELL_PYTHON to a Python that has it")
    code, status = "error", 1
    if isinstance(error, KeyboardInterrupt):
        text, code, status = "interrupted; the same again goes on where it was", "cancelled", 130
    if "--json" in sys.argv:
        failure = {"code": code, "hint": None, "message": text}
        print(json.dumps({"error": failure, "schema": 1}, indent=2))
    else:
        print(f"stepwell: {text}", file=sys.stderr)
    sys.exit(status)
sys.exit(run(sys.argv[1:]))
)PY";

// Returns the Python of the virtual environment that this program is in, or else the one on $PATH.
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

}  // namespace

std::string StoreWithin(const std::string& path) {
  const std::vector<std::string> within = StoresWithin(path);
  return within.size() == 1 ? within[0] : path;
}

Result<CommandResult> RunPython(std::vector<std::string> words) {
  const std::string python = Python();
  words.insert(words.begin(), {python, "-c", kBootstrap});
  std::vector<char*> pointers;
  pointers.reserve(words.size() + 1);
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  execvp(python.c_str(), pointers.data());
  return FailedPreconditionError(StrCat("this needs Python with the package stepwell; ", python,
                                        ": ", std::strerror(errno),
                                        ". STEPWELL_PYTHON says which Python to use"));
}

}  // namespace stepwell::cli
