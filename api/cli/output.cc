// SPDX-License-Identifier: Apache-2.0
#include "api/cli/output.h"

#include <stepwell/metrics.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string_view>

#include "api/cli/text.h"

namespace stepwell::cli {
namespace {

constexpr std::chrono::milliseconds kProgressInterval{100};

bool Terminal(int descriptor) {
  const char* term = std::getenv("TERM");
  return isatty(descriptor) == 1 && (term == nullptr || std::strcmp(term, "dumb") != 0);
}

// The lines of a message, each printable, under one another: a list of reasons stays one.
std::string MessageLines(const std::string& message) {
  std::string text;
  std::istringstream lines(message);
  for (std::string line; std::getline(lines, line);) {
    text += StrCat(text.empty() ? "" : "\n", Printable(line));
  }
  return text;
}

// Names of the codes in JSON; stable, unlike the messages.
std::string JsonCode(const Status& status) {
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
      return "usage";
    case StatusCode::kNotFound:
      return "not_found";
    case StatusCode::kPermissionDenied:
      return "permission_denied";
    case StatusCode::kResourceExhausted:
      return "no_space";
    case StatusCode::kUnimplemented:
      return "format";
    case StatusCode::kUnavailable:
      return "locked";
    case StatusCode::kDataLoss:
      return "corruption";
    case StatusCode::kOutcomeUnknown:
      return "outcome_unknown";
    case StatusCode::kIoError:
      return "io_error";
    case StatusCode::kCancelled:
      return "cancelled";
    default:
      return "error";
  }
}

}  // namespace

std::string JsonText(const Json& document) {
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Json ParsedJson(const std::string& text) {
  if (text.empty()) return nullptr;
  Json parsed = Json::parse(StrictJson(text), nullptr, /*allow_exceptions=*/false);
  return parsed.is_discarded() ? Json(text) : parsed;
}

ExitCode ExitCodeOf(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return ExitCode::kOk;
    case StatusCode::kInvalidArgument:
      return ExitCode::kUsage;
    case StatusCode::kNotFound:
      return ExitCode::kNotFound;
    case StatusCode::kDataLoss:
      return ExitCode::kCorruption;
    case StatusCode::kUnavailable:
      return ExitCode::kLocked;
    case StatusCode::kResourceExhausted:
      return ExitCode::kNoSpace;
    case StatusCode::kOutcomeUnknown:
      return ExitCode::kOutcomeUnknown;
    default:
      return ExitCode::kError;
  }
}

std::string UsageHint(const std::string& command) {
  return StrCat("`stepwell ", command, " --help` has its options and an example");
}

std::string HintFor(const Status& status, bool opened, const std::string& command) {
  if (status.code() == StatusCode::kResourceExhausted) {
    return "nothing that was saved is lost; `stepwell rm` and `stepwell reclaim` free the space of "
           "steps, also where the store's own disk is full";
  }
  if (!opened && status.code() == StatusCode::kUnavailable) {
    return "what only reads works beside it; `stepwell help` says which commands do not";
  }
  if (!opened) return "";
  switch (status.code()) {
    case StatusCode::kDataLoss:
      return "`stepwell verify STORE` lists every damaged leaf; the others still load";
    case StatusCode::kInvalidArgument:
      return UsageHint(command);
    case StatusCode::kNotFound:
      return "`stepwell ls STORE` lists the steps, `stepwell show STORE STEP` the paths of one";
    default:
      return "";
  }
}

Status WriteStdout(const std::string& text) {
  std::string_view rest = text;
  while (!rest.empty()) {
    const ssize_t written = write(STDOUT_FILENO, rest.data(), rest.size());
    if (written >= 0) {
      rest.remove_prefix(static_cast<size_t>(written));
    } else if (errno == EPIPE) {
      return OkStatus();
    } else if (errno != EINTR) {
      return ErrnoStatus(errno, "write to standard output");
    }
  }
  return OkStatus();
}

void ReportError(const Status& status, const std::string& hint, bool json) {
  if (json) {
    Json error = {{"code", JsonCode(status)}, {"message", status.message()}, {"hint", nullptr}};
    if (!hint.empty()) error["hint"] = hint;
    WriteStdout(JsonText({{"schema", kJsonSchema}, {"error", error}}))
        .IgnoreError("nowhere else to say it; the exit status tells");
    return;
  }
  std::fprintf(stderr, "stepwell: %s\n", MessageLines(status.message()).c_str());
  if (!hint.empty()) std::fprintf(stderr, "  hint: %s\n", hint.c_str());
}

void Warn(const std::string& message) {
  std::fprintf(stderr, "stepwell: %s\n", MessageLines(message).c_str());
}

Progress::Progress(std::string what) : what_(std::move(what)), enabled_(Terminal(STDERR_FILENO)) {}

Progress::~Progress() {
  if (shown_) std::fputs("\r\x1b[K", stderr);
}

void Progress::Update(uint64_t bytes_done, uint64_t bytes_all) {
  Update(bytes_done, bytes_all, HumanBytes(bytes_all));
}

void Progress::Update(uint64_t done, uint64_t all, const std::string& all_text) {
  if (!enabled_) return;
  const auto now = std::chrono::steady_clock::now();
  if (shown_ && now - shown_at_ < kProgressInterval) return;
  shown_ = true;
  shown_at_ = now;
  const double percent =
      all == 0 ? 100.0 : 100.0 * static_cast<double>(done) / static_cast<double>(all);
  std::fprintf(stderr, "\r\x1b[K%s: %.0f%% of %s", what_.c_str(), percent, all_text.c_str());
}

std::string Emphasize(const std::string& text, const char* ansi_code) {
  const char* no_color = std::getenv("NO_COLOR");
  if (!Terminal(STDOUT_FILENO) || (no_color != nullptr && *no_color != '\0')) return text;
  return StrCat("\x1b[", ansi_code, "m", text, "\x1b[0m");
}

}  // namespace stepwell::cli
