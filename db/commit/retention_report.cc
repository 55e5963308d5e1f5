// SPDX-License-Identifier: Apache-2.0
#include "db/commit/retention_report.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "db/layout.h"
#include "format/orbax/json.h"
#include "io/small_file.h"

namespace stepwell::db {
namespace {

using Kind = KeepRule::Kind;
using format::orbax::Json;
using format::orbax::JsonNode;

constexpr uint64_t kFileBytesMax = uint64_t{1} << 20;
constexpr size_t kNamedMax = 8;
constexpr uint64_t kStepMax = (uint64_t{1} << 63) - 1;
constexpr std::array<std::pair<Kind, std::string_view>, 7> kKinds = {
    {{Kind::kLatest, "latest"},
     {Kind::kEvery, "every"},
     {Kind::kBest, "best"},
     {Kind::kDuration, "duration"},
     {Kind::kBytes, "bytes"},
     {Kind::kPinned, "pinned"},
     {Kind::kLastVerified, "last_verified"}}};

template <typename Values, typename Text>
std::string Listed(const Values& values, Text text) {
  std::string out;
  size_t count = 0;
  for (const auto& value : values) {
    if (++count > kNamedMax && count < values.size()) continue;
    out += StrCat(count == 1 ? "" : count > kNamedMax ? ", ..., " : ", ", text(value));
  }
  return out;
}

// "3 of 10 steps (1, 2, 3)".
std::string StepsText(const std::vector<size_t>& which,
                      const std::vector<KeepCandidate>& candidates) {
  return StrCat(which.size(), " of ", candidates.size(),
                candidates.size() == 1 ? " step (" : " steps (",
                Listed(which, [&](size_t i) { return candidates[i].step; }), ")");
}

std::string RulesText(std::span<const KeepRule> rules) {
  return Listed(rules, [](const KeepRule& rule) { return DescribeRule(rule); });
}

// Predicts the save that follows these, as far as it can be known.
KeepCandidate NextSave(const std::vector<KeepCandidate>& candidates) {
  KeepCandidate next = candidates.back();
  next.step = std::min(next.step, kStepMax - 1) + 1;
  next.pinned = next.metrics_unknown = next.is_old = next.tainted = next.verified = false;
  next.metrics_json.clear();
  for (const KeepCandidate& each : candidates) next.time_ns = std::max(next.time_ns, each.time_ns);
  return next;
}

std::string BlindText(const KeepRule& rule, const std::set<std::string>& names,
                      const std::vector<KeepRule>& rules,
                      const std::vector<KeepCandidate>& candidates) {
  std::string text = StrCat(
      "no step has the metric \"", rule.metric, "\"",
      names.empty() ? " (they have none)"
                    : StrCat(" (they have ",
                             Listed(names, [](auto& name) { return "\"" + name + "\""; }), ")"),
      ", so the rule that keeps the best by it takes nothing away");
  std::vector<KeepCandidate> with = candidates;
  with.push_back(NextSave(candidates));
  with.back().metrics_json = Json{{rule.metric, 0}}.dump();
  const auto gone = StepsToDrop(rules, with, with.size() - 1);
  if (!gone.empty()) {
    text += StrCat(" until a step has it; that save deletes ", StepsText(gone, candidates));
  }
  return text;
}

Json RuleJson(const KeepRule& rule) {
  const auto kind = std::find_if(kKinds.begin(), kKinds.end(),
                                 [&](const auto& each) { return each.first == rule.kind; });
  return {{"kind", kind->second},
          {"count", rule.count},
          {"duration_ns", rule.duration.count()},
          {"metric", rule.metric},
          {"larger_is_better", rule.larger_is_better}};
}

Result<KeepRule> RuleOf(const JsonNode& node) {
  constexpr uint64_t kAny = ~uint64_t{0};
  KeepRule rule;
  STEPWELL_ASSIGN_OR_RETURN(const std::string_view name, node.Text("kind"));
  const auto kind = std::find_if(kKinds.begin(), kKinds.end(),
                                 [&](const auto& each) { return each.second == name; });
  if (kind == kKinds.end()) return node.Unknown(StrCat("a rule of kind ", name));
  rule.kind = kind->first;
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode count, node.Member("count"));
  STEPWELL_ASSIGN_OR_RETURN(rule.count, count.Unsigned(kAny));
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode duration, node.Member("duration_ns"));
  STEPWELL_ASSIGN_OR_RETURN(const int64_t nanos, duration.Signed());
  rule.duration = std::chrono::nanoseconds(nanos);
  STEPWELL_ASSIGN_OR_RETURN(rule.metric, node.Text("metric"));
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode larger, node.Member("larger_is_better"));
  STEPWELL_ASSIGN_OR_RETURN(rule.larger_is_better, larger.Bool());
  return rule;
}

}  // namespace

KeepCandidate CandidateOf(const LiveStep& live) {
  return {live.record.step,
          live.age_time_ns,
          live.record.stored_bytes + live.record.frame_bytes(),
          live.record.pinned,
          live.metrics_json,
          live.metrics_unknown,
          live.is_old,
          live.record.referenced_bytes,
          !live.record.taint.empty(),
          live.record.verified};
}

