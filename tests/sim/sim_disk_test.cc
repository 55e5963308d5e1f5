// SPDX-License-Identifier: Apache-2.0
// The simulated machine keeps its own promises (the numbered fault model of sim_disk.h).
#include "tests/sim/support/sim_disk.h"

#include <gtest/gtest.h>

#include <set>

#include "io/buffer.h"

namespace stepwell::sim {
namespace {

const CrashOptions kDropAllCrash = {1, SectorOdds{0, 1, 0, 0}, NameLoss::kPrefix};

struct Machine {
  explicit Machine(uint64_t seed = 1) : world(SimWorld::Make({seed, kUnlimitedBytes})) {}
  explicit Machine(std::shared_ptr<SimWorld> image) : world(std::move(image)) {}

  std::unique_ptr<io::File> Open(const std::string& path, bool direct = false) {
    io::FileOpenOptions options;
    options.write = options.create = true;
    options.direct = direct;
    return std::move(files.Open(path, options)).value();
  }
  // A durable file.
  void Put(const std::string& path, const std::string& text) {
    const auto file = Open(path);
    ASSERT_TRUE(file->WriteAt(0, AsBytes(text)).ok());
    ASSERT_TRUE(file->Sync().ok());
    ASSERT_TRUE(files.SyncDirectory("/").ok());
  }

  std::shared_ptr<SimWorld> world;
  SimFileSystem files{world};
};

std::string Block(char c, size_t sectors = 1) { return std::string(sectors * kSectorBytes, c); }

struct TestOp final : io::Op {
  TestOp(io::Op::Kind op_kind, io::File* op_file, uint64_t offset, std::string* text) {
    kind = op_kind;
    file = op_file;
    offset_bytes = offset;
    if (text != nullptr) {
      vector = {text->data(), text->size()};
      vectors = {&vector, 1};
    }
  }
  void OnComplete() override { ++completed; }
  iovec vector{};
  int completed = 0;
};

TEST(SimDiskTest, SyncedBytesStayAndUnsyncedSectorsVanish) {
  Machine machine;
  machine.Put("a", Block('a', 4));
  const auto file = machine.Open("a");
  ASSERT_TRUE(file->WriteAt(512, AsBytes(Block('b', 5))).ok());
  EXPECT_EQ(machine.world->Contents("a"), Block('a') + Block('b', 5));
  EXPECT_FALSE(machine.world->AllDurable());
  // Early writeback within the old size is legal; everything past it is gone.
  const std::string dropped = *machine.world->Crash(kDropAllCrash)->Contents("a");
  ASSERT_EQ(dropped.size(), 4 * kSectorBytes);
  EXPECT_EQ(dropped.substr(0, 512), Block('a'));
  ASSERT_TRUE(file->Sync().ok());
  EXPECT_TRUE(machine.world->AllDurable());
  for (uint64_t seed = 0; seed < 50; ++seed) {
    EXPECT_EQ(machine.world->Crash({seed, {}, {}})->Contents("a"), Block('a') + Block('b', 5));
  }
}

TEST(SimDiskTest, UnsyncedSectorsShowEveryFate) {
  Machine machine;
  machine.Put("a", Block('a', 8));
  const auto file = machine.Open("a");
  ASSERT_TRUE(file->WriteAt(0, AsBytes(Block('b', 8))).ok());
  std::set<char> seen;
  bool torn = false;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const std::string bytes = *machine.world->Crash({seed, {}, {}})->Contents("a");
    for (size_t at = 0; at < bytes.size(); at += kSectorBytes) {
      const std::string sector = bytes.substr(at, kSectorBytes);
      if (sector == Block('a')) seen.insert('a');
      if (sector == Block('b')) seen.insert('b');
      torn |= sector[0] == 'b' && sector[511] == 'a';
      if (sector.find_first_not_of("ab") != std::string::npos) seen.insert('?');
    }
  }
  EXPECT_EQ(seen, (std::set<char>{'?', 'a', 'b'}));
  EXPECT_TRUE(torn);
}

TEST(SimDiskTest, SyncedBytesBeforeAnAppendSurviveInTheSameSector) {
  Machine machine;
  machine.Put("a", "hello ");
  const auto file = machine.Open("a");
  ASSERT_TRUE(file->WriteAt(6, AsBytes("world")).ok());
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const std::string bytes = *machine.world->Crash({seed, {}, {}})->Contents("a");
    EXPECT_EQ(bytes.substr(0, 6), "hello ");
    EXPECT_LE(bytes.size(), 11u);
  }
}

