// SPDX-License-Identifier: Apache-2.0
#include <filesystem>

#include "db/export/orbax/digests.h"
#include "tests/db/soak/crash_soak.h"
#include "tests/db/support/big_state.h"

namespace stepwell::db::soak {

Status ReadState(Store* store, State* found, uint64_t* steps_checked) {
  STEPWELL_ASSIGN_OR_RETURN(const auto steps, store->Steps());
  for (const StepSummary& step : steps) {
    STEPWELL_ASSIGN_OR_RETURN(const auto reader, store->Read(step.step.step));
    const std::string& text = reader->step().metadata_json;  // {"seed": N}
    if (text.size() < 10) return InternalError("metadata " + text);
    const uint64_t seed = std::stoull(text.substr(9));
    STEPWELL_RETURN_IF_ERROR(CheckSeeded(reader.get(), seed, KillState(step.step.step)));
    (*found)[step.step.step] = {seed, step.step.pinned};
    ++*steps_checked;
  }
  return OkStatus();
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

Status CheckExports(const std::string& directory, const std::vector<std::string>& finished,
                    uint64_t* exports_checked) {
  std::set<std::string> there;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::string name = entry.path().filename();
    if (name.find(".orbax-checkpoint-tmp") != std::string::npos) continue;
    there.insert(name);
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
