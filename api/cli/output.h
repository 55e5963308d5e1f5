// SPDX-License-Identifier: Apache-2.0
// stdout and stderr: JSON documents, errors, progress. Data goes to stdout and nothing else does.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include <stepwell/status.h>

#include "api/cli/command.h"

namespace stepwell::cli {

using Json = nlohmann::json;  // keys come out sorted

// One document and a newline. Bytes that are not UTF-8 come out as U+FFFD.
std::string JsonText(const Json& document);
// Text that the store holds as JSON; null when it is empty, the text itself when it does not parse.
Json ParsedJson(const std::string& text);

inline constexpr const char* kUsageHint =
    "`stepwell --help` shows the commands, `stepwell COMMAND --help` one of them";
// The same of one command.
std::string UsageHint(const std::string& command);

ExitCode ExitCodeOf(const Status& status);
// Returns advice for the user, or "". `opened` says that the store itself could be opened.
std::string HintFor(const Status& status, bool opened, const std::string& command);

// Writes all of `text` to stdout. A closed pipe is a reader that has seen enough: OK.
Status WriteStdout(const std::string& text);
// The error for people on stderr, or as the one JSON document on stdout.
void ReportError(const Status& status, const std::string& hint, bool json);
void Warn(const std::string& message);

// One line on a terminal's stderr that is written over; nothing elsewhere.
class Progress {
 public:
  explicit Progress(std::string what);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void Update(uint64_t bytes_done, uint64_t bytes_all);
  // Counts in any unit: "45% of 200 steps".
  void Update(uint64_t done, uint64_t all, const std::string& all_text);
  bool enabled() const { return enabled_; }

 private:
  const std::string what_;
  const bool enabled_;
  std::chrono::steady_clock::time_point shown_at_;
  bool shown_ = false;
};

// Bold, red, …: only on a terminal, and not where NO_COLOR is set.
std::string Emphasize(const std::string& text, const char* ansi_code);

}  // namespace stepwell::cli
