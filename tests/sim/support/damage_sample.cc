// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/support/damage_sample.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "format/frame.h"

namespace stepwell::sim {
namespace {

class SampleMaker {
 public:
  SampleMaker(uint64_t sessions, bool clean, bool with_index)
      : world_(SimWorld::Make({7 + sessions, kPlenty})), machine_(world_, 7) {
    for (uint64_t session = 0; session < sessions; ++session) {
      store_ = std::move(*machine_.Open({.with_index = with_index}));
      if (session == 0) {
        for (uint64_t step = 10; step < 14; ++step) Save(step);
        Note(store_->Delete(std::vector<uint64_t>{10}));
        steps_.erase(10);
        Pin(12, true);
      }
      Save(11);  // replaces it, each time with another value
      if (session > 0) {
        Pin(12, session % 2 == 0);
        Save(20 + session);
        Note(store_->Delete(std::vector<uint64_t>{20 + session}));
        steps_.erase(20 + session);
      }
      Save(30 + session);
      Pin(13, session % 2 == 0);  // frames behind that of the newest step
      Pin(11, true);
      Pin(11, false);
      if (session + 1 < sessions) Note(store_->Close());  // STEPWELL then says that it was
    }
    if (clean) EXPECT_OK(store_->Close());
    sample_.name =
        StrCat(sessions, sessions == 1 ? " session, " : " sessions, ", clean ? "closed" : "killed");
    sample_.world = world_->CrashImageProcessKill(1);
    sample_.wanted = steps_;
    sample_.with_index = with_index;
  }

  Sample Take() { return std::move(sample_); }

 private:
  void Note(const Status& status) {
    EXPECT_TRUE(status.ok()) << status.ToString();
    sample_.older_slots.push_back(*world_->Contents("/store/STEPWELL"));
  }
  void Save(uint64_t step) {
    const uint64_t seed = SmallSeed(++seeds_);
    Note(SaveStep(store_.get(), step, seed, db::IfExists::kReplace)->Wait());
    steps_[step] = HeldOf(seed);
  }
  void Pin(uint64_t step, bool pinned) {
    Note(store_->SetPinned(std::vector<uint64_t>{step}, pinned));
    steps_[step] = SeedOf(steps_[step]) | (pinned ? kPinned : 0);
  }

  std::shared_ptr<SimWorld> world_;
  StoreMachine machine_;
  std::unique_ptr<db::Store> store_;
  Steps steps_;
  uint64_t seeds_ = 0;
  Sample sample_;
};

}  // namespace

std::string RegionOf(const std::string& path, const std::string& bytes, uint64_t offset) {
  if (!path.ends_with(".seg")) return path.substr(path.rfind('/') + 1);
  static const char* const kNames[] = {"?",       "header", "catalog", "epoch",  "records",
                                       "commit",  "delete", "meta",    "footer", "trailer",
                                       "decided", "parity", "prepared"};
  for (uint64_t at = offset / kBlock * kBlock;; at -= kBlock) {
    const auto header = format::DecodeFrameHeader(
        AsBytes(bytes).subspan(at, std::min<size_t>(format::kFrameHeaderBytes, bytes.size() - at)));
    if (header.ok()) {
      const uint64_t end = at + format::kFrameHeaderBytes + header->payload_bytes;
      const auto kind = static_cast<size_t>(header->kind);
      if (offset < end) return kind < std::size(kNames) ? kNames[kind] : "?";
      return at == offset / kBlock * kBlock ? "padding" : "payload";
    }
    if (at == 0) return "payload";
  }
}

bool HasCopy(const std::string& region) {
  static const std::set<std::string> kRegions = {"header", "catalog", "epoch",  "commit",
                                                 "delete", "meta",    "decided"};
  return kRegions.contains(region);
}

bool IsOfTheStore(const std::string& path) {
  return path.ends_with("/STEPWELL") || path.ends_with(".seg");
}

Sample MakeSample(uint64_t sessions, bool clean, bool with_index) {
  return SampleMaker(sessions, clean, with_index).Take();
}

std::string Look(StoreMachine* machine, const Steps& wanted, const OpenSpec& spec, bool* whole,
                 std::unique_ptr<db::Store>* opened) {
  *whole = false;
  auto store = machine->Open(spec);
  if (!store.ok()) return "";
  bool named = !(*store)->recovery().problems.empty();
  const auto report = (*store)->Verify({});
  named = named || !report.ok() || !report->problems.empty();
  const auto listed = (*store)->Steps();
  std::set<uint64_t> numbers;
  for (const auto& [step, held] : wanted) numbers.insert(step);
  if (listed.ok()) {
    for (const auto& summary : *listed) numbers.insert(summary.step.step);
  }
  std::string missing;
  bool errors = !listed.ok();
  for (const uint64_t step : numbers) {
    const auto it = wanted.find(step);
    const auto reader = (*store)->Read(step);
    if (reader.status().code() == StatusCode::kNotFound) {
      if (it != wanted.end()) missing = "a step is missing";
      continue;
    }
    if (!reader.ok()) {
      errors = true;
      continue;
    }
    if (it == wanted.end()) {
      if ((*reader)->Leaves("").ok()) return "a deleted step is back";
      errors = true;
      continue;
    }
    const Status status = CheckStep(reader->get(), it->second);
    if (status.code() == StatusCode::kInternal) return "a wrong version is served";
    errors = errors || !status.ok();
    if (status.ok() && (*reader)->step().pinned != ((it->second & kPinned) != 0)) {
      missing = "a pin is wrong";
    }
  }
  // A trainer goes on from the newest: an older one is a step back without a word.
  if (const auto newest = (*store)->Newest(); newest.ok()) {
    const uint64_t expected = wanted.empty() ? 0 : wanted.rbegin()->first;
    if (newest->value_or(0) != expected) return "an older step is the newest";
  }
  *whole = missing.empty() && !errors;
  if (!missing.empty() && !named) return missing + ", unnamed";
  // A reader that fails and a verify that is content do not go together.
  if (errors && !named) return "verify is content though reads fail";
  *opened = std::move(*store);
  return "";
}

std::string Examine(const std::shared_ptr<SimWorld>& world, Steps wanted, bool with_writer,
                    bool has_copy) {
  bool whole = false;
  {
    StoreMachine machine(world, 1);
    std::unique_ptr<db::Store> store;
    const std::string wrong = Look(&machine, wanted, {.read_only = true}, &whole, &store);
    if (!wrong.empty()) return "reader: " + wrong;
    if (has_copy && !whole) return "reader: not repaired from the copy";
  }
  if (!with_writer) return "";
  {
    StoreMachine machine(world, 2);
    std::unique_ptr<db::Store> store;
    const std::string wrong = Look(&machine, wanted, {}, &whole, &store);
    if (!wrong.empty()) return "writer: " + wrong;
    if (store != nullptr) {
      const auto handle = SaveStep(store.get(), kNewStep, SmallSeed(1000));
      if (handle.ok() && handle->Wait().ok()) wanted[kNewStep] = HeldOf(SmallSeed(1000));
      store->Close().IgnoreError("a damaged store may say so");
    }
  }
  for (const bool read_only : {true, false}) {
    StoreMachine machine(world, 3);
    std::unique_ptr<db::Store> store;
    const std::string wrong = Look(&machine, wanted, {.read_only = read_only}, &whole, &store);
    if (!wrong.empty()) return "after a writer: " + wrong;
    if (has_copy && !whole) return "after a writer: not repaired from the copy";
  }
  return "";
}

}  // namespace stepwell::sim
