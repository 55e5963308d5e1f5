// SPDX-License-Identifier: Apache-2.0
#include "fuzz/support/stores.h"

#include <algorithm>
#include <cstring>

#include "db/layout.h"
#include "db/save/plan.h"
#include "format/key.h"
#include "fuzz/support/check.h"
#include "fuzz/support/frames.h"
#include "tests/sim/support/held_executor.h"

namespace stepwell::fuzz {
namespace {

using format::ContainerKind;
using format::DType;
using format::LeafKind;
using format::PathComponent;
using format::ValueType;

constexpr uint64_t kSegmentBytes = uint64_t{192} << 10;
constexpr uint64_t kStagingBytes = 6 * db::kBlockBytes;

std::string Key(const std::string& item, const format::KeyPath& path) {
  return format::EncodeLeafKey(item, path).value();
}

PathComponent Name(const std::string& name) { return {PathComponent::Type::kKey, 0, name}; }

std::string Noise(size_t size, uint64_t seed, bool compressible) {
  Prng prng(seed);
  std::string bytes(size, static_cast<char>(seed));
  if (compressible) return bytes;
  for (char& byte : bytes) byte = static_cast<char>(prng.Next());
  return bytes;
}

class StateBuilder {
 public:
  StateBuilder(uint64_t step, uint64_t seed) : seed_(seed) {
    request_.step = step;
    request_.metadata_json = StrCat("{\"seed\": ", seed, "}");
    request_.metrics_json = StrCat("{\"loss\": ", seed % 10, "}");
  }

  void Item(const std::string& name) { request_.items.push_back({.name = name, .leaves = {}}); }

  void Array(const format::KeyPath& path, DType dtype, const format::Shape& shape,
             bool compressible) {
    db::LeafInput leaf = Leaf(path, LeafKind::kArray);
    leaf.record.value_type = ValueType::kNumpyArray;
    leaf.record.dtype = dtype;
    leaf.record.shape = shape;
    const uint64_t item_bytes = format::FindDType(dtype)->item_bytes;
    const uint64_t bytes = format::ElementCount(shape, item_bytes).value() * item_bytes;
    auto data = std::make_shared<std::string>(Noise(bytes, ++seed_ * 31, compressible));
    if (dtype == DType::kInt4) {
      for (char& byte : *data) byte &= 0x0F;  // else it would come back with other high bits
    }
    Add(std::move(leaf), std::move(data));
  }

  // Adds an array of which one byte of a hundred is another one with each seed.
  void Sparse(const format::KeyPath& path, uint64_t seed) {
    db::LeafInput leaf = Leaf(path, LeafKind::kArray);
    leaf.record.value_type = ValueType::kNumpyArray;
    leaf.record.dtype = DType::kInt8;
    leaf.record.shape = {6000};
    auto data = std::make_shared<std::string>(Noise(6000, 77, false));
    for (size_t i = 0; i < data->size(); i += 100) (*data)[i] = static_cast<char>(seed);
    Add(std::move(leaf), std::move(data));
  }

  void Value(const format::KeyPath& path, ValueType type, const std::string& value) {
    db::LeafInput leaf = Leaf(path, LeafKind::kValue);
    leaf.record.value_type = type;
    leaf.value = value;
    leaves_[leaf.record.key] = value;
    request_.items.back().leaves.push_back(std::move(leaf));
  }

  void Node(const format::KeyPath& path, ContainerKind container, uint64_t children) {
    db::LeafInput leaf = Leaf(path, LeafKind::kNode);
    leaf.record.container = container;
    leaf.record.child_count = children;
    leaves_[leaf.record.key] = "";
    request_.items.back().leaves.push_back(std::move(leaf));
  }

  db::SaveRequest TakeRequest() { return std::move(request_); }
  Leaves TakeLeaves() { return std::move(leaves_); }

 private:
  void Add(db::LeafInput leaf, std::shared_ptr<std::string> data) {
    leaf.data = reinterpret_cast<const std::byte*>(data->data());
    leaf.hold = data;
    leaves_[leaf.record.key] = *data;
    request_.items.back().leaves.push_back(std::move(leaf));
  }

  db::LeafInput Leaf(const format::KeyPath& path, LeafKind kind) {
    db::LeafInput leaf;
    leaf.record.key = Key(request_.items.back().name, path);
    leaf.record.kind = kind;
    leaf.record.value_type = ValueType::kNone;
    return leaf;
  }