TEST(SimDiskTest, NamesNeedTheirDirectorySynced) {
  Machine machine;
  machine.Put("a", "old");
  machine.Put("b", "other");
  const auto file = machine.Open("new");
  ASSERT_TRUE(file->WriteAt(0, AsBytes("new")).ok());
  ASSERT_TRUE(file->Sync().ok());
  ASSERT_TRUE(machine.files.Rename("new", "a").ok());
  ASSERT_TRUE(machine.files.Remove("b").ok());
  // Legal prefixes: nothing, the new file, the rename, the removal.
  std::set<std::string> seen;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const auto image = machine.world->Crash({seed, SectorOdds{}, NameLoss::kPrefix});
    std::string names;
    for (const auto& [path, size] : image->Files()) names += path;
    names += "=" + *image->Contents("a");
    seen.insert(names);
    EXPECT_TRUE(image->AllDurable());
  }
  EXPECT_EQ(seen, (std::set<std::string>{"/a/b=old", "/a/b/new=old", "/a/b=new", "/a=new"}));
  ASSERT_TRUE(machine.files.SyncDirectory("/").ok());
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const auto image = machine.world->Crash({seed, {}, {}});
    EXPECT_EQ(image->Files().size(), 1u);
    EXPECT_EQ(image->Contents("a"), "new");
  }
}

TEST(SimDiskTest, ARenameBetweenDirectoriesIsNeverHalfDone) {
  Machine machine;
  ASSERT_TRUE(machine.files.CreateDirectory("x").ok());
  ASSERT_TRUE(machine.files.CreateDirectory("y").ok());
  ASSERT_TRUE(machine.files.SyncDirectory("/").ok());
  machine.Open("x/f").reset();
  ASSERT_TRUE(machine.files.SyncDirectory("x").ok());
  ASSERT_TRUE(machine.files.Rename("x/f", "y/f").ok());
  for (uint64_t seed = 0; seed < 50; ++seed) {
    EXPECT_EQ(machine.world->Crash({seed, {}, {}})->Files().size(), 1u);
  }
  ASSERT_TRUE(machine.files.SyncDirectory("x").ok());
  EXPECT_TRUE(machine.world->Crash(kDropAllCrash)->Contents("y/f").has_value());
}

TEST(SimDiskTest, UnsyncedTruncationIsAllOrNothing) {
  Machine machine;
  machine.Put("a", Block('a', 20));
  const auto file = machine.Open("a");
  ASSERT_TRUE(file->Truncate(700).ok());
  ASSERT_TRUE(file->WriteAt(700, AsBytes(Block('b', 20))).ok());
  std::set<bool> kept;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const std::string bytes = *machine.world->Crash({seed, SectorOdds{}, {}})->Contents("a");
    const bool truncated = bytes != Block('a', 20);
    EXPECT_EQ(bytes.substr(0, 700), Block('a', 2).substr(0, 700));
    if (truncated) {
      EXPECT_EQ(bytes.find('a', 700), std::string::npos);
    }
    kept.insert(truncated);
  }
  EXPECT_EQ(kept.size(), 2u);
  ASSERT_TRUE(file->Sync().ok());
  EXPECT_EQ(machine.world->Crash(kDropAllCrash)->Contents("a"),
            Block('a', 2).substr(0, 700) + Block('b', 20));
}

