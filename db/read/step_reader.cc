// SPDX-License-Identifier: Apache-2.0
#include "db/read/step_reader.h"

#include <algorithm>

#include "format/key.h"

namespace stepwell::db {
namespace {

class LogStepReader final : public RestoringReader {
 public:
  LogStepReader(format::StepRecord step, LeafSource leaves, Restorer* restorer,
                const std::string& store_path, ReadErrorExplainer explain,
                std::shared_ptr<const void> keep)
      : step_(std::move(step)),
        leaves_(std::move(leaves)),
        restorer_(restorer),
        where_(StrCat(store_path, ": step ", step_.step)),
        explain_(std::move(explain)),
        keep_(std::move(keep)) {}

  const format::StepRecord& step() const override { return step_; }
  Status Explain(const Status& error) const override { return explain_(error.WithContext(where_)); }

  Result<std::vector<format::LeafRecord>> Leaves(std::string_view key_prefix) override {
    auto leaves = leaves_(format::KeysBelow(key_prefix));
    if (!leaves.ok()) return Explain(leaves.status());
    return leaves;
  }

  Result<std::optional<format::LeafRecord>> Find(std::string_view key) override {
    auto leaves = leaves_(format::KeyAlone(key));
    if (!leaves.ok()) return Explain(leaves.status());
    if (leaves->empty()) return std::optional<format::LeafRecord>();
    return std::optional(std::move(leaves->front()));
  }

  Result<LoadStats> Load(std::span<const LoadRequest> requests) override {
    auto stats = restorer_->Load(requests);
    if (!stats.ok()) return Explain(stats.status());
    return stats;
  }

  Restorer* restorer() override { return restorer_; }

 private:
  const format::StepRecord step_;
  const LeafSource leaves_;
  Restorer* const restorer_;
  const std::string where_;
  const ReadErrorExplainer explain_;
  const std::shared_ptr<const void> keep_;
};

VerifyProblem ProblemAt(uint64_t step, const format::LeafRecord* leaf, std::string file,
                        uint64_t offset, const Status& error) {
  VerifyProblem problem;
  problem.step = step;
  problem.file = std::move(file);
  problem.offset_bytes = offset;
  problem.message = error.message();
  // Also what a file system itself calls damaged (EUCLEAN), unlike in recovery.
  problem.unchecked = !IsDamage(error) && error.code() != StatusCode::kDataLoss;
  if (leaf == nullptr) return problem;
  if (const auto key = format::DecodeLeafKey(leaf->key); key.ok()) {
    problem.item = key->item;
    problem.path = format::PathToText(key->path);
  }
  return problem;
}

}  // namespace

Restorer* RestorerOf(StepReader& reader) {
  auto* const restoring = dynamic_cast<RestoringReader*>(&reader);
  return restoring == nullptr ? nullptr : restoring->restorer();
}

std::shared_ptr<StepReader> MakeStepReader(format::StepRecord step, LeafSource leaves,
                                           Restorer* restorer, const std::string& store_path,
                                           ReadErrorExplainer explain,
                                           std::shared_ptr<const void> keep) {
  return std::make_shared<LogStepReader>(std::move(step), std::move(leaves), restorer, store_path,
                                         std::move(explain), std::move(keep));
}

Status ExplainPinned(Status error) {
  if (error.code() != StatusCode::kNotFound) return error;
  return DataLossError(StrCat(error.message(), "; a segment is missing"));
}

Status StepNotFound(const std::string& store_path, uint64_t step,
                    const std::vector<uint64_t>& steps) {
  std::string text = StrCat(store_path, " has no step ", step);
  if (steps.empty()) return NotFoundError(text + "; it has no steps");
  const auto above = std::lower_bound(steps.begin(), steps.end(), step);
  if (above == steps.end()) {
    text += StrCat("; the nearest step is the newest, ", steps.back());
  } else if (above == steps.begin()) {
    text += StrCat("; the nearest step is the oldest, ", steps.front());
  } else {
    text += StrCat("; the nearest steps are ", *(above - 1), " and ", *above);
  }
  return NotFoundError(text);
}

Status VerifyLeaves(const format::StepRecord& step, std::span<const format::LeafRecord> leaves,
                    const format::FramePlace& place, SegmentFiles& files, Restorer& restorer,
                    const VerifyOptions& options, StepChecks* checks, VerifyReport* report) {
  for (const auto& leaf : leaves) {
    if (leaf.kind != format::LeafKind::kNode) ++report->leaves;
    report->chunks += leaf.chunks.size();
    for (const auto& chunk : leaf.chunks) report->bytes += chunk.all_stored_bytes();
  }
  const auto bad = [&](const BadChunk& chunk) {
    // Without a record the leaf's own is damaged, or newer than this program.
    const bool in_chunk = chunk.payload != nullptr;
    const uint64_t segment = in_chunk ? chunk.payload->segment : place.segment;
    const uint64_t offset = in_chunk ? chunk.payload->offset_bytes : place.offset_bytes;
    report->problems.push_back(
        ProblemAt(step.step, chunk.leaf, files.PathOf(segment), offset, chunk.status));
  };
  const auto progress = [&](uint64_t done) {
    return !options.progress ||
           options.progress(std::min(checks->done_bytes + done, checks->total_bytes),
                            checks->total_bytes);
  };
  STEPWELL_RETURN_IF_ERROR(restorer.Check(leaves, bad, progress, {.good = &checks->good}));
  checks->done_bytes += step.stored_bytes;
  return OkStatus();
}

Result<VerifyReport> VerifySteps(const std::vector<LiveStep>& steps, SegmentFiles& files,
                                 Restorer& restorer, const VerifyOptions& options) {
  VerifyReport report;
  StepChecks checks;
  for (const LiveStep& step : steps) checks.total_bytes += step.record.stored_bytes;
  for (const LiveStep& step : steps) {
    const uint64_t number = step.record.step;
    ++report.steps;
    auto leaves = ReadStepRecords(files, step.place, "");
    const auto original = ReadOriginalFrame(files, step.place, format::FrameKind{});
    if (leaves.ok() && !original.ok() && IsDamage(original.status())) {
      report.problems.push_back(
          ProblemAt(number, nullptr, files.PathOf(step.place.segment), step.place.offset_bytes,
                    DataLossError(StrCat(original.status().message(),
                                         "; its second copy is good: "
                                         "`stepwell repair` writes it anew"))));
    }
    if (!leaves.ok()) {
      report.problems.push_back(ProblemAt(number, nullptr, files.PathOf(step.place.segment),
                                          step.place.offset_bytes, leaves.status()));
      checks.done_bytes += step.record.stored_bytes;
      continue;
    }
    STEPWELL_RETURN_IF_ERROR(
        VerifyLeaves(step.record, *leaves, step.place, files, restorer, options, &checks, &report));
  }
  return report;
}

}  // namespace stepwell::db