std::string DescribeRule(const KeepRule& rule) {
  switch (rule.kind) {
    case Kind::kLatest:
      return rule.count == 1 ? "the latest step" : StrCat("the latest ", rule.count, " steps");
    case Kind::kEvery:
      return StrCat("multiples of ", rule.count);
    case Kind::kBest:
      return StrCat(rule.count == 1 ? "the step" : StrCat("the ", rule.count, " steps"),
                    " with the ", rule.larger_is_better ? "highest" : "lowest", " \"", rule.metric,
                    "\"");
    case Kind::kDuration:
      return StrCat("steps of the last ", static_cast<double>(rule.duration.count()) / 1e9, " s");
    case Kind::kBytes:
      return StrCat("the latest steps within ", rule.count, " bytes");
    case Kind::kLastVerified:
      return "the newest verified step";
    case Kind::kPinned:
      break;
  }
  return "pinned steps";
}

RetentionReport ReportRetention(std::vector<KeepRule> rules, std::vector<KeepCandidate> candidates,
                                bool lost) {
  RetentionReport report;
  for (const KeepRule& rule : rules) report.rule_texts.push_back(DescribeRule(rule));
  report.rules = std::move(rules);
  if (candidates.empty()) return report;
  // Applies the rules as if the newest step had just been saved. Steps that go beyond the one whose
  // place the next step takes are surplus.
  const auto surplus = StepsToDrop(report.rules, candidates, candidates.size() - 1);
  if (!surplus.empty() && !lost) {
    report.warnings.push_back(
        StrCat("the next save deletes ", StepsText(surplus, candidates),
               ", which no rule keeps; the rules keep ", RulesText(report.rules),
               ". Before it, pin what is to stay, or open the store with other rules"));
  }
  const std::set<std::string> names = MetricNames(candidates);
  for (const KeepRule& rule : report.rules) {
    if (rule.kind != Kind::kBest || names.contains(rule.metric)) continue;
    report.warnings.push_back(BlindText(rule, names, report.rules, candidates));
  }
  const bool any_verified =
      std::any_of(candidates.begin(), candidates.end(),
                  [](const KeepCandidate& each) { return each.verified && !each.tainted; });
  for (const KeepRule& rule : report.rules) {
    if (rule.kind != Kind::kLastVerified || any_verified) continue;
    report.warnings.push_back(
        "no step is verified and untainted, so the rule that keeps the newest verified step keeps "
        "none; what counts is a verification by the process that writes the store");
  }
  candidates.push_back(NextSave(candidates));
  const auto kept = KeptByRules(report.rules, candidates, candidates.size() - 1);
  const auto untainted = KeptUntainted(candidates, candidates.size() - 1);
  candidates.pop_back();
  for (size_t i = 0; i < candidates.size(); ++i) {
    RetentionReport::Step step{candidates[i].step, candidates[i].pinned, {}, false};
    for (size_t rule = 0; rule < kept.size(); ++rule) {
      if (kept[rule][i]) step.kept_by.push_back(rule);
    }
    step.newest_untainted = !kept.empty() && i == untainted;
    step.goes_next =
        !kept.empty() && step.kept_by.empty() && !step.pinned && !step.newest_untainted && !lost;
    report.steps.push_back(std::move(step));
  }
  return report;
}

Result<AppliedRules> ReadRules(io::FileSystem* file_system, const std::string& store_path) {
  const std::string path = RetentionFilePath(store_path);
  AppliedRules applied;
  STEPWELL_ASSIGN_OR_RETURN(const auto text, io::ReadIfThere(file_system, path, kFileBytesMax));
  if (!text) return applied;
  STEPWELL_ASSIGN_OR_RETURN(
      const Json json, format::orbax::ParseJson(path, *text, format::orbax::JsonDialect::kStrict));
  const JsonNode root(path, json);
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode since, root.Member("since"));
  STEPWELL_ASSIGN_OR_RETURN(applied.since, since.Unsigned(kStepMax));
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode list, root.Member("rules"));
  STEPWELL_RETURN_IF_ERROR(list.CheckArray(kFileBytesMax));
  for (size_t i = 0; i < list.value().size(); ++i) {
    const JsonNode node = list.At(i);
    STEPWELL_ASSIGN_OR_RETURN(KeepRule rule, RuleOf(node));
    applied.rules.push_back(std::move(rule));
  }
  const Status status = CheckRules(applied.rules);
  if (!status.ok()) return DataLossError(StrCat(path, ": ", status.message()));
  return applied;
}

Status WriteRules(io::FileSystem* file_system, const std::string& store_path,
                  const AppliedRules& applied) {
  Json json = {{"since", applied.since}, {"rules", Json::array()}};
  for (const KeepRule& rule : applied.rules) json["rules"].push_back(RuleJson(rule));
  const std::string text =
      json.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace) + "\n";
  const std::string path = RetentionFilePath(store_path);
  const std::string fresh = path + ".new";
  STEPWELL_ASSIGN_OR_RETURN(
      const auto file, file_system->Open(fresh, {.write = true, .create = true, .truncate = true}));
  STEPWELL_RETURN_IF_ERROR(file->WriteAt(0, AsBytes(text)));
  STEPWELL_RETURN_IF_ERROR(file->Sync());  // a name without the text would look damaged
  STEPWELL_RETURN_IF_ERROR(file_system->Rename(fresh, path));
  return file_system->SyncDirectory(store_path);
}

}  // namespace stepwell::db
