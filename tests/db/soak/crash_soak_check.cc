// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <filesystem>

#include "db/export/orbax/digests.h"
#include "tests/db/soak/crash_soak.h"
#include "tests/db/support/big_state.h"
#include "tests/db/support/export_support.h"

namespace stepwell::db::soak {

namespace {

constexpr int kLooksMax = 1000;

// One look; false: what is live changed meanwhile.
Result<bool> ReadOnce(Store* store, State* found, uint64_t* steps_checked) {
  STEPWELL_ASSIGN_OR_RETURN(const auto steps, store->Steps());
  for (const format::StepRecord& step : steps) {
    STEPWELL_ASSIGN_OR_RETURN(const auto reader, store->Read(step.step));
    if (reader->step().commit != step.commit) return false;
    const std::string& text = reader->step().metadata_json;  // {"seed": N}
    if (text.size() < 10) return InternalError("metadata " + text);
    const uint64_t seed = std::stoull(text.substr(9));
    STEPWELL_RETURN_IF_ERROR(CheckSeeded(reader.get(), seed, KillState(step.step)));
    (*found)[step.step] = {seed, step.pinned};
    ++*steps_checked;
  }
  return true;
}

}  // namespace

Status ReadState(Store* store, State* found, uint64_t* steps_checked) {
  // Writes of a killed process go on landing for a while: a reader may list the steps before a
  // replacement, and read one after it. Both are right, together they are the state of no instant.
  for (int look = 0; look < kLooksMax; ++look) {
    found->clear();
    STEPWELL_ASSIGN_OR_RETURN(const bool whole, ReadOnce(store, found, steps_checked));
    if (whole) return OkStatus();
  }
  return InternalError("what is live goes on changing");
}

Status CheckStore(const std::string& store_path, const History& history,
                  const StoreOptions& options, State* found, uint64_t* steps_checked) {
  auto store = Store::Open(store_path, options);
  if (store.status().code() == StatusCode::kNotFound && options.read_only) {
    const std::string problem = history.Check({});  // not begun yet
    return problem.empty() ? OkStatus() : InternalError(problem);
  }
  STEPWELL_RETURN_IF_ERROR(store.status());
  for (const std::string& problem : (*store)->recovery().problems) return InternalError(problem);
  STEPWELL_RETURN_IF_ERROR(ReadState(store->get(), found, steps_checked));
  if (const std::string problem = history.Check(*found); !problem.empty()) {
    return InternalError(problem);
  }
  STEPWELL_ASSIGN_OR_RETURN(const VerifyReport report, (*store)->Verify({}));
  for (const VerifyProblem& problem : report.problems) return InternalError(problem.message);
  return (*store)->Close();
}

// Its name has step and seed: its bytes are theirs, whatever its own digests say.
Status CheckOneExport(const std::string& path) {
  uint64_t step = 0;
  uint64_t seed = 0;
  const std::string name = std::filesystem::path(path).filename();
  if (std::sscanf(name.c_str(), "export%*u_%lu_%lu", &step, &seed) != 2) {
    return InternalError(path + " names no step and seed");
  }
  const Status status = CheckExported(io::LocalFileSystem(), path, seed, KillState(step));
  return status.ok() ? status : InternalError(status.ToString());
}

Status CheckExports(const std::string& directory, const std::vector<std::string>& finished,
                    uint64_t* exports_checked) {
  std::set<std::string> there;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::string name = entry.path().filename();
    if (name.find(".orbax-checkpoint-tmp") != std::string::npos) continue;
    there.insert(name);
    STEPWELL_RETURN_IF_ERROR(CheckOneExport(entry.path()));
    STEPWELL_ASSIGN_OR_RETURN(const VerifyReport report,
                              VerifyExport(io::LocalFileSystem(), entry.path(), {}));
    for (const VerifyProblem& problem : report.problems) return InternalError(problem.message);
    ++*exports_checked;
  }
  for (const std::string& name : finished) {
    if (!there.contains(name)) return InternalError(name + " was finished and is gone");
  }
  return OkStatus();
}

}  // namespace stepwell::db::soak
