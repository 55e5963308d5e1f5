// SPDX-License-Identifier: Apache-2.0
// Differences: a chunk that changed is stored as the difference to the commit before.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "db/layout.h"
#include "db/log/chunk_source.h"
#include "db/save/encode.h"
#include "format/codec.h"
#include "format/hash.h"
#include "tests/db/support/reclaim_support.h"
#include "tests/prng.h"

namespace stepwell::db {
namespace {

using ::testing::IsEmpty;

// 1.6 MB of ten chunks in which one element of fifty changes with each step, on the caller's thread
// and on a worker.
const std::vector<LeafSpec> kSparse = {{"held", {200'000}, true, false, 1, 0, 160'000, 50},
                                       {"staged", {200'000}, false, false, 1, 0, 160'000, 50},
                                       {"small", {11}, false, false}};
constexpr uint64_t kSparseBytes = 1'600'000;

class DeltaTest : public ReclaimTest {
 protected:
  StoreOptions Options() {
    StoreOptions options = ReclaimTest::Options();
    options.delta = true;
    return options;
  }
  static void SaveSparse(Store* store, uint64_t step, IfExists if_exists = IfExists::kError) {
    const auto handle = SaveSeeded(store, step, step, kSparse, if_exists);
    ASSERT_OK(handle.status());
    ASSERT_OK(handle->Wait());
  }
  static uint64_t Owned(Store* store, uint64_t step) {
    const auto reader = store->Read(step);
    EXPECT_OK(reader.status());
    const format::StepRecord record = (*reader)->step();
    return record.stored_bytes - record.referenced_bytes;
  }
  static format::LeafRecord LeafOf(Store* store, uint64_t step, const std::string& name) {
    const auto reader = store->Read(step);
    EXPECT_OK(reader.status());
    const auto leaf = (*reader)->Find(KeyOf("state", name));
    EXPECT_OK(leaf.status());
    return **leaf;
  }
  static void ExpectWhole(Store* store, uint64_t step) {
    SCOPED_TRACE(step);
    EXPECT_OK(CheckSeeded(&**store->Read(step), step, kSparse));
  }
  static void ExpectSound(Store* store) {
    const auto report = store->Verify({});
    ASSERT_OK(report.status());
    for (const auto& problem : report->problems) ADD_FAILURE() << problem.message;
  }
  void Flip(const format::StoredPayload& payload) const {
    std::fstream file(SegmentPath(path_, payload.segment),
                      std::ios::in | std::ios::out | std::ios::binary);
    const auto at = static_cast<std::streamoff>(payload.offset_bytes + payload.stored_bytes / 2);
    file.seekg(at);
    const auto was = static_cast<char>(file.get());
    file.seekp(at);
    file.put(static_cast<char>(was ^ 0x40));
  }
};

TEST_F(DeltaTest, ASparseChangeTakesAFractionOfTheBytes) {
  const auto store = Open(Options());
  uint64_t owned = 0;
  for (uint64_t step = 1; step <= 40; ++step) {
    SaveSparse(store.get(), step);
    owned += Owned(store.get(), step);
    const format::StepRecord record = (*store->Read(step))->step();
    EXPECT_LE(record.stored_bytes, kSparseBytes * 3 / 2 + 10'000) << "step " << step;
    EXPECT_GE(record.logical_bytes, kSparseBytes) << "step " << step;
  }
  EXPECT_LT(owned, 40 * kSparseBytes / 5);
  for (uint64_t step = 1; step <= 40; ++step) ExpectWhole(store.get(), step);
  ExpectSound(store.get());
  const auto chunks = LeafOf(store.get(), 3, "held").chunks;
  EXPECT_EQ(chunks.size(), 5U);
  for (const auto& chunk : chunks) {
    EXPECT_EQ(chunk.codec, format::CodecId::kDelta);
    EXPECT_EQ(chunk.bases.size(), 2U);
  }
}

// A load of a slice reads the payloads of its chunks and no others.
TEST_F(DeltaTest, ASliceNeedsOnlyItsOwnChunks) {
  const auto store = Open(Options());
  for (uint64_t step = 1; step <= 5; ++step) SaveSparse(store.get(), step);
  const auto reader = store->Read(5);
  const format::LeafRecord leaf = LeafOf(store.get(), 5, "held");
  std::vector<float> out(10);
  LoadRequest request;
  request.leaf = &leaf;
  request.box = {{50'000}, {50'010}};
  request.out = reinterpret_cast<std::byte*>(out.data());
  const auto stats = (*reader)->Load({&request, 1});
  ASSERT_OK(stats.status());
  const std::vector<float> all = LeafData(kSparse[0], 5);
  EXPECT_TRUE(std::equal(out.begin(), out.end(), all.begin() + 50'000));
  EXPECT_EQ(stats->chunks, 1U);
  EXPECT_EQ(stats->bytes_needed, leaf.chunks[1].all_stored_bytes());
}

TEST_F(DeltaTest, TheFirstSaveOfASessionReadsItsBaseFromTheDisk) {
  for (uint64_t step = 1; step <= 4; ++step) {
    const auto store = Open(Options());
    SaveSparse(store.get(), step);
    if (step > 1) {
      EXPECT_LT(Owned(store.get(), step), kSparseBytes / 5) << "step " << step;
    }
    ASSERT_OK(store->Close());
  }
  const auto store = Open(ReclaimTest::Options());  // who reads needs no option, nor who saves
  for (uint64_t step = 1; step <= 4; ++step) ExpectWhole(store.get(), step);
  SaveSparse(store.get(), 5);
  EXPECT_GE(Owned(store.get(), 5), kSparseBytes);
  ExpectWhole(store.get(), 5);
}

// Staging memory that cannot keep what was saved: bases are read from the disk.
TEST_F(DeltaTest, MemoryStaysWithinItsBound) {
  StoreOptions options = Options();
  options.staging_bytes = 4 * kBlockBytes;
  const auto store = Open(options);
  const std::vector<LeafSpec> large = {{"a", {5'000'000}, false, false, 1, 0, 0, 100},
                                       {"b", {3'000'000}, true, false, 1, 0, 0, 100}};
  for (uint64_t step = 1; step <= 3; ++step) {
    ASSERT_OK(SaveSeeded(store.get(), step, step, large)->Wait());
    if (step > 1) {
      EXPECT_LT(Owned(store.get(), step), 4'000'000U);
    }
    const StoreStats stats = store->Stats();
    EXPECT_LE(stats.staging_bytes, stats.staging_bytes_max);
    EXPECT_EQ(stats.staging_bytes_max, 4 * kBlockBytes);
  }
  for (uint64_t step = 1; step <= 3; ++step) {
    EXPECT_OK(CheckSeeded(&**store->Read(step), step, large));
  }
}

// Whatever rots of a chain, each step that needs it says so, and the others are whole.
TEST_F(DeltaTest, DamageIsNamedByEachStepThatNeedsIt) {
  const auto store = Open(Options());
  for (uint64_t step = 1; step <= 6; ++step) SaveSparse(store.get(), step);
  Flip(LeafOf(store.get(), 3, "held").chunks[2]);
  for (uint64_t step = 1; step <= 6; ++step) {
    const Status status = CheckSeeded(&**store->Read(step), step, kSparse);
    EXPECT_EQ(status.code(), step < 3 ? StatusCode::kOk : StatusCode::kDataLoss) << "step " << step;
  }
  const auto report = store->Verify({});
  ASSERT_OK(report.status());
  std::set<uint64_t> steps;
  for (const auto& problem : report->problems) steps.insert(*problem.step);
  EXPECT_THAT(steps, ::testing::ElementsAre(3, 4, 5, 6));
}

TEST_F(DeltaTest, WhatRottedSinceTheLastSessionIsNoBase) {
  {
    const auto store = Open(Options());
    for (uint64_t step = 1; step <= 3; ++step) SaveSparse(store.get(), step);
    Flip(LeafOf(store.get(), 1, "staged").chunks[0]);  // a keyframe
    ASSERT_OK(store->Close());
  }
  const auto store = Open(Options());
  SaveSparse(store.get(), 4);
  ExpectWhole(store.get(), 4);
  const auto chunks = LeafOf(store.get(), 4, "staged").chunks;
  EXPECT_EQ(chunks[0].codec, format::CodecId::kRaw);
  EXPECT_EQ(chunks[1].codec, format::CodecId::kDelta);
}

TEST_F(DeltaTest, EqualContentBesideDifferencesIsReferredTo) {
  const auto store = Open(Options());
  for (uint64_t step = 1; step <= 3; ++step) SaveSparse(store.get(), step);
  const auto again = SaveSeeded(store.get(), 4, 3, kSparse);  // the state of step 3
  ASSERT_OK(again.status());
  ASSERT_OK(again->Wait());
  EXPECT_LT(Owned(store.get(), 4), 10'000U);
  EXPECT_OK(CheckSeeded(&**store->Read(4), 3, kSparse));
  ASSERT_OK(store->Close());
  const auto later = Open(Options());
  const auto once_more = SaveSeeded(later.get(), 5, 3, kSparse);
  ASSERT_OK(once_more.status());
  ASSERT_OK(once_more->Wait());
  EXPECT_LT(Owned(later.get(), 5), 10'000U);
  EXPECT_OK(CheckSeeded(&**later->Read(5), 3, kSparse));
  ExpectSound(later.get());
}

TEST_F(DeltaTest, AStepIsReplacedByADifferenceToItself) {
  const auto store = Open(Options());
  SaveSparse(store.get(), 1);
  const auto handle = SaveSeeded(store.get(), 1, 2, kSparse, IfExists::kReplace);
  ASSERT_OK(handle.status());
  ASSERT_OK(handle->Wait());
  ASSERT_OK(store->Reclaim().status());
  EXPECT_OK(CheckSeeded(&**store->Read(1), 2, kSparse));
  ExpectSound(store.get());
}

TEST_F(DeltaTest, UnderRetentionSpaceStaysThatOfOneAndAHalfSteps) {
  StoreOptions options = Options();
  options.keep = {{.kind = KeepRule::Kind::kLatest, .count = 1}};
  const auto store = Open(options);
  for (uint64_t step = 1; step <= 120; ++step) SaveSparse(store.get(), step);
  ASSERT_OK(store->Reclaim().status());
  ExpectWhole(store.get(), 120);
  EXPECT_LT(DiskUse(path_), 5 * kSparseBytes);
  ExpectSound(store.get());
}

// Only the last step of a chain has anything alone: later ones need the payloads of the others.
TEST_F(DeltaTest, ADeleteFreesWhatNoOtherStepBuildsUpon) {
  const auto store = Open(Options());
  for (uint64_t step = 1; step <= 4; ++step) SaveSparse(store.get(), step);
  const std::vector<uint64_t> all = {1, 2, 3, 4};
  const auto frees = store->FreesBytes(all);
  ASSERT_OK(frees.status());
  EXPECT_LT(frees->at(1).value(), 10'000U);
  EXPECT_LT(frees->at(3).value(), 10'000U);
  const uint64_t of_last = frees->at(4).value();
  EXPECT_GT(of_last, 3'000U);
  EXPECT_LT(of_last, kSparseBytes / 5);
  const std::vector<uint64_t> gone = {2, 3, 4};
  ASSERT_OK(store->Delete(gone));
  const std::vector<uint64_t> left = {1};
  EXPECT_GE(store->FreesBytes(left)->at(1).value(), kSparseBytes);
  ExpectWhole(store.get(), 1);
}

TEST_F(DeltaTest, ADenseChangeIsStoredWhole) {
  const auto store = Open(Options());
  const std::vector<LeafSpec> dense = {{"w", {100'000}, false, false}};
  for (uint64_t step = 1; step <= 6; ++step) {
    ASSERT_OK(SaveSeeded(store.get(), step, step, dense)->Wait());
    EXPECT_GE(Owned(store.get(), step), 400'000U);
    EXPECT_OK(CheckSeeded(&**store->Read(step), step, dense));
    for (const auto& chunk : LeafOf(store.get(), step, "w").chunks) {
      EXPECT_THAT(chunk.bases, IsEmpty());
    }
  }
}

TEST_F(DeltaTest, DifferencesAreTriedLessAndLessOften) {
  std::vector<int> tried;
  uint8_t dense_saves = 0;
  for (int saves = 0; saves <= 300; ++saves) {
    if (TriesDelta(dense_saves)) tried.push_back(saves);
    dense_saves = NextDenseSaves(dense_saves);
  }
  EXPECT_THAT(tried, ::testing::ElementsAre(0, 1, 2, 4, 8, 16, 32, 64, 128, 192, 256));
}

// After a long time of dense changes, too.
TEST_F(DeltaTest, ALeafThatBecomesSparseIsFoundOut) {
  const auto store = Open(Options());
  const LeafSpec dense = {"w", {3000}, false, false};
  const LeafSpec sparse = {"w", {3000}, false, false, 1, 0, 0, 50};
  uint64_t step = 0;
  for (; step < 270; ++step) ASSERT_OK(SaveSeeded(store.get(), step, step, {dense})->Wait());
  for (; step < 340; ++step) ASSERT_OK(SaveSeeded(store.get(), step, step, {sparse})->Wait());
  EXPECT_FALSE(LeafOf(store.get(), step - 1, "w").chunks[0].bases.empty());
  EXPECT_OK(CheckSeeded(&**store->Read(step - 1), step - 1, {sparse}));
}

// Every type, with the elements that arithmetic would lose: -0, infinities, NaNs with a payload.
TEST_F(DeltaTest, EveryTypeIsExact) {
  for (const format::DTypeInfo& dtype : format::AllDTypes()) {
    fs::remove_all(path_);
    const auto store = Open(Options());
    Prng prng(static_cast<uint64_t>(dtype.dtype));
    std::vector<uint8_t> bytes(64 * 1024 * dtype.item_bytes);
    const auto random = [&] {
      const auto byte = static_cast<uint8_t>(prng.Next());
      if (dtype.dtype == format::DType::kBool) return static_cast<uint8_t>(byte & 1);
      return static_cast<uint8_t>(dtype.value_bits == 0 ? byte
                                                        : byte & ((1 << dtype.value_bits) - 1));
    };
    for (uint8_t& byte : bytes) byte = random();
    std::vector<std::vector<uint8_t>> saved;
    for (uint64_t step = 0; step < 5; ++step) {
      for (size_t i = 0; step > 0 && i < bytes.size(); i += 1 + prng.Below(400)) {
        bytes[i] = random();
      }
      if (step == 3) std::memset(bytes.data(), 0, 1000);
      LeafInput leaf;
      leaf.record.key = KeyOf("state", "w");
      leaf.record.kind = format::LeafKind::kArray;
      leaf.record.dtype = dtype.dtype;
      leaf.record.shape = {64 * 1024};
      leaf.data = reinterpret_cast<const std::byte*>(bytes.data());
      SaveRequest request;
      request.step = step;
      request.items.push_back({.name = "state", .leaves = {}});
      request.items[0].leaves.push_back(std::move(leaf));
      auto handle = store->Save(std::move(request));
      ASSERT_OK(handle.status());
      ASSERT_OK(handle->Wait());
      saved.push_back(bytes);
    }
    size_t differences = 0;
    for (uint64_t step = 0; step < 5; ++step) {
      const format::LeafRecord leaf = LeafOf(store.get(), step, "w");
      for (const auto& chunk : leaf.chunks) differences += chunk.bases.empty() ? 0 : 1;
      std::vector<uint8_t> out(bytes.size());
      LoadRequest request;
      request.leaf = &leaf;
      request.box = format::WholeArray(leaf.shape);
      request.out = reinterpret_cast<std::byte*>(out.data());
      ASSERT_OK((*store->Read(step))->Load({&request, 1}).status());
      EXPECT_EQ(out, saved[step]) << dtype.name << ", step " << step;
    }
    EXPECT_GT(differences, 0U) << dtype.name;
    ASSERT_OK(store->Close());
  }
}

std::vector<std::byte> Whole(ConstBytes logical) {
  std::vector<std::byte> payload(format::PayloadBytesMax(format::CodecId::kRaw, logical.size()));
  EXPECT_OK(format::EncodePayload(format::CodecId::kRaw, 4, logical, payload).status());
  return payload;
}

// Payloads that are good, each for itself, and do not belong together.
TEST_F(DeltaTest, AWrongBaseNeverPasses) {
  std::vector<float> old(5000, 1.0F);
  const ConstBytes old_bytes(reinterpret_cast<const std::byte*>(old.data()), 20'000);
  const std::vector<std::byte> keyframe = Whole(old_bytes);
  std::vector<float> now = old;
  now[17] = 2.0F;
  const ConstBytes now_bytes(reinterpret_cast<const std::byte*>(now.data()), 20'000);
  std::vector<std::byte> delta(2000);
  const auto payload = format::EncodeDelta({4, true}, old_bytes, now_bytes, delta);
  ASSERT_OK(payload.status());
  ASSERT_GT(payload->size_bytes, 0U);
  delta.resize(payload->size_bytes);
  format::ChunkRecord chunk;
  chunk.codec = format::CodecId::kDelta;
  chunk.logical_bytes = 20'000;
  chunk.hash = format::HashOf(now_bytes);
  chunk.bases.emplace_back();
  std::vector<std::byte> out(20'000);
  const std::vector<ConstBytes> right = {keyframe, delta};
  EXPECT_OK(DecodeChunk(chunk, right, out));
  EXPECT_TRUE(std::equal(out.begin(), out.end(), now_bytes.begin()));
  old[4000] = 5.0F;
  const std::vector<std::byte> other = Whole(old_bytes);
  const std::vector<ConstBytes> wrong = {other, delta};
  EXPECT_EQ(DecodeChunk(chunk, wrong, out).code(), StatusCode::kDataLoss);
}

// A leaf of one chunk of float32, planned against a base of this session.
struct LeafOnBase {
  LeafOnBase(const std::string& path, RecentChunks* recent, uint32_t logical_bytes)
      : files(io::LocalFileSystem(), path, /*direct=*/false), task{.logical_bytes = logical_bytes} {
    records->of_session = true;
    chunk.logical_bytes = logical_bytes;
    leaf.input.record.kind = format::LeafKind::kArray;
    leaf.dtype = format::FindDType(format::DType::kFloat32);
    leaf.base = &there;
    leaf.base_step = &base;
    leaf.recent = recent;
  }

  const std::shared_ptr<BaseRecords> records = std::make_shared<BaseRecords>();
  BaseLeaf& there = records->leaves.emplace_back();
  format::ChunkRecord& chunk = there.chunks.emplace_back();
  SegmentFiles files;
  const ChunkSources sources{&files};
  SaveBase base{records, nullptr, &sources};
  PlannedLeaf leaf;
  const ChunkTask task;
  std::vector<std::byte> scratch;
};

// Two contents with one hash, as a collision would have them: the base's bytes are compared.
TEST_F(DeltaTest, ACollisionOfHashesIsNotTakenForEqualContent) {
  io::BufferPool pool(kBlockBytes, 8, 2);
  RecentChunks recent(&pool);
  std::vector<float> data(1000, 1.0F);
  const ConstBytes bytes(reinterpret_cast<const std::byte*>(data.data()), 4000);
  const std::vector<float> other(1000, 2.0F);
  recent.Keep(format::HashOf(bytes),
              ConstBytes(reinterpret_cast<const std::byte*>(other.data()), 4000), {});
  LeafOnBase on(path_, &recent, 4000);
  on.chunk.stored_bytes = 100;
  on.chunk.codec = format::CodecId::kDelta;
  on.chunk.hash = format::HashOf(bytes);
  on.chunk.bases.emplace_back().stored_bytes = 4004;
  on.leaf.as_delta = true;
  std::vector<std::byte> out(8192);
  const auto encoded = EncodeChunk(on.leaf, on.task, bytes, &on.scratch, out);
  ASSERT_OK(encoded.status());
  EXPECT_FALSE(encoded->same);
  EXPECT_FALSE(encoded->delta);
  EXPECT_EQ(encoded->stored_bytes, 4004U);
}

// However many steps are saved, two contents of each chunk are kept at most.
TEST_F(DeltaTest, RecentChunksDoNotFillTheirMemory) {
  io::BufferPool pool(kBlockBytes, 100, 2);
  RecentChunks recent(&pool);
  const std::vector<std::byte> bytes(size_t{2} << 20);
  const auto hash = [](uint64_t step, uint64_t chunk) { return format::Hash128{step, chunk}; };
  for (uint64_t step = 1; step <= 50; ++step) {
    for (uint64_t chunk = 0; chunk < 6; ++chunk) {
      recent.Keep(hash(step, chunk), bytes, hash(step - 1, chunk));
    }
    for (uint64_t chunk = 0; chunk < 6; ++chunk) {
      EXPECT_FALSE(recent.Find(hash(step, chunk), bytes.size()).bytes.empty());
    }
    EXPECT_LE(pool.in_use(), 8U) << "step " << step;
  }
}

// A leaf of which differences do not pay is tried now and then: what was kept for a try goes after
// it.
TEST_F(DeltaTest, LeavesThatAreSeldomTriedKeepNoOldContents) {
  io::BufferPool pool(kBlockBytes, 100, 2);
  RecentChunks recent(&pool);
  LeafOnBase on(path_, &recent, kBlockBytes);
  std::vector<std::byte> data(kBlockBytes);
  std::vector<std::byte> out(kBlockBytes + 64);
  for (uint64_t step = 1; step <= 200; ++step) {
    std::memcpy(data.data(), &step, sizeof step);
    on.leaf.as_delta = TriesDelta(on.there.dense_saves);
    const auto encoded = EncodeChunk(on.leaf, on.task, data, &on.scratch, out);
    ASSERT_OK(encoded.status());
    on.chunk.hash = encoded->hash;
    on.there.dense_saves = NextDenseSaves(on.there.dense_saves);
    EXPECT_LE(pool.in_use(), 3U) << "step " << step;
  }
}

// Of a frozen chunk no difference will be asked for. Where it is stored as one, the next save needs
// its content to compare.
TEST_F(DeltaTest, AChunkThatHasNotChangedKeepsMemoryOnlyIfItIsADifference) {
  for (const bool is_difference : {false, true}) {
    io::BufferPool pool(kBlockBytes, 8, 2);
    RecentChunks recent(&pool);
    const std::vector<std::byte> data(4000, std::byte{7});
    recent.Keep(format::HashOf(data), data, {});
    LeafOnBase on(path_, &recent, 4000);
    on.chunk.hash = format::HashOf(data);
    if (is_difference) on.chunk.bases.emplace_back().stored_bytes = 4004;
    on.leaf.as_delta = true;
    std::vector<std::byte> out(8192);
    ASSERT_OK(EncodeChunk(on.leaf, on.task, data, &on.scratch, out).status());
    EXPECT_EQ(recent.GiveBack(io::BufferPool::Spare::kUnwanted), !is_difference);
  }
}

// Kept contents give way to saves; those that were replaced go first.
TEST_F(DeltaTest, RecentChunksGiveTheirMemoryBack) {
  io::BufferPool pool(kBlockBytes, 8, 2);
  RecentChunks recent(&pool);
  const std::vector<std::byte> bytes(size_t{4} << 20);
  const auto hash = [](uint64_t number) { return format::Hash128{number, 1}; };
  for (uint64_t i = 1; i <= 20; ++i) recent.Keep(hash(i), bytes, {});
  EXPECT_EQ(pool.in_use(), 6U);  // a quarter, or what encoders need, is left
  EXPECT_FALSE(recent.Find(hash(1), bytes.size()).bytes.empty());
  EXPECT_TRUE(recent.Find(hash(7), bytes.size()).bytes.empty());
  EXPECT_TRUE(recent.Find(hash(1), 5).bytes.empty());
  // The place of 3 is taken by 30, whose block 31 takes when that takes the place of 30.
  recent.Keep(hash(30), bytes, hash(3));
  EXPECT_TRUE(recent.Find(hash(3), bytes.size()).bytes.empty());
  EXPECT_FALSE(recent.Find(hash(30), bytes.size()).bytes.empty());
  std::vector<io::BufferPool::Block*> taken;
  const RecentChunks::Held held = recent.Find(hash(1), bytes.size());
  for (int i = 0; i < 7; ++i) {
    io::BufferPool::Block* const block = pool.TryAcquire();
    ASSERT_NE(block, nullptr) << i;
    taken.push_back(block);
  }
  EXPECT_EQ(pool.TryAcquire(), nullptr);  // the last one is being read
  EXPECT_TRUE(recent.Find(hash(1), bytes.size()).bytes.empty());
  EXPECT_EQ(held.bytes.size(), bytes.size());
  for (io::BufferPool::Block* const block : taken) pool.Release(block);
}

}  // namespace
}  // namespace stepwell::db
