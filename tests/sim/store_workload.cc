// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/store_workload.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <utility>

namespace stepwell::sim {
namespace {

constexpr std::string_view kMetadata = "{\"seed\": ";
const db::LeafSpec kExtra = {"w", {3000}, false, false};

std::pair<uint64_t, uint64_t> Pick(const Steps& steps, Prng* prng) {
  return *std::next(steps.begin(), static_cast<std::ptrdiff_t>(prng->Below(steps.size())));
}

}  // namespace

std::vector<db::LeafSpec> SpecsOf(uint64_t seed) {
  std::vector<db::LeafSpec> specs = {{"a", {7}, false, false}, {"b", {30, 20}, true, false}};
  if (seed % 3 == 0) specs.push_back({"c", {6000}, true, true});
  if (seed % 4 == 1) specs.push_back({"d", {5, 1500}, false, false});
  if (seed % 7 == 2) specs.push_back({"e", {30000}, true, false});
  if (seed % 5 == 3) specs.push_back({"f", {0, 3}, false, false});
  return specs;
}

uint64_t HeldOf(uint64_t seed) { return seed % 2 == 0 ? seed | kHasExtra : seed; }

Result<db::SaveHandle> SaveStep(db::Store* store, uint64_t step, uint64_t seed,
                                db::IfExists if_exists) {
  const std::vector<db::LeafSpec> specs = SpecsOf(seed);
  std::vector<std::vector<float>> scratch;
  scratch.reserve(specs.size() + 1);
  db::SaveRequest request = db::MakeRequest(step, seed, specs, &scratch);
  request.if_exists = if_exists;
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

Status CheckStep(db::Store* store, uint64_t step, uint64_t held) {
  const uint64_t seed = SeedOf(held);
  STEPWELL_RETURN_IF_ERROR(db::CheckSeeded(store, step, seed, SpecsOf(seed)));
  STEPWELL_ASSIGN_OR_RETURN(const auto reader, store->Read(step));
  STEPWELL_ASSIGN_OR_RETURN(const auto extra, reader->Leaves(format::EncodeItem("extra")));
  if (extra.size() != (held & kHasExtra ? 1U : 0U)) {
    return DataLossError(StrCat("step ", step, " has ", extra.size(), " leaves in item extra"));
  }
  if (extra.empty()) return OkStatus();
  const std::vector<float> wanted = db::LeafData(kExtra, seed);
  std::vector<float> out(wanted.size());
  db::LoadRequest request;
  request.leaf = &extra.front();
  request.box = format::WholeArray(kExtra.shape);
  request.out = reinterpret_cast<std::byte*>(out.data());
  STEPWELL_RETURN_IF_ERROR(reader->Load({&request, 1}).status());
  return out == wanted ? OkStatus() : DataLossError(StrCat("step ", step, ": extra is wrong"));
}

Result<Steps> ReadAll(db::Store* store) {
  STEPWELL_ASSIGN_OR_RETURN(const auto summaries, store->Steps());
  Steps steps;
  for (const auto& summary : summaries) {
    const uint64_t step = summary.step.step;
    STEPWELL_ASSIGN_OR_RETURN(const auto reader, store->Read(step));
    const std::string& text = reader->step().metadata_json;
    uint64_t seed = 0;
    if (!text.starts_with(kMetadata) ||
        std::from_chars(text.data() + kMetadata.size(), text.data() + text.size(), seed).ec !=
            std::errc()) {
      return DataLossError(StrCat("step ", step, " has metadata '", text, "'"));
    }
    uint64_t held = seed;
    for (const auto& item : reader->step().items) {
      if (item.name == "extra") held |= kHasExtra;
    }
    if (reader->step().pinned != summary.step.pinned) return InternalError("two opinions of a pin");
    if (summary.step.pinned) held |= kPinned;
    STEPWELL_RETURN_IF_ERROR(CheckStep(store, step, held));
    steps[step] = held;
  }
  return steps;
}

Workload::Workload(StoreMachine* machine, uint64_t seed, bool with_index)
    : machine_(machine), with_index_(with_index), prng_(seed), next_seed_(seed % 997) {
  machine_->world().SetCanPunch(seed % 3 != 0);
}

Workload::~Workload() = default;

bool Workload::Expect(const Status& status, std::string_view what) {
  if (status.ok()) return true;
  // A full disk fails what it must, and that alone.
  if (squeezed_ && status.code() == StatusCode::kResourceExhausted) return true;
  if (!machine_->world().frozen()) problem_ = StrCat(what, ": ", status.ToString());
  return false;
}

bool Workload::Open() {
  if (prng_.OneIn(2)) keep_ = 2 + prng_.Below(4);
  if (prng_.OneIn(3)) keep_.reset();
  auto store = machine_->Open({.keep_latest = keep_, .with_index = with_index_});
  if (!Expect(store.status(), "open")) return false;
  store_ = std::move(*store);
  for (const std::string& said : store_->recovery().problems) problem_ = StrCat("open: ", said);
  return problem_.empty();
}

bool Workload::Squeeze(bool on) {
  // What the full disk refused is known before there is room again.
  if (!on && !WaitAll()) return false;
  squeezed_ = on;
  any_ = false;
  SimWorld& world = machine_->world();
  world.SetCapacity(on ? world.UsedBytes() + prng_.Below(400'000) : kPlenty);
  return true;
}

bool Workload::Close() {
  if (squeezed_ && !Squeeze(false)) return false;
  // Errors of the full disk may be left to report.
  if (!WaitAll()) return false;
  const Status status = store_->Close();
  store_.reset();
  any_ = false;
  if (!Expect(status, "close") || machine_->world().frozen() || !CheckLinks()) return false;
  model_.Settle(model_.Newest());
  return true;
}

bool Workload::Save(bool replace) {
  const Steps steps = model_.Newest();
  uint64_t step = next_step_;
  auto if_exists = db::IfExists::kReplace;
  if (replace && !steps.empty()) {
    const auto [chosen, held] = Pick(steps, &prng_);
    if (held & kPinned) {
      const auto refused = SaveStep(store_.get(), chosen, next_seed_++, if_exists);
      if (refused.ok()) problem_ = StrCat("pinned step ", chosen, " was replaced");
      return problem_.empty() && !machine_->world().frozen();
    }
    step = chosen;
  } else if (prng_.OneIn(8) && !steps.empty() && steps.begin()->first > 0) {
    step = steps.begin()->first - 1;  // back behind the oldest
  } else {
    next_step_ += 1 + prng_.Below(2);
    if_exists = db::IfExists::kError;
  }
  const uint64_t seed = next_seed_++;
  auto handle = SaveStep(store_.get(), step, seed, if_exists);
  if (!Expect(handle.status(), StrCat("save of ", step))) return false;
  newest_ = *handle;
  any_ = true;
  model_.Saved(step, HeldOf(seed), keep_, std::move(*handle));
  return true;
}

bool Workload::Delete() {
  const Steps steps = model_.Newest();
  if (steps.empty()) return true;
  const auto [step, held] = Pick(steps, &prng_);
  const std::vector<uint64_t> one = {step};
  const Status status = store_->Delete(one);
  if (held & kPinned) {
    if (status.ok()) problem_ = StrCat("pinned step ", step, " was deleted");
    return problem_.empty() && !machine_->world().frozen();
  }
  // What it was to delete may have been a save in flight that the full disk refused.
  if (squeezed_ && status.code() == StatusCode::kNotFound) return true;
  model_.Deleted(one.front(), status);
  return Expect(status, StrCat("delete of ", one.front()));
}

bool Workload::TogglePin() {
  const Steps steps = model_.Newest();
  if (steps.empty()) return true;
  const auto [step, held] = Pick(steps, &prng_);
  const std::vector<uint64_t> one = {step};
  const bool pin = !(held & kPinned);
  const Status status = store_->SetPinned(one, pin);
  if (squeezed_ && status.code() == StatusCode::kNotFound) return true;
  model_.PinSet(step, pin, status);
  return Expect(status, StrCat("pin of ", step));
}

bool Workload::DeleteExtra() {
  // What is in flight may delete or replace a step before it is its turn.
  if (!WaitAll()) return false;
  Steps steps = model_.Newest();
  std::erase_if(steps, [](const auto& step) { return !(step.second & kHasExtra); });
  if (steps.empty()) return true;
  const uint64_t step = Pick(steps, &prng_).first;
  const std::vector<std::string> items = {"extra"};
  const Status status = store_->DeleteItems(step, items);
  model_.ExtraDeleted(step, status);
  return Expect(status, StrCat("deletion of an item of ", step));
}

bool Workload::WaitAll() {
  const Status status = store_->Wait();
  if (status.code() != StatusCode::kResourceExhausted && !Expect(status, "wait")) return false;
  if (machine_->world().frozen()) return false;
  const std::vector<Steps> legal = model_.Legal();
  if (legal.size() != 1) problem_ = "after Wait something is still in flight";
  model_.Settle(legal.front());
  return problem_.empty();
}

bool Workload::WaitNewest() { return !any_ || Expect(newest_.Wait(), "wait for one"); }

bool Workload::CheckOne() {
  const Steps steps = model_.Legal().front();
  if (steps.empty()) return true;
  const auto [step, held] = Pick(steps, &prng_);
  return Expect(CheckStep(store_.get(), step, held), StrCat("load of ", step));
}

bool Workload::ReadBeside() {
  auto reader = machine_->Open({.read_only = true});
  if (!Expect(reader.status(), "open for reading")) return false;
  const auto seen = ReadAll(reader->get());
  if (!Expect(seen.status(), "reading beside the writer")) return false;
  const Steps visible = model_.Legal().front();
  if (*seen != visible && !machine_->world().frozen()) {  // a stopped slot moves no more
    problem_ = StrCat("a reader sees ", ToText(*seen), " instead of ", ToText(visible));
  }
  return problem_.empty();
}

bool Workload::Reclaim() {
  const auto report = store_->Reclaim();
  if (!Expect(report.status(), "reclaim")) return false;
  if (!report.ok()) return true;
  const db::SpaceStats space = store_->Stats().space;
  const uint64_t parts = space.live_bytes + space.overhead_bytes + space.dead_bytes +
                         space.reserved_bytes + space.index_bytes + space.other_bytes;
  if (parts != space.total_bytes && !machine_->world().frozen()) {
    problem_ = StrCat("the parts of the space add up to ", parts, ", not ", space.total_bytes);
  }
  return problem_.empty();
}

// Another name for the oldest segment, as an export makes it: nobody may change those bytes.
bool Workload::LinkSegment() {
  std::vector<std::string> segments;
  for (const auto& [path, size] : machine_->world().Files()) {
    if (path.starts_with("/store/segments/") && path.ends_with(".seg")) segments.push_back(path);
  }
  if (segments.size() < 5 || links_.size() >= 3) return true;  // the newest are being written
  const std::string link = StrCat("/link", links_.size());
  SimFileSystem files(machine_->world().shared_from_this());
  if (!Expect(files.Link(segments.front(), link), "link")) return false;
  links_[link] = *machine_->world().Contents(link);
  return true;
}

bool Workload::CheckLinks() {
  for (const auto& [link, bytes] : links_) {
    if (machine_->world().Contents(link) != bytes) problem_ = link + ": a linked segment changed";
  }
  return problem_.empty();
}

bool Workload::Act() {
  if (store_ == nullptr && !Open()) return false;
  const uint64_t roll = prng_.Below(100);
  if (roll < 42) return Save(false);
  if (roll < 52) return Save(true);
  if (roll < 60) return Delete();
  if (roll < 64) return TogglePin();
  if (roll < 68) return DeleteExtra();
  if (roll < 76) return WaitAll();
  if (roll < 82) return WaitNewest();
  if (roll < 86) return CheckOne();
  if (roll < 89) return ReadBeside();
  if (roll < 91) return LinkSegment();
  if (roll < 94) return Reclaim() && CheckLinks();
  if (roll < 96) return Squeeze(!squeezed_);
  return Close();
}

void Workload::Run(int count) {
  for (int i = 0; i < count; ++i) {
    if (!Act()) return;
  }
  if (store_ != nullptr) Close();
}

}  // namespace stepwell::sim
