// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/support/store_workload.h"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

#include "format/frame.h"

namespace stepwell::sim {
namespace {

std::pair<uint64_t, uint64_t> Pick(const Steps& steps, Prng* prng) {
  return *std::next(steps.begin(), static_cast<std::ptrdiff_t>(prng->Below(steps.size())));
}

// Returns true if the file's last block is a trailer, and not that of a life before this one.
bool IsSealed(const SimWorld& world, const std::string& path) {
  const std::string bytes = world.Contents(path).value_or("");
  if (bytes.size() < kPageBytes) return false;
  const auto header = [&](size_t at) {
    return format::DecodeFrameHeader(AsBytes(bytes).subspan(at, format::kFrameHeaderBytes));
  };
  const auto first = header(0);
  const auto last = header(bytes.size() - kPageBytes);
  return first.ok() && last.ok() && last->kind == format::FrameKind::kTrailer &&
         first->nonce == last->nonce;
}

}  // namespace

Workload::Workload(StoreMachine* machine, uint64_t seed, const Shape& shape,
                   std::vector<Steps> legal)
    : machine_(machine), shape_(shape), prng_(seed), next_seed_(seed % 997) {
  machine_->world().SetCanPunch(shape.can_punch);
  first_saved_ = shape.first_steps == 0 || legal.back() != Steps{};
  for (const Steps& steps : legal) {
    if (!steps.empty()) next_step_ = std::max(next_step_, steps.rbegin()->first + 1);
  }
  model_.Begin(std::move(legal));
}

Workload::~Workload() = default;

bool Workload::Expect(const Status& status, std::string_view what) {
  if (status.ok()) return true;
  // A full disk fails what it must, and that alone.
  if (squeezed_ && status.code() == StatusCode::kResourceExhausted) return true;
  const bool wrong = status.code() == StatusCode::kInternal;
  if (!machine_->world().frozen() && (!tolerant_ || wrong)) {
    problem_ = StrCat(what, ": ", status.ToString());
  }
  return false;
}

bool Workload::Open() {
  if (prng_.OneIn(2)) keep_ = Keep{2 + prng_.Below(shape_.keep_max - 1), prng_.Coin()};
  if (prng_.OneIn(3)) keep_.reset();
  std::optional<uint64_t> latest;
  if (keep_) latest = keep_->latest;
  auto store = machine_->Open({.keep_latest = latest,
                               .keep_last_verified = keep_ && keep_->last_verified,
                               .with_index = shape_.with_index,
                               .segment_bytes = shape_.segment_bytes,
                               .staging_blocks = shape_.staging_blocks,
                               .path = shape_.path});
  if (!Expect(store.status(), "open")) return false;
  store_ = std::move(*store);
  if (!tolerant_) {
    for (const std::string& said : store_->recovery().problems) problem_ = StrCat("open: ", said);
  }
  if (!problem_.empty() || (!settled_ && !SettleOpened())) return false;
  return SaveFirstSteps();
}

// Which of the legal states it is, is seen now.
bool Workload::SettleOpened() {
  const auto seen = ReadAll(store_.get());
  if (!Expect(seen.status(), "reading what was recovered")) {
    if (problem_.empty() && !machine_->world().frozen()) store_.reset();
    return false;
  }
  const std::vector<Steps> legal = model_.Legal();
  if (std::find(legal.begin(), legal.end(), *seen) == legal.end()) {
    problem_ = StrCat("found ", ToText(*seen), ", legal is");
    for (const Steps& steps : legal) problem_ += StrCat(" ", ToText(steps));
    return false;
  }
  if (machine_->world().frozen()) return false;  // nothing is final on a stopped machine
  model_.Settle(*seen);
  settled_ = true;
  return true;
}

bool Workload::SaveFirstSteps() {
  if (std::exchange(first_saved_, true)) return true;
  for (uint64_t i = 0; i < shape_.first_steps; ++i) {
    const uint64_t seed = kTiny | next_seed_++;
    auto handle = SaveStep(store_.get(), next_step_, seed);
    if (!Expect(handle.status(), "save")) return false;
    model_.Saved(next_step_++, HeldOf(seed), keep_, std::move(*handle));
    // The model's states in flight have all these steps, each.
    if (i % 256 == 255 && !WaitAll()) return false;
  }
  return WaitAll();
}

void Workload::Drop() {
  readers_.clear();
  store_.reset();
  any_ = false;
  settled_ = false;
}

bool Workload::Squeeze(bool on) {
  // The refusals of the full disk are known before there is room again.
  if (!on && !WaitAll()) return false;
  squeezed_ = on;
  any_ = false;
  SimWorld& world = machine_->world();
  world.SetCapacity(on ? world.UsedBytes() + prng_.Below(400'000) : kUnlimitedBytes);
  return true;
}

bool Workload::Close() {
  if (squeezed_ && !Squeeze(false)) return false;
  // Errors of the full disk may be left to report.
  if (!WaitAll() && (!tolerant_ || !problem_.empty())) return false;
  const Status status = store_->Close();
  store_.reset();
  any_ = false;
  settled_ = false;
  if (!Expect(status, "close") || machine_->world().frozen() || !CheckLinks()) return false;
  if (tolerant_) return true;
  model_.Settle(model_.Newest());
  settled_ = true;
  return true;
}

uint64_t Workload::NextSeed() {
  const uint64_t seed = next_seed_++;
  const uint64_t roll = shape_.tiny_percent + shape_.large_percent > 0 ? prng_.Below(100) : 100;
  if (roll < shape_.tiny_percent) return seed | kTiny;
  if (roll < shape_.tiny_percent + shape_.large_percent) return seed | kLarge;
  return seed;
}

// Every fifth save ends others in its commit: the newest, perhaps still in flight, or pinned, some
// further, and one that is not there.
std::vector<uint64_t> Workload::RetiredWith(uint64_t seed) const {
  std::vector<uint64_t> retire;
  if (seed % 5 != 4) return retire;
  size_t at = 0;
  const Steps steps = model_.Newest();
  for (auto it = steps.rbegin(); it != steps.rend(); ++it, ++at) {
    if (at == 0 || (seed >> (at % 8)) % 3 == 0) retire.push_back(it->first);
  }
  retire.push_back(next_step_ + 500);
  return retire;
}

bool Workload::Save(bool replace) {
  const Steps steps = model_.Newest();
  uint64_t step = next_step_;
  auto if_exists = db::IfExists::kReplace;
  if (replace && !steps.empty()) {
    auto [chosen, held] = Pick(steps, &prng_);
    // The last one may still be in flight: then both commits share a flush.
    if (const auto last = steps.find(last_step_); last != steps.end() && prng_.OneIn(2)) {
      std::tie(chosen, held) = *last;
    }
    if (held & kPinned) {
      const auto refused = SaveStep(store_.get(), chosen, NextSeed(), if_exists);
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
  const uint64_t seed = NextSeed();
  const std::vector<uint64_t> retire = RetiredWith(seed);
  auto handle = SaveStep(store_.get(), step, seed, if_exists, std::nullopt, retire);
  if (!Expect(handle.status(), StrCat("save of ", step))) return false;
  newest_ = *handle;
  any_ = true;
  last_step_ = step;
  model_.Saved(step, HeldOf(seed), keep_, std::move(*handle), retire);
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
  // The step may have been a save in flight that the full disk refused.
  if ((squeezed_ || tolerant_) && status.code() == StatusCode::kNotFound) return true;
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
  if ((squeezed_ || tolerant_) && status.code() == StatusCode::kNotFound) return true;
  model_.PinSet(step, pin, status);
  return Expect(status, StrCat("pin of ", step));
}

// Of the last step that was saved, or of any.
bool Workload::ToggleTaint() {
  const Steps steps = model_.Newest();
  if (steps.empty()) return true;
  auto [step, held] = Pick(steps, &prng_);
  if (const auto last = steps.find(last_step_); last != steps.end() && prng_.Coin()) {
    std::tie(step, held) = *last;
  }
  const std::vector<uint64_t> one = {step};
  const bool taint = !(held & kTainted);
  const Status status = store_->SetTaint(one, taint ? TaintOf(step) : "");
  if ((squeezed_ || tolerant_) && status.code() == StatusCode::kNotFound) return true;
  model_.TaintSet(step, taint, status);
  return Expect(status, StrCat("taint of ", step));
}

// All steps, or one. A full or failing disk may keep from being recorded what was found.
bool Workload::Verify() {
  if (squeezed_ || tolerant_) return true;
  // A change in flight may delete or replace a step before it is its turn.
  if (!WaitAll()) return false;
  const Steps steps = model_.Newest();
  db::VerifyOptions options;
  if (!steps.empty() && prng_.Coin()) options.step = Pick(steps, &prng_).first;
  const auto report = store_->Verify(options);
  const bool stopped = machine_->world().frozen();  // then nothing is known of the record
  model_.Verified(options.step, stopped ? AbortedError("stopped") : report.status());
  if (!Expect(report.status(), "verify") || stopped) return false;
  if (!report->problems.empty()) problem_ = "verify: " + report->problems.front().message;
  return problem_.empty();
}

bool Workload::DeleteExtra() {
  // A change in flight may delete or replace a step before it is its turn.
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
  if (legal.size() == 1) {
    model_.Settle(legal.front());
  } else if (!tolerant_) {
    problem_ = "after Wait something is still in flight";
  }
  return problem_.empty();
}

bool Workload::WaitNewest() { return !any_ || Expect(newest_.Wait(), "wait for one"); }

bool Workload::CheckOne() {
  const std::vector<Steps> legal = model_.Legal();
  if (legal.front().empty() || (tolerant_ && legal.size() > 1)) return true;
  const auto [step, held] = Pick(legal.front(), &prng_);
  return Expect(CheckStep(store_.get(), step, held), StrCat("load of ", step));
}

bool Workload::ReadBeside() {
  auto reader = machine_->Open({.read_only = true, .path = shape_.path});
  if (!Expect(reader.status(), "open for reading")) return false;
  const auto seen = ReadAll(reader->get());
  if (!Expect(seen.status(), "reading beside the writer")) return false;
  const Steps visible = model_.Legal().front();
  // A slot that cannot be written moves no more.
  if (*seen != visible && !tolerant_ && !machine_->world().frozen()) {
    problem_ = StrCat("a reader sees ", ToText(*seen), " instead of ", ToText(visible));
  }
  return problem_.empty();
}

// Opens a step in a process of its own and keeps it while the writer goes on. On a full disk that
// process could not write its pin.
bool Workload::OpenReaderThatStays() {
  if (squeezed_) return true;
  if (readers_.size() >= shape_.readers) {
    if (readers_.empty()) return true;
    readers_.erase(readers_.begin() + static_cast<std::ptrdiff_t>(prng_.Below(readers_.size())));
    return true;
  }
  const std::vector<Steps> legal = model_.Legal();
  if (legal.front().empty() || (tolerant_ && legal.size() > 1)) return true;
  const auto [step, held] = Pick(legal.front(), &prng_);
  auto store = machine_->Open({.read_only = true, .path = shape_.path});
  if (!Expect(store.status(), "open for reading")) return false;
  auto reader = (*store)->Read(step);
  if (!Expect(reader.status(), StrCat("step ", step, " for a reader that stays"))) return false;
  if (tolerant_ && CheckStep(reader->get(), held).code() == StatusCode::kInternal) {
    return SlotIsBehind(step, held);
  }
  readers_.push_back({std::move(*store), std::move(*reader), held});
  return true;
}

// A reader saw another version than the newest: right only where STEPWELL could not be written. The
// store is frozen then, or it was a full disk; reclaim tries to write it again.
bool Workload::SlotIsBehind(uint64_t step, uint64_t held) {
  const Status behind = store_->Reclaim().status();
  if (!behind.ok()) return Expect(behind, "reclaim behind a slot");
  auto store = machine_->Open({.read_only = true, .path = shape_.path});
  if (!Expect(store.status(), "open for reading, again")) return false;
  return Expect(CheckStep(store->get(), step, held), StrCat("step ", step, ", read again"));
}

bool Workload::CheckReaders() {
  for (const OpenReader& reader : readers_) {
    if (!Expect(CheckStep(reader.step.get(), reader.held),
                StrCat("step ", reader.step->step().step, ", which a reader has open"))) {
      return false;
    }
  }
  return true;
}

bool Workload::Reclaim() {
  const auto report = store_->Reclaim();
  if (!Expect(report.status(), "reclaim")) return false;
  if (!report.ok()) return true;
  const db::SpaceStats space = store_->Stats().space;
  const uint64_t parts = space.live_bytes + space.padding_bytes + space.overhead_bytes +
                         space.dead_bytes + space.reserved_bytes + space.index_bytes +
                         space.other_bytes;
  if (parts != space.total_bytes && !machine_->world().frozen()) {
    problem_ = StrCat("the parts of the space add up to ", parts, ", not ", space.total_bytes);
  }
  return problem_.empty();
}

// Another name for the oldest segment, as an export makes it: nobody may change those bytes.
bool Workload::LinkSegment() {
  const std::string folder = shape_.path + "/segments/";
  std::vector<std::string> segments;
  for (const auto& [path, size] : machine_->world().Files()) {
    if (path.starts_with(folder) && path.ends_with(".seg")) segments.push_back(path);
  }
  // The newest are being written, and so may older ones be while saves are in flight.
  if (segments.size() < 5 || links_.size() >= 3 || !IsSealed(machine_->world(), segments.front())) {
    return true;
  }
  const std::string link = StrCat("/link", prng_.Next());
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
  if (shape_.readers > 0 && prng_.OneIn(8)) {
    return prng_.Coin() ? OpenReaderThatStays() : CheckReaders();
  }
  if (prng_.Below(100) < shape_.close_percent) return Close();
  const uint64_t roll = prng_.Below(99);
  if (roll < 42) return Save(false);
  if (roll < 52) return Save(true);
  if (roll < 60) return Delete();
  if (roll < 62) return TogglePin();
  if (roll < 65) return ToggleTaint();
  if (roll < 68) return DeleteExtra();
  if (roll < 76) return WaitAll();
  if (roll < 82) return WaitNewest();
  if (roll < 86) return CheckOne();
  if (roll < 89) return ReadBeside();
  if (roll < 91) return LinkSegment();
  if (roll < 94) return Reclaim() && CheckLinks();
  if (roll < 97) return Verify();
  return tolerant_ || !shape_.squeezes || Squeeze(!squeezed_);
}

void Workload::GoOnBeside(bool reclaims) {
  if (store_ == nullptr || !problem_.empty()) return;
  machine_->HoldReclaim(!reclaims);
  if (!(reclaims ? Delete() : TogglePin()) || !Save(/*replace=*/false) || !WaitAll()) return;
  if (reclaims) Reclaim();
}

void Workload::Run(int count) {
  for (int i = 0; i < count; ++i) {
    if (!Act()) return;
  }
  if (store_ != nullptr) Close();
}

}  // namespace stepwell::sim