TEST(SimDiskTest, APunchedHoleIsFreeAtOnceAndMayComeBack) {
  Machine machine;
  machine.Put("a", std::string(4 * kPageBytes, 'a'));
  const auto file = machine.Open("a");
  ASSERT_TRUE(file->PunchHole(kPageBytes, 2 * kPageBytes).ok());
  EXPECT_EQ(machine.world->UsedBytes(), 2 * kPageBytes);
  const std::string punched = std::string(kPageBytes, 'a') + std::string(2 * kPageBytes, '\0') +
                              std::string(kPageBytes, 'a');
  EXPECT_EQ(machine.world->Contents("a"), punched);
  EXPECT_EQ(machine.world->Crash(kDropAllCrash)->Contents("a"), std::string(4 * kPageBytes, 'a'));
  ASSERT_TRUE(file->Sync().ok());
  const auto image = machine.world->Crash(kDropAllCrash);
  EXPECT_EQ(image->Contents("a"), punched);
  EXPECT_EQ(image->UsedBytes(), 2 * kPageBytes);
  // Some file systems cannot.
  image->SetCanPunch(false);
  Machine without(image);
  EXPECT_EQ(without.Open("a")->PunchHole(0, kPageBytes).code(), StatusCode::kUnimplemented);
}

TEST(SimDiskTest, AllocationReadsAsZerosAndMayBeLost) {
  Machine machine;
  machine.Put("a", "");
  const auto file = machine.Open("a", true);
  ASSERT_TRUE(file->Allocate(0, 8192).ok());
  EXPECT_EQ(file->Info()->size_bytes, 8192u);
  EXPECT_EQ(file->Info()->allocated_bytes, 8192u);
  EXPECT_EQ(machine.world->Crash(kDropAllCrash)->Contents("a"), "");
  ASSERT_TRUE(file->Sync().ok());
  EXPECT_EQ(machine.world->Crash(kDropAllCrash)->Contents("a"), std::string(8192, '\0'));
}

TEST(SimDiskTest, EqualSeedsGiveEqualRunsAndImages) {
  std::set<uint64_t> images;
  for (int run = 0; run < 2; ++run) {
    Machine machine(7);
    const auto file = machine.Open("a");
    SimDisk disk(machine.world);
    std::string text = Block('x', 16);
    std::vector<std::unique_ptr<TestOp>> ops;
    for (uint64_t i = 0; i < 20; ++i) {
      ops.push_back(std::make_unique<TestOp>(io::Op::Kind::kWrite, file.get(), i * 1024, &text));
      disk.Submit(ops.back().get());
      disk.Poll(false);
    }
    images.insert(machine.world->Crash({3, {}, NameLoss::kPrefix})->Fingerprint());
    images.insert(machine.world->CrashImageProcessKill(3)->Fingerprint());
  }
  EXPECT_LE(images.size(), 2u);
}

TEST(SimDiskTest, AFailedSyncLosesDataAndTheNextOneLies) {
  std::set<std::string> outcomes;
  for (uint64_t seed = 1; seed < 30; ++seed) {
    Machine machine(seed);
    machine.Put("a", Block('a', 2));
    machine.world->AddFault({OpKind::kSync, 1, false, EIO, {}, "a"});
    const auto file = machine.Open("a");
    ASSERT_TRUE(file->WriteAt(0, AsBytes(Block('b', 2))).ok());
    EXPECT_EQ(file->Sync().code(), StatusCode::kIoError);
    EXPECT_TRUE(file->freeze()->frozen());
    EXPECT_EQ(file->WriteAt(0, AsBytes("x")).code(), StatusCode::kAborted);
    EXPECT_TRUE(machine.Open("a")->Sync().ok());  // another domain: the lie
    EXPECT_TRUE(machine.world->AllDurable());
    EXPECT_EQ(machine.world->Contents("a"), Block('b', 2));
    outcomes.insert(*machine.world->Crash({1, {}, {}})->Contents("a"));
  }
  EXPECT_TRUE(outcomes.contains(Block('a', 2)));
  EXPECT_EQ(outcomes.size(), 4u);
}