  uint64_t seed_;
  db::SaveRequest request_;
  Leaves leaves_;
};

StateBuilder MakeState(uint64_t step, uint64_t seed) {
  StateBuilder state(step, seed);
  state.Item("state");
  const bool has_nothing = seed % 3 == 0;
  const bool has_large = seed == 5;
  state.Node({}, ContainerKind::kDict, 6 + (has_nothing ? 1 : 0) + (has_large ? 1 : 0));
  state.Array({Name("w")}, DType::kFloat32, {30, 50}, false);
  state.Node({Name("w2")}, ContainerKind::kList, 1);
  state.Array({Name("w2"), {PathComponent::Type::kIndex, 0, ""}}, DType::kBFloat16, {7}, false);
  state.Array({Name("zeros")}, DType::kFloat32, {40, 200}, true);
  state.Sparse({Name("sparse")}, seed);
  state.Value({Name("lr")}, ValueType::kFloat, Noise(8, seed, false));
  state.Value({Name("text")}, ValueType::kStr, Noise(seed % 2 == 0 ? 5 : 5000, 'a', true));
  if (has_nothing) state.Array({Name("nothing")}, DType::kInt8, {0, 3}, false);
  if (has_large) state.Array({Name("large")}, DType::kInt16, {3, 190'000}, true);  // several chunks
  if (seed % 2 == 1) {
    state.Item("config");
    state.Node({}, ContainerKind::kDict, 2);
    state.Value({Name("text")}, ValueType::kStr, StrCat("{\"n\": ", seed, "}"));
    state.Array({Name("bits")}, DType::kInt4, {13}, true);
  }
  return state;
}

// Ends the process at the first error in making the stores. Such an error is a bug, of either side.
void Must(const Status& status) { Check(status.ok(), "making stores: ", status.ToString()); }

// Records the outcome of a change. Returns true if it happened, or may have.
bool RecordOutcome(const Status& status, uint64_t step, History* history) {
  const bool is_unknown = status.code() == StatusCode::kOutcomeUnknown;
  if (is_unknown) history->unknown.insert(step);
  return is_unknown || status.ok();
}

uint64_t DurableMark(const std::shared_ptr<sim::SimWorld>& world) {
  sim::SimFileSystem files(world);
  const std::string bytes = ReadFile(&files, db::SlotFilePath(kStorePath));
  uint64_t mark = 0;
  for (uint64_t at = 0; at + format::kSlotBytes <= bytes.size(); at += format::kSlotBytes) {
    const auto slot = format::DecodeSlot(AsBytes(bytes).subspan(at, format::kSlotBytes));
    if (slot.ok()) mark = std::max(mark, slot->durable_commit);
  }
  return mark;
}

class Maker {
 public:
  explicit Maker(const std::string& name) : machine_(world_) { made_.name = name; }

  db::Store* Open(db::CodecPolicy codec) {
    db::StoreOptions options;
    options.codec = codec;
    auto store = machine_.Open(options);
    Must(store.status());
    store_ = std::move(*store);
    return store_.get();
  }
  void Save(uint64_t step, uint64_t seed) {
    Must(SaveSeeded(store_.get(), step, seed, db::IfExists::kReplace, &made_.history));
  }
  void DropConfig(uint64_t step) { Must(DeleteConfig(store_.get(), step, &made_.history)); }
  void Pin(uint64_t step) { Must(PinStep(store_.get(), step, true, &made_.history)); }
  void Delete(uint64_t step) { Must(DeleteStep(store_.get(), step, &made_.history)); }
  void Close() {
    Must(store_->Close());
    store_.reset();
  }
  BaseStore Closed() {
    Close();
    made_.world = world_->CrashImageProcessKill(1);  // nobody has it open: a copy
    return std::move(made_);
  }
  // A reader has it open, too, so that its pin is left behind.
  BaseStore Killed() {
    db::StoreOptions options;
    options.read_only = true;
    const auto reader = machine_.Open(options);
    Must(reader.status());
    made_.world = world_->CrashImageProcessKill(2);
    return std::move(made_);
  }
  // The first power cut that leaves STEPWELL so.
  BaseStore PowerCut(uint64_t newest_step, bool marked) {
    const auto newest = store_->Read(newest_step);
    Must(newest.status());
    for (uint64_t seed = 3; seed < 100; ++seed) {
      made_.world = world_->Crash({.seed = seed, .odds = {}, .names = {}});
      made_.marked = DurableMark(made_.world) >= (*newest)->step().commit;
      if (made_.marked == marked) return std::move(made_);
    }
    Check(false, "no power cut leaves STEPWELL so");
    return {};
  }

 private:
  const std::shared_ptr<sim::SimWorld> world_ = sim::SimWorld::Make({});
  Machine machine_;
  std::unique_ptr<db::Store> store_;
  BaseStore made_;
};

BaseStore MakeClosed() {
  Maker maker("closed");
  maker.Open(db::CodecPolicy::kRaw);
  for (uint64_t step = 1; step <= 4; ++step) maker.Save(step * 10, step);
  maker.Delete(20);
  maker.Save(30, 8);  // replaces
  maker.DropConfig(10);
  maker.Pin(40);
  maker.Close();
  maker.Open(db::CodecPolicy::kRaw);
  maker.Save(60, 9);
  return maker.Closed();
}

BaseStore MakeCompressed() {
  Maker maker("compressed");
  maker.Open(db::CodecPolicy::kBlosc);
  maker.Save(5, 5);
  maker.Save(6, 11);
  maker.Save(7, 12);
  return maker.Closed();
}

BaseStore MakeKilled() {
  Maker maker("killed");
  maker.Open(db::CodecPolicy::kAuto);
  for (uint64_t step = 100; step < 106; ++step) maker.Save(step, step);
  maker.Delete(101);
  maker.DropConfig(105);
  maker.Pin(104);
  maker.Save(103, 40);
  return maker.Killed();
}

BaseStore MakePowerCut(bool marked) {
  Maker maker(marked ? "power-cut-marked" : "power-cut");
  maker.Open(db::CodecPolicy::kRaw);
  maker.Save(1, 1);
  maker.Save(2, 2);
  maker.Close();
  maker.Open(db::CodecPolicy::kRaw);
  maker.Save(3, 3);
  maker.Save(1, 4);
  return maker.PowerCut(1, marked);
}

BaseStore MakeEmpty() {
  Maker maker("empty");
  maker.Open(db::CodecPolicy::kRaw);
  return maker.Closed();
}

}  // namespace

const std::vector<BaseStore>& BaseStores() {
  static const auto* stores = [] {
    auto* made = new std::vector<BaseStore>;
    made->push_back(MakeClosed());
    made->push_back(MakeCompressed());
    made->push_back(MakeKilled());
    made->push_back(MakePowerCut(false));
    made->push_back(MakeEmpty());
    made->push_back(MakePowerCut(true));
    return made;
  }();
  return *stores;
}

Result<std::unique_ptr<db::Store>> Machine::Open(db::StoreOptions options) {
  db::Environment environment = db::InlineEnvironment();
  environment.file_system = &files_;
  environment.make_disk = [this]() -> Result<std::unique_ptr<io::Disk>> {
    return std::unique_ptr<io::Disk>(std::make_unique<sim::SimDisk>(world_));
  };
  environment.clock = &clock_;
  environment.random = [this] { return prng_.Next(); };
  environment.without_index = !with_index_;
  options.delta = true;
  options.staging_bytes = kStagingBytes;
  options.segment_bytes = kSegmentBytes;
  options.lock_timeout = std::chrono::milliseconds(0);
  return db::OpenStore(kStorePath, options, std::move(environment));
}

Status SaveSeeded(db::Store* store, uint64_t step, uint64_t seed, db::IfExists if_exists,
                  History* history) {
  StateBuilder state = MakeState(step, seed);
  db::SaveRequest request = state.TakeRequest();
  request.if_exists = if_exists;
  SavedStep saved = {state.TakeLeaves(), request.metadata_json, request.metrics_json};
  STEPWELL_ASSIGN_OR_RETURN(const db::SaveHandle handle, store->Save(std::move(request)));
  const Status status = handle.Wait();
  if (RecordOutcome(status, step, history)) {
    history->saved[step].push_back(saved);
    history->live[step] = {std::move(saved), false};
  }
  return status;
}

Status DeleteConfig(db::Store* store, uint64_t step, History* history) {
  const std::vector<std::string> items = {"config"};
  const Status status = store->DeleteItems(step, items);
  if (!RecordOutcome(status, step, history)) return status;
  const auto drop = [&](SavedStep* saved) {
    std::erase_if(saved->leaves, [&](const auto& leaf) {
      return leaf.first.starts_with(format::EncodeItem(items[0]));
    });
  };
  std::vector<SavedStep>& states = history->saved[step];
  const size_t count = states.size();
  for (size_t i = 0; i < count; ++i) {
    SavedStep left = states[i];
    drop(&left);
    states.push_back(std::move(left));
  }
  if (const auto live = history->live.find(step); live != history->live.end()) {
    drop(&live->second.state);
  }
  return status;
}

Status DeleteStep(db::Store* store, uint64_t step, History* history) {
  const Status status = store->Delete({&step, 1});
  if (RecordOutcome(status, step, history)) history->live.erase(step);
  return status;
}

Status PinStep(db::Store* store, uint64_t step, bool pinned, History* history) {
  const Status status = store->SetPinned({&step, 1}, pinned);
  if (RecordOutcome(status, step, history)) {
    if (const auto live = history->live.find(step); live != history->live.end()) {
      live->second.pinned = pinned;
    }
  }
  return status;
}

}  // namespace stepwell::fuzz
