// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "db/export/orbax/digests.h"
#include "tests/db/support/big_state.h"
#include "tests/db/support/group_support.h"
#include "tests/db/support/nth.h"
#include "tests/db/support/nth_state.h"

namespace stepwell::db::nth {
namespace {

using soak::Change;
using soak::State;

// Behind every line: what may be live.
std::vector<State> StatesAfter(const std::vector<std::string>& lines, std::string* problem) {
  std::vector<State> states = {{}};
  Change change;
  bool open_change = false;
  const auto may_be = [&](bool also_without) {
    std::vector<State> after = also_without ? states : std::vector<State>{};
    for (State state : states) {
      change.ApplyTo(&state);
      if (std::find(after.begin(), after.end(), state) == after.end()) after.push_back(state);
    }
    states = std::move(after);
    open_change = false;
  };
  for (const std::string& line : lines) {
    std::istringstream words(line);
    std::string what;
    words >> what;
    if (what == "begin") {
      int kind = 0;
      words >> kind >> change.step >> change.seed;
      change.kind = static_cast<Change::Kind>(kind);
      open_change = true;
    }
    if (what == "ok") may_be(/*also_without=*/false);
    if (what == "unknown") may_be(/*also_without=*/true);
    if (what == "no") open_change = false;
    if (what == "wrong:") *problem = line;
  }
  if (open_change) may_be(/*also_without=*/true);
  return states;
}

Result<State> Found(Store* store) {
  State found;
  STEPWELL_ASSIGN_OR_RETURN(const auto steps, store->Steps());
  for (const format::StepRecord& summary : steps) {
    const uint64_t step = summary.step;
    STEPWELL_ASSIGN_OR_RETURN(const auto reader, store->Read(step));
    const std::string& text = reader->step().metadata_json;
    if (text.size() < 10) return InternalError("metadata " + text);
    const uint64_t seed = std::stoull(text.substr(9));
    if (step < kImported) {
      STEPWELL_RETURN_IF_ERROR(CheckSeeded(reader.get(), seed, Leaves()));
    } else if (step == kBig) {
      STEPWELL_RETURN_IF_ERROR(CheckBig(store, step, seed));
    }
    uint64_t extra = 0;
    if (step == kOfItems) {
      STEPWELL_ASSIGN_OR_RETURN(const auto leaves, reader->Leaves(format::EncodeItem("extra")));
      extra = leaves.empty() ? 0 : kWithExtra;
    }
    found[step] = {seed + extra, summary.pinned};
  }
  return found;
}

Status LookAt(const std::string& path, bool read_only, const std::vector<State>& states,
              bool save_more) {
  StoreOptions options = OptionsOf(io::DiskKind::kPosix);
  options.read_only = read_only;
  STEPWELL_ASSIGN_OR_RETURN(const auto store, Store::Open(path, options));
  for (const std::string& problem : store->recovery().problems) return DataLossError(problem);
  STEPWELL_ASSIGN_OR_RETURN(State found, Found(store.get()));
  if (std::find(states.begin(), states.end(), found) == states.end()) {
    std::string text = StrCat("found ", ToText(found), ", legal is");
    for (const State& state : states) text += " " + ToText(state);
    return InternalError(text);
  }
  STEPWELL_ASSIGN_OR_RETURN(const VerifyReport report, store->Verify({}));
  for (const VerifyProblem& problem : report.problems) return DataLossError(problem.message);
  if (save_more) {
    STEPWELL_ASSIGN_OR_RETURN(const auto handle, SaveSeeded(store.get(), 9, 109, Leaves()));
    STEPWELL_RETURN_IF_ERROR(handle.Wait());
  }
  return store->Close();
}

// A .safetensors file: the length of a header, the header, the arrays.
Status CheckArchive(const std::string& path, uint64_t seed) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  uint64_t length = 0;
  if (bytes.size() < sizeof(length)) return DataLossError(path + " is too short");
  std::memcpy(&length, bytes.data(), sizeof(length));
  if (length > bytes.size() - sizeof(length)) return DataLossError(path + " is too short");
  const auto header =
      nlohmann::json::parse(bytes.substr(sizeof(length), length), nullptr, /*throw=*/false);
  const std::string data = bytes.substr(sizeof(length) + length);
  for (const LeafSpec& spec : Leaves()) {
    const std::vector<float> wanted = LeafData(spec, seed);
    const std::string_view wanted_bytes(reinterpret_cast<const char*>(wanted.data()),
                                        wanted.size() * sizeof(float));
    if (!header.contains(spec.name)) return DataLossError(path + " has no " + spec.name);
    const auto& offsets = header[spec.name]["data_offsets"];
    const uint64_t begin = offsets[0];
    const uint64_t end = offsets[1];
    if (end > data.size() || begin > end || data.substr(begin, end - begin) != wanted_bytes) {
      return DataLossError(path + ": " + spec.name + " is wrong");
    }
  }
  return OkStatus();
}

// Both parts have step 1, or neither has; step 2 was aborted.
Status CheckGroup(const std::string& root, const std::vector<std::string>& lines) {
  const auto printed = [&](const char* line) {
    return std::find(lines.begin(), lines.end(), line) != lines.end();
  };
  if (!printed("group begin")) return OkStatus();  // it may not be there
  STEPWELL_ASSIGN_OR_RETURN(const GroupStores group,
                            GroupStores::Open(root, 2, OptionsOf(io::DiskKind::kPosix)));
  STEPWELL_RETURN_IF_ERROR(Settle({group.part(0), group.part(1)}));
  for (const auto& store : group.stores) {
    for (const std::string& problem : store->recovery().problems) return DataLossError(problem);
    STEPWELL_ASSIGN_OR_RETURN(const Saves saves, SavesOf(store.get()));
    const bool there = saves == Saves{{1, 1}};
    if ((!there && !saves.empty()) || (there && printed("group no")) ||
        (!there && printed("group ok"))) {
      return InternalError(StrCat("part ", store->part().part, " has ", saves.size(), " steps"));
    }
  }
  STEPWELL_ASSIGN_OR_RETURN(const Saves saves, SavesOf(group.part(0)));
  STEPWELL_ASSIGN_OR_RETURN(const Saves others, SavesOf(group.part(1)));
  if (saves != others) return InternalError("one part of the group has a step, the other has not");
  if (!saves.empty()) {
    STEPWELL_RETURN_IF_ERROR(
        CheckSeeded(group.part(0), 1, 1, {PartState(0).front(), PartState(1).front()}));
  }
  return group.Close();
}

}  // namespace

bool CheckStore(const std::string& folder, const std::vector<std::string>& lines,
                std::string* problem) {
  std::vector<State> states = StatesAfter(lines, problem);
  if (!problem->empty()) return false;
  Status status = LookAt(folder + "/store", /*read_only=*/false, states, /*save_more=*/true);
  if (status.ok()) {
    for (State& state : states) state[9] = {109, false};
    status = LookAt(folder + "/store", /*read_only=*/true, states, /*save_more=*/false);
  }
  for (const std::string& line : lines) {
    const std::string place = folder + "/exports/" + line.substr(std::min<size_t>(9, line.size()));
    if (!status.ok() || !line.starts_with("exported ")) continue;
    const auto report = VerifyExport(io::LocalFileSystem(), place, {});
    status = report.status();
    if (report.ok() && !report->problems.empty()) {
      status = DataLossError(report->problems.front().message);
    }
  }
  for (const std::string& line : lines) {
    if (!status.ok() || !line.starts_with("archived ")) continue;
    status = CheckArchive(folder + "/exports/" + line.substr(9), 103);
  }
  if (status.ok()) status = CheckGroup(folder + "/group", lines);
  if (!status.ok()) *problem = status.ToString();
  return status.ok();
}

}  // namespace stepwell::db::nth