TEST(SimDiskTest, FaultsHitTheirOperation) {
  Machine machine;
  machine.Put("a", Block('a', 2));
  machine.world->AddFault({OpKind::kWrite, 2, false, EIO, Fault::Effect::kLose, "a"});
  const auto file = machine.Open("a");
  EXPECT_TRUE(file->WriteAt(0, AsBytes("1")).ok());
  EXPECT_TRUE(file->WriteAt(1, AsBytes("2")).ok());  // lost
  EXPECT_EQ(machine.world->Contents("a")->substr(0, 3), "1aa");
  machine.world->ClearFaults();
  machine.world->AddFault({{}, 2, true, ENOSPC, {}, {}});
  EXPECT_TRUE(file->WriteAt(0, AsBytes("3")).ok());
  EXPECT_EQ(file->WriteAt(0, AsBytes("4")).code(), StatusCode::kResourceExhausted);
  EXPECT_FALSE(file->freeze()->frozen());
  EXPECT_FALSE(machine.files.Remove("a").ok());
  machine.world->ClearFaults();
  machine.world->AddFault({OpKind::kRead, 1, false, EIO, {}, {}});
  std::byte byte{};
  EXPECT_FALSE(file->ReadAt(0, {&byte, 1}).ok());
  EXPECT_TRUE(file->ReadAt(0, {&byte, 1}).ok());
  EXPECT_EQ(byte, std::byte{'3'});
}

TEST(SimDiskTest, TheMachineStopsAtTheChosenOperation) {
  for (uint64_t stop = 1; stop <= 4; ++stop) {
    Machine machine;
    machine.world->FreezeAt(stop);
    io::FileOpenOptions options;
    options.write = options.create = true;
    auto file = machine.files.Open("a", options);
    if (stop == 1) {
      EXPECT_EQ(file.status().code(), StatusCode::kAborted);
      EXPECT_TRUE(machine.world->Files().empty());
      continue;
    }
    EXPECT_EQ((*file)->WriteAt(0, AsBytes("a")).ok(), stop > 2);
    EXPECT_EQ((*file)->Sync().ok(), stop > 3);
    EXPECT_FALSE(machine.files.SyncDirectory("/").ok());
    EXPECT_EQ(machine.world->mutating_ops(), stop - 1);
    EXPECT_EQ(machine.world->Contents("a"), stop > 2 ? "a" : "");
  }
}

