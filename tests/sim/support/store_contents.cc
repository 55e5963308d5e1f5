// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/support/store_contents.h"

#include <charconv>
#include <set>
#include <utility>

#include "tests/sim/support/step_texts.h"

namespace stepwell::sim {
namespace {

const db::LeafSpec kExtra = {"w", {3000}, false, false};

// A writer's store leaves out texts that it cannot read, and logs it: an error, not wrong bytes.
Status CheckHasMetadata(const db::StepReader& reader) {
  if (!reader.step().metadata_json.empty()) return OkStatus();
  return DataLossError(StrCat("step ", reader.step().step, " has no metadata"));
}

Status CheckMetrics(const db::StepReader& reader, uint64_t seed) {
  const std::string& metrics = reader.step().metrics_json;
  const std::string wanted = db::MetricsOf(seed);
  if (metrics == wanted) return OkStatus();
  const std::string what = StrCat("step ", reader.step().step, " has metrics '", metrics, "'");
  return metrics.empty() ? DataLossError(what) : InternalError(what);
}

}  // namespace

std::vector<db::LeafSpec> SpecsOf(uint64_t seed) {
  if (seed & kTiny) return {{"a", {7}, false, false}};
  if (seed & kLarge) return {{"a", {7}}, {"g", {300'000}, true, false, 3, 600'000, 64 << 10}};
  // Some of it changes with every save, some does not, in whole or in parts; leaves come and go.
  std::vector<db::LeafSpec> specs = {{"a", {7}, false, false}, {"b", {30, 20}, true, false, 3}};
  if (seed % 12 < 7) specs.push_back({"c", {6000}, true, true, 4});
  if (seed % 8 < 5) specs.push_back({"d", {5, 1500}, false, false, 6, 10'000, 4 << 10});
  if (seed % 7 < 3) specs.push_back({"e", {30000}, true, false, 5, 60'000, 16 << 10});
  if (seed % 4 < 3) specs.push_back({"h", {12'000}, seed % 8 < 4, false, 1, 0, 16 << 10, 40});
  if (seed % 5 == 3) specs.push_back({"f", {0, 3}, false, false});
  // Some are one array, of which each may have been another one in the step before. (The first
  // seeds are of small stores, whose every byte is known.)
  const size_t last = specs.size() - 1;
  for (const size_t i : std::set<size_t>{2, last}) {
    if (seed < 60 || seed % 3 == 0 || i > last || specs[i].shape[0] == 0) continue;
    db::LeafSpec twin = specs[i];
    twin.name = StrCat(twin.name, "-again");
    twin.same_as = specs[i].name;
    specs.push_back(std::move(twin));
  }
  return specs;
}

uint64_t HeldOf(uint64_t seed) {
  return seed % 2 == 0 && !(seed & kTiny) ? seed | kHasExtra : seed;
}

Result<db::SaveHandle> SaveStep(db::Store* store, uint64_t step, uint64_t seed,
                                db::IfExists if_exists, const std::optional<db::GroupSave>& group,
                                std::vector<uint64_t> retire) {
  const std::vector<db::LeafSpec> specs = SpecsOf(seed);
  std::vector<std::vector<float>> scratch;
  scratch.reserve(specs.size() + 1);
  db::SaveRequest request = db::MakeRequest(step, seed, specs, &scratch);
  request.if_exists = if_exists;
  request.group = group;
  request.retire = std::move(retire);
  if (HeldOf(seed) & kHasExtra) {
    scratch.push_back(db::LeafData(kExtra, seed));
    db::LeafInput leaf;
    leaf.record.key = db::KeyOf("extra", kExtra.name);
    leaf.record.dtype = format::DType::kFloat32;
    leaf.record.shape = kExtra.shape;
    leaf.data = reinterpret_cast<const std::byte*>(scratch.back().data());
    db::ItemInput item{.name = "extra", .leaves = {}};
    item.leaves.push_back(std::move(leaf));
    request.items.push_back(std::move(item));
  }
  auto handle = store->Save(std::move(request));
  for (auto& data : scratch) std::fill(data.begin(), data.end(), -1.0F);  // "mutated after save"
  return handle;
}

Status CheckStep(db::StepReader* reader, uint64_t held) {
  const uint64_t seed = SeedOf(held);
  STEPWELL_RETURN_IF_ERROR(CheckHasMetadata(*reader));
  STEPWELL_RETURN_IF_ERROR(CheckMetrics(*reader, seed));
  STEPWELL_RETURN_IF_ERROR(db::CheckSeeded(reader, seed, SpecsOf(seed)));
  STEPWELL_ASSIGN_OR_RETURN(const auto extra, reader->Leaves(format::EncodeItem("extra")));
  const uint64_t step = reader->step().step;
  if (extra.size() != (held & kHasExtra ? 1U : 0U)) {
    return InternalError(StrCat("step ", step, " has ", extra.size(), " leaves in item extra"));
  }
  if (extra.empty()) return OkStatus();
  const std::vector<float> wanted = db::LeafData(kExtra, seed);
  std::vector<float> out(wanted.size());
  db::LoadRequest request;
  request.leaf = &extra.front();
  request.box = format::WholeArray(kExtra.shape);
  request.out = reinterpret_cast<std::byte*>(out.data());
  STEPWELL_RETURN_IF_ERROR(reader->Load({&request, 1}).status());
  return out == wanted ? OkStatus() : InternalError(StrCat("step ", step, ": extra is wrong"));
}

Status CheckStep(db::Store* store, uint64_t step, uint64_t held) {
  STEPWELL_ASSIGN_OR_RETURN(const auto reader, store->Read(step));
  return CheckStep(reader.get(), held);
}

Result<Steps> ReadAll(db::Store* store) {
  STEPWELL_ASSIGN_OR_RETURN(const auto summaries, store->Steps());
  Steps steps;
  for (const auto& summary : summaries) {
    const uint64_t step = summary.step;
    STEPWELL_ASSIGN_OR_RETURN(const auto reader, store->Read(step));
    STEPWELL_RETURN_IF_ERROR(CheckHasMetadata(*reader));
    const std::string& text = reader->step().metadata_json;
    uint64_t seed = 0;
    if (!text.starts_with(kMetadata) ||
        std::from_chars(text.data() + kMetadata.size(), text.data() + text.size(), seed).ec !=
            std::errc()) {
      return InternalError(StrCat("step ", step, " has metadata '", text, "'"));
    }
    uint64_t held = seed;
    for (const auto& item : reader->step().items) {
      if (item.name == "extra") held |= kHasExtra;
    }
    if (reader->step().pinned != summary.pinned) return InternalError("two opinions of a pin");
    if (reader->step().taint != summary.taint) return InternalError("two opinions of a taint");
    if (reader->step().verified != summary.verified) {
      return InternalError("two opinions of a verification");
    }
    if (summary.pinned) held |= kPinned;
    if (!summary.taint.empty()) held |= kTainted;
    if (summary.verified) held |= kVerified;
    if (!summary.taint.empty() && summary.taint != TaintOf(step)) {
      return InternalError(StrCat("step ", step, " has the taint '", summary.taint, "'"));
    }
    STEPWELL_RETURN_IF_ERROR(CheckStep(reader.get(), held));
    steps[step] = held;
  }
  STEPWELL_RETURN_IF_ERROR(CheckTexts(store, steps));
  // Not while it may be lost.
  if (const auto newest = store->Newest(); newest.ok() && *newest != NewestIn(steps)) {
    return InternalError(StrCat("the newest is not that of ", ToText(steps)));
  }
  return steps;
}

}  // namespace stepwell::sim
