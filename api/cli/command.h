// SPDX-License-Identifier: Apache-2.0
// What every command of the program shares: its options, its outcome, its exit codes.
#pragma once

#include <memory>
#include <string>

#include "db/store.h"
#include "io/result.h"

namespace stepwell::cli {

// Documented in --help and in api/README.md: scripts depend on them.
enum class ExitCode : int {
  kOk = 0,
  kError = 1,
  kUsage = 2,
  kNotFound = 3,
  kCorruption = 4,
  kLocked = 5,
  kNoSpace = 6,
};

// Version of the JSON documents that --json prints.
inline constexpr int kJsonSchema = 1;

struct Options {
  std::string store;
  std::string step;  // decimal, "latest", or empty
  std::string path;
  bool json = false;
  bool full = false;  // cat: every element
};

// What a command has to say: all of stdout, and how it ended.
struct Outcome {
  std::string text;
  ExitCode exit = ExitCode::kOk;
};

Result<Outcome> RunLs(db::Store* store, const Options& options);
Result<Outcome> RunShow(db::Store* store, const Options& options);
Result<Outcome> RunCat(db::Store* store, const Options& options);
Result<Outcome> RunVerify(db::Store* store, const Options& options);

// The step that `text` names ("latest", empty: the newest).
Result<std::shared_ptr<db::StepReader>> ReadStep(db::Store* store, const std::string& text);
// kInvalidArgument unless `text` is a decimal step number.
Result<uint64_t> ParseStep(const std::string& text);

}  // namespace stepwell::cli