TEST(SimDiskTest, AFullDiskFailsCleanly) {
  Machine machine;
  machine.world->SetCapacity(3 * kPageBytes);
  const auto file = machine.Open("a");
  EXPECT_EQ(file->Allocate(0, 4 * kPageBytes).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(file->Info()->size_bytes, 0u);
  EXPECT_TRUE(file->Allocate(0, 2 * kPageBytes).ok());
  EXPECT_EQ(*machine.files.FreeBytes("/"), kPageBytes);
  EXPECT_TRUE(file->WriteAt(0, AsBytes(Block('a', 24))).ok());
  EXPECT_EQ(file->WriteAt(3 * kPageBytes, AsBytes("x")).code(), StatusCode::kResourceExhausted);
  EXPECT_FALSE(file->freeze()->frozen());
  ASSERT_TRUE(machine.files.Remove("a").ok());
  EXPECT_EQ(machine.world->UsedBytes(), 3 * kPageBytes);  // still open
}

TEST(SimDiskTest, LocksBelongToTheOpenFile) {
  Machine machine;
  auto one = machine.Open("LOCK");
  const auto two = machine.Open("LOCK");
  EXPECT_TRUE(*one->TryLock(io::LockKind::kShared));
  EXPECT_TRUE(*two->TryLock(io::LockKind::kShared));
  EXPECT_FALSE(*two->LockedByOther());
  EXPECT_FALSE(*one->TryLock(io::LockKind::kExclusive));
  EXPECT_TRUE(two->Unlock().ok());
  EXPECT_TRUE(*one->TryLock(io::LockKind::kExclusive));
  EXPECT_TRUE(*two->LockedByOther());
  Machine other(machine.world->CrashImageProcessKill(1));
  EXPECT_TRUE(*other.Open("LOCK")->TryLock(io::LockKind::kExclusive));
  one.reset();
  EXPECT_TRUE(*two->TryLock(io::LockKind::kExclusive));
}

TEST(SimDiskTest, DirectIoMustBeAligned) {
  Machine machine;
  const auto file = machine.Open("a", true);
  EXPECT_EQ(file->alignment().memory_bytes, 512u);
  io::AlignedBuffer memory(4096);
  EXPECT_TRUE(file->WriteAt(512, memory.bytes().first(1024)).ok());
  EXPECT_EQ(file->ReadAt(0, memory.bytes().subspan(1, 512)).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(*file->ReadAt(1024, memory.bytes()), 512u);
  EXPECT_EQ(file->WriteAt(0, memory.bytes().first(100)).code(), StatusCode::kInvalidArgument);
}

TEST(SimDiskTest, AKilledProcessLeavesThePageCacheUnsynced) {
  Machine machine;
  machine.Put("a", Block('a'));
  const auto file = machine.Open("a");
  ASSERT_TRUE(file->WriteAt(0, AsBytes(Block('b'))).ok());
  const auto killed = machine.world->CrashImageProcessKill(1);
  EXPECT_EQ(killed->Contents("a"), Block('b'));
  EXPECT_FALSE(killed->AllDurable());
  std::set<std::string> after;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    after.insert(*killed->Crash({seed, SectorOdds{}, {}})->Contents("a"));
  }
  EXPECT_TRUE(after.contains(Block('b')));
}

TEST(SimDiskTest, WritesInFlightLandInPartOrNever) {
  Machine machine(5);
  machine.Put("a", Block('a', 4));
  const auto file = machine.Open("a");
  std::string text = Block('b', 4);
  std::vector<std::unique_ptr<TestOp>> ops;
  SimDisk disk(machine.world);
  TestOp op(io::Op::Kind::kWrite, file.get(), 0, &text);
  disk.Submit(&op);
  machine.world->FreezeNow();
  disk.Poll(true);
  EXPECT_EQ(op.completed, 1);
  std::set<std::string> seen;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    seen.insert(*machine.world->CrashImageProcessKill(seed)->Contents("a"));
  }
  EXPECT_TRUE(seen.contains(Block('b', 4)));
}

TEST(SimDiskTest, OpsCompleteInAnyOrderAndSyncsCoverWhatCompleted) {
  bool reordered = false;
  std::set<std::string> inflight_fates;
  for (uint64_t seed = 1; seed < 100; ++seed) {
    Machine machine(seed);
    machine.Put("a", Block('a', 2));
    const auto file = machine.Open("a");
    SimDisk disk(machine.world);
    std::string text = Block('b');
    TestOp first(io::Op::Kind::kWrite, file.get(), 0, &text);
    TestOp second(io::Op::Kind::kWrite, file.get(), 512, &text);
    TestOp sync(io::Op::Kind::kSync, file.get(), 0, nullptr);
    disk.Submit(&first);
    while (first.completed == 0) disk.Poll(true);
    disk.Submit(&second);
    disk.Submit(&sync);
    while (sync.completed == 0) disk.Poll(true);
    reordered |= second.completed == 0;
    const std::string bytes = *machine.world->Crash(kDropAllCrash)->Contents("a");
    EXPECT_EQ(bytes.substr(0, 512), Block('b'));
    inflight_fates.insert(bytes.substr(512));
    while (disk.in_flight() > 0) disk.Poll(true);
    std::string back(2 * kSectorBytes, ' ');
    TestOp read(io::Op::Kind::kRead, file.get(), 0, &back);
    disk.Submit(&read);
    while (disk.in_flight() > 0) disk.Poll(true);
    EXPECT_EQ(read.transferred_bytes, 1024u);
    EXPECT_EQ(back, Block('b', 2));
  }
  EXPECT_TRUE(reordered);
  EXPECT_EQ(inflight_fates.size(), 2u);
}

TEST(SimDiskTest, AFlippedBitShowsAndOtherImagesKeepTheirs) {
  Machine machine;
  machine.Put("a", "abc");
  const auto before = machine.world->Crash(kDropAllCrash);
  EXPECT_TRUE(machine.world->FlipBit("a", 1, 0));
  EXPECT_FALSE(machine.world->FlipBit("a", 3, 0));
  EXPECT_EQ(machine.world->Contents("a"), "acc");
  EXPECT_EQ(machine.world->Crash(kDropAllCrash)->Contents("a"), "acc");
  EXPECT_EQ(before->Contents("a"), "abc");
}

TEST(SimDiskTest, AMisdirectedWriteLandsElsewhere) {
  std::set<std::string> seen;
  for (uint64_t seed = 1; seed < 20; ++seed) {
    Machine machine(seed);
    machine.Put("a", Block('a', 3));
    machine.world->AddFault({OpKind::kWrite, 1, false, EIO, Fault::Effect::kMisdirect, "a"});
    EXPECT_TRUE(machine.Open("a")->WriteAt(0, AsBytes(Block('b'))).ok());
    seen.insert(*machine.world->Contents("a"));
  }
  EXPECT_TRUE(seen.contains(Block('a', 3) + Block('b')));
  EXPECT_TRUE(seen.contains(Block('a') + Block('b') + Block('a')));
}

TEST(SimDiskTest, IndependentLossKeepsALaterNameWithoutAnEarlierOne) {
  Machine machine;
  machine.Open("first").reset();
  machine.Open("second").reset();
  bool only_second = false;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const auto image = machine.world->Crash({seed, {}, NameLoss::kIndependent});
    only_second |= image->Contents("second").has_value() && !image->Contents("first").has_value();
  }
  EXPECT_TRUE(only_second);
}

// Every image must hold what was synced and never rewritten.
TEST(SimDiskTest, ThousandsOfImagesAreCheap) {
  Machine machine(11);
  for (int f = 0; f < 8; ++f) {
    machine.Put("f" + std::to_string(f), Block('s', 1024));
  }
  Prng prng(1);
  for (int f = 0; f < 8; ++f) {
    const auto file = machine.Open("f" + std::to_string(f));
    for (int i = 0; i < 16; ++i) {
      const uint64_t offset = (512 + prng.Below(500)) * kSectorBytes;
      ASSERT_TRUE(file->WriteAt(offset, AsBytes(Block('u', 1 + prng.Below(8)))).ok());
    }
  }
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    const auto image = machine.world->Crash({seed, {}, {}});
    if (seed % 50 != 0) continue;
    const std::string bytes = *image->Contents("f3");
    EXPECT_EQ(bytes.substr(0, 512 * kSectorBytes), Block('s', 512));
  }
}

TEST(SimClockTest, TimeMovesAndOnlyTheWallClockJumps) {
  SimClock clock;
  const int64_t before = clock.MonotonicNanos();
  clock.JumpWall(-1'000'000'000'000);
  EXPECT_GT(clock.MonotonicNanos(), before);
  const int64_t wall = clock.WallNanos();
  clock.Advance(5'000'000);
  EXPECT_GE(clock.WallNanos(), wall + 5'000'000);
}

}  // namespace
}  // namespace stepwell::sim
