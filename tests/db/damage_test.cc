// SPDX-License-Identifier: Apache-2.0
// A store whose index is damaged heals itself; one whose log is damaged says where, and gives all
// that is not.
#include <gmock/gmock.h>

#include <fstream>
#include <iterator>
#include <thread>

#include "db/layout.h"
#include "format/frame.h"
#include "format/records.h"
#include "tests/db/support/damage_support.h"

namespace stepwell::db {
namespace {

namespace fs = std::filesystem;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr uint64_t kSteps = 6;

std::vector<LeafSpec> DamageState() {
  return {{"a", {7}, false, false}, {"b", {300, 40}, true, false}, {"e", {40000}, true, true}};
}

// A store of six steps from two sessions, closed cleanly.
class DamageTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (uint64_t session = 0; session < 2; ++session) {
      auto store = Store::Open(original_, PosixOptions());
      ASSERT_TRUE(store.ok()) << store.status().ToString();
      for (uint64_t i = 0; i < kSteps / 2; ++i) {
        const uint64_t step = session * kSteps / 2 + i;
        seeds_[step] = step + 50;
        const auto handle = SaveSeeded(store->get(), step, step + 50, DamageState());
        ASSERT_TRUE(handle.ok()) << handle.status().ToString();
        ASSERT_OK(handle->Wait());
      }
      ASSERT_OK((*store)->Close());
    }
    CopyStore(original_, path_);
  }

  std::string SegmentFile(size_t number) const { return FilesIn(SegmentsPath(path_)).at(number); }

  // The place of a leaf's first chunk.
  struct Place {
    std::string file;
    uint64_t offset_bytes = 0;
    uint64_t stored_bytes = 0;
  };
  Place PlaceOf(uint64_t step, const std::string& leaf) {
    auto store = Store::Open(path_, ReaderOptions());
    auto leaves = (*(*store)->Read(step))->Leaves(KeyOf("state", leaf));
    const format::ChunkRecord& chunk = leaves->front().chunks.front();
    return {SegmentPath(path_, chunk.segment), chunk.offset_bytes, chunk.stored_bytes};
  }

  // Everything is there for a reader, and for a writer, which then has a good index again.
  void ExpectHealed() {
    Survey survey = SurveyStore(path_, ReaderOptions(), seeds_, DamageState());
    EXPECT_OK(survey.open);
    EXPECT_EQ(survey.right, AllLeaves());
    survey = SurveyStore(path_, PosixOptions(), seeds_, DamageState());
    EXPECT_OK(survey.open);
    EXPECT_THAT(survey.errors, IsEmpty());
    EXPECT_THAT(survey.silent, IsEmpty());
    EXPECT_THAT(survey.found, IsEmpty());
    EXPECT_EQ(survey.right, AllLeaves());
    auto store = Store::Open(path_, PosixOptions());
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    WaitForIndex(store->get());
    for (const auto& [step, seed] : seeds_) {
      EXPECT_OK(CheckSeeded(store->get(), step, seed, DamageState()));
    }
    WaitForIndex(store->get());  // reading may have found more
    EXPECT_OK((*store)->Close());
  }

  static void WaitForIndex(Store* store) {
    EXPECT_OK(store->SetPinned(std::vector<uint64_t>{0}, true));  // a commit opens it
    EXPECT_OK(store->SetPinned(std::vector<uint64_t>{0}, false));
    while (store->Stats().index_state != "rocksdb") std::this_thread::yield();
  }

  uint64_t AllLeaves() const { return seeds_.size() * (DamageState().size() + 1); }

  TempDir dir_;
  const std::string original_ = dir_ / "original";
  const std::string path_ = dir_ / "run";
  std::map<uint64_t, uint64_t> seeds_;
};

TEST_F(DamageTest, TheIndexIsDeleted) {
  fs::remove_all(IndexPath(path_));
  ExpectHealed();
}

TEST_F(DamageTest, AFileOfTheIndexIsDeletedFlippedCutOrEmptied) {
  int cases = 0;
  for (const std::string& file : FilesIn(IndexPath(original_))) {
    const std::string name = fs::path(file).filename();
    const uint64_t size = fs::file_size(file);
    std::vector<std::function<void(const std::string&)>> damages;
    damages.push_back([](const std::string& one) { fs::remove(one); });
    damages.push_back([](const std::string& one) { fs::resize_file(one, 0); });
    damages.push_back([size](const std::string& one) { fs::resize_file(one, size / 2); });
    for (uint64_t i = 0; i < 5 && size > 0; ++i) {
      damages.push_back([=](const std::string& one) { FlipByte(one, (size - 1) * i / 4, '\x10'); });
    }
    for (size_t i = 0; i < damages.size(); ++i) {
      SCOPED_TRACE(StrCat(name, " of ", size, " bytes, damage ", i));
      CopyStore(original_, path_);
      damages[i](IndexPath(path_) + "/" + name);
      ExpectHealed();
      ++cases;
      if (HasFatalFailure()) return;
    }
  }
  std::printf("%d damages of the index's files\n", cases);
  EXPECT_GE(cases, 4 * 5);  // at least CURRENT, MANIFEST, and SSTs
}

// Rows that opening does not look at.
TEST_F(DamageTest, ARowOfTheIndexIsFlipped) {
  constexpr uint64_t kRows = 300;
  const std::string path = dir_ / "many";
  std::map<uint64_t, std::string> wanted;
  const auto metrics = [](Store* store) {
    std::map<uint64_t, std::string> found;
    const auto texts = store->Texts(SIZE_MAX);
    EXPECT_OK(texts.status());
    for (const StepTexts& each : *texts) found[each.step] = each.metrics_json;
    return found;
  };
  {
    auto store = Store::Open(path, PosixOptions());
    ASSERT_OK(store.status());
    for (uint64_t step = 0; step < kRows; ++step) {
      ASSERT_OK(SaveSeeded(store->get(), step, step, SmallState())->Wait());
      wanted[step] = MetricsOf(step);
    }
    WaitForIndex(store->get());
    ASSERT_OK((*store)->Close());
  }
  uint64_t tables = 0;
  for (const std::string& file : FilesIn(IndexPath(path))) {
    if (!file.ends_with(".sst") || fs::file_size(file) < 4096) continue;
    for (uint64_t at = 64; at < fs::file_size(file) / 2; at += 256) FlipByte(file, at, '\x10');
    ++tables;
  }
  ASSERT_GT(tables, 0U);
  {
    auto store = Store::Open(path, ReaderOptions());
    ASSERT_OK(store.status());
    EXPECT_EQ(metrics(store->get()), wanted);
  }
  auto store = Store::Open(path, PosixOptions());
  ASSERT_OK(store.status());
  EXPECT_EQ(metrics(store->get()), wanted);
  WaitForIndex(store->get());
  EXPECT_EQ(metrics(store->get()), wanted) << "made anew";
}

TEST_F(DamageTest, AFlippedPayloadIsNamedAndAllElseLoads) {
  for (const uint64_t step : {uint64_t{0}, uint64_t{2}, uint64_t{5}}) {
    for (const char* leaf : {"b", "e"}) {
      CopyStore(original_, path_);
      const Place place = PlaceOf(step, leaf);
      for (const uint64_t offset : {uint64_t{0}, place.stored_bytes / 2, place.stored_bytes - 1}) {
        SCOPED_TRACE(StrCat("step ", step, " leaf ", leaf, " byte ", offset));
        FlipByte(place.file, place.offset_bytes + offset, '\x01');
        for (const StoreOptions& options : {ReaderOptions(), PosixOptions()}) {
          const Survey survey = SurveyStore(path_, options, seeds_, DamageState());
          EXPECT_OK(survey.open);
          EXPECT_EQ(survey.right, AllLeaves() - 1);
          EXPECT_THAT(survey.silent, IsEmpty());
          ASSERT_EQ(survey.errors.size(), 1U);
          EXPECT_THAT(survey.errors[0], HasSubstr(place.file));
          EXPECT_THAT(survey.errors[0], HasSubstr(StrCat("offset ", place.offset_bytes)));
          EXPECT_THAT(survey.errors[0], HasSubstr(StrCat("step ", step)));
          ASSERT_EQ(survey.found.size(), 1U);
          EXPECT_EQ(survey.found[0].step, step);
          EXPECT_EQ(survey.found[0].item, "state");
          EXPECT_EQ(survey.found[0].path, leaf);
          EXPECT_EQ(survey.found[0].file, place.file);
          EXPECT_EQ(survey.found[0].offset_bytes, place.offset_bytes);
        }
        FlipByte(place.file, place.offset_bytes + offset, '\x01');
      }
    }
  }
}

TEST_F(DamageTest, LoadingADamagedLeafIsDataLoss) {
  const Place place = PlaceOf(1, "b");
  FlipByte(place.file, place.offset_bytes + 100, '\x40');
  for (const StoreOptions& options : {ReaderOptions(), PosixOptions()}) {
    auto store = Store::Open(path_, options);
    ASSERT_TRUE(store.ok());
    EXPECT_EQ(CheckSeeded(store->get(), 1, 51, DamageState()).code(), StatusCode::kDataLoss);
    EXPECT_OK(CheckSeeded(store->get(), 2, 52, DamageState()));
  }
}

// Damage of more than a byte: nothing of it gives a wrong value or goes unmentioned.
class LargeDamageTest : public DamageTest {
 protected:
  void Expect(uint64_t right_at_least, const char* what) {
    for (const bool read_only : {true, false}) {
      SCOPED_TRACE(StrCat(what, read_only ? ", mode r" : ", mode a"));
      CopyStore(path_, dir_ / "copy");  // opening for writing seals and reclaims
      const Survey survey = SurveyStore(dir_ / "copy", read_only ? ReaderOptions() : PosixOptions(),
                                        seeds_, DamageState());
      EXPECT_OK(survey.open);
      EXPECT_THAT(survey.silent, IsEmpty());
      EXPECT_THAT(survey.errors, Not(IsEmpty()));
      for (const std::string& error : survey.errors) {
        EXPECT_THAT(error, Not(HasSubstr("was deleted while"))) << "it was not deleted";
      }
      if (survey.right < right_at_least) ExpectALoss(right_at_least);
    }
  }
  // Frames are gone without a copy: what they may have ended is refused, and named for as long as
  // the loss is not accepted; then it is there again.
  void ExpectALoss(uint64_t right_at_least) {
    for (int open = 0; open < 2; ++open) {
      const Survey survey = SurveyStore(dir_ / "copy", PosixOptions(), seeds_, DamageState());
      EXPECT_THAT(survey.errors, Contains(HasSubstr("stepwell repair --accept")));
      EXPECT_THAT(survey.found, Contains(Field(&VerifyProblem::message, HasSubstr("data loss"))));
    }
    // Closed cleanly, too, and to a reader.
    EXPECT_THAT(SurveyStore(dir_ / "copy", ReaderOptions(), seeds_, DamageState()).found,
                Contains(Field(&VerifyProblem::message, HasSubstr("data loss"))));
    {
      std::string output;
      StoreOptions options = PosixOptions();
      options.log = [&output](LogLevel, std::string_view text) { output += StrCat(text, "\n"); };
      auto store = Store::Open(dir_ / "copy", options);
      ASSERT_OK(store.status());
      EXPECT_THAT(output, HasSubstr("the store grows with each save"));
      EXPECT_THAT((*store)->recovery().problems, Contains(HasSubstr("data loss")));
      EXPECT_EQ((*store)->Reclaim().status().code(), StatusCode::kFailedPrecondition);
      EXPECT_EQ((*store)->Newest().status().code(), StatusCode::kDataLoss);
      const auto report = (*store)->Repair(/*accept_losses=*/true);
      ASSERT_OK(report.status());
      EXPECT_TRUE(report->losses_accepted);
      EXPECT_OK((*store)->Reclaim().status());
      EXPECT_OK((*store)->Close());
    }
    const Survey survey = SurveyStore(dir_ / "copy", ReaderOptions(), seeds_, DamageState());
    EXPECT_GE(survey.right, right_at_least);
    EXPECT_THAT(survey.errors, Not(Contains(HasSubstr("repair --accept"))));
  }
  uint64_t HalfTheLeaves() const { return AllLeaves() / 2; }
};

TEST_F(LargeDamageTest, ASegmentIsCut) {
  for (size_t segment = 0; segment < 2; ++segment) {
    CopyStore(original_, path_);
    const std::string file = SegmentFile(segment);
    fs::resize_file(file, fs::file_size(file) / 2);
    Expect(HalfTheLeaves(), "cut to half");
  }
}

TEST_F(LargeDamageTest, ASegmentIsDeleted) {
  for (size_t segment = 0; segment < 2; ++segment) {
    CopyStore(original_, path_);
    fs::remove(SegmentFile(segment));
    Expect(HalfTheLeaves(), StrCat("deleted ", segment).c_str());
  }
}

// Blocks of leaf records have their copy behind them: one of both may be damaged.
TEST_F(DamageTest, RecordsThatAreDamagedAreReadFromTheirCopies) {
  const std::string path = dir_ / "many";
  std::vector<LeafSpec> leaves;
  for (int i = 0; i < 1200; ++i) leaves.push_back({StrCat("leaf", 1000 + i), {3}, false, false});
  {
    auto store = Store::Open(path, PosixOptions());
    ASSERT_OK(store.status());
    ASSERT_OK(SaveSeeded(store->get(), 1, 7, leaves)->Wait());
    ASSERT_OK((*store)->Close());
  }
  const std::map<uint64_t, uint64_t> seeds = {{1, 7}};
  for (const bool of_copy : {false, true}) {
    SCOPED_TRACE(of_copy ? "the copies" : "the originals");
    CopyStore(path, dir_ / "copy");
    const std::string segment = FilesIn(SegmentsPath(dir_ / "copy")).front();
    std::ifstream file(segment, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    uint64_t blocks = 0;
    for (uint64_t at = 0; at + 4096 <= bytes.size(); at += 4096) {
      const auto header =
          format::DecodeFrameHeader(AsBytes(bytes).subspan(at, format::kFrameHeaderBytes));
      if (!header.ok() || header->kind != format::FrameKind::kRecords) continue;
      const uint64_t frame = format::kFrameHeaderBytes + header->payload_bytes;
      FlipByte(segment, at + (of_copy ? frame + 200 : 200), '\x01');
      ++blocks;
    }
    ASSERT_GT(blocks, 1U);
    const Survey reader = SurveyStore(dir_ / "copy", ReaderOptions(), seeds, leaves);
    EXPECT_THAT(reader.errors, IsEmpty());
    EXPECT_THAT(reader.found, IsEmpty());
    {
      auto store = Store::Open(dir_ / "copy", PosixOptions());
      ASSERT_OK(store.status());
      EXPECT_OK(CheckSeeded(store->get(), 1, 7, leaves));
      const auto rewritten = (*store)->Repair(/*accept_losses=*/false)->steps_rewritten;
      EXPECT_EQ(rewritten.size(), of_copy ? 0U : 1U);
      EXPECT_THAT((*store)->Repair(/*accept_losses=*/false)->steps_rewritten, IsEmpty());
      ASSERT_OK((*store)->Close());
    }
    const Survey after = SurveyStore(dir_ / "copy", ReaderOptions(), seeds, leaves);
    EXPECT_THAT(after.errors, IsEmpty());
    EXPECT_THAT(after.found, IsEmpty());
  }
}

TEST_F(LargeDamageTest, TwoSegmentsAreSwapped) {
  const std::string first = SegmentFile(0);
  const std::string second = SegmentFile(1);
  fs::rename(first, path_ + "/t");
  fs::rename(second, first);
  fs::rename(path_ + "/t", second);
  Survey survey = SurveyStore(path_, ReaderOptions(), seeds_, DamageState());
  EXPECT_THAT(survey.silent, IsEmpty());
  EXPECT_TRUE(!survey.open.ok() || !survey.errors.empty());
  survey = SurveyStore(path_, PosixOptions(), seeds_, DamageState());
  EXPECT_THAT(survey.silent, IsEmpty());
  EXPECT_TRUE(!survey.open.ok() || !survey.errors.empty());
}

TEST_F(LargeDamageTest, ARangeIsZeroed) {
  const Place place = PlaceOf(4, "b");
  WriteOver(place.file, place.offset_bytes / 4096 * 4096, std::string(8192, '\0'));
  Expect(AllLeaves() - 3, "zeroed");
}

TEST_F(LargeDamageTest, ASegmentOfAnotherStoreIsInItsPlace) {
  const std::string other = dir_ / "other";
  auto store = Store::Open(other, PosixOptions());
  ASSERT_TRUE(store.ok());
  for (const auto& [step, seed] : seeds_) {
    ASSERT_OK(SaveSeeded(store->get(), step, seed + 1, DamageState())->Wait());
  }
  ASSERT_OK((*store)->Close());
  fs::copy_file(FilesIn(SegmentsPath(other)).front(), SegmentFile(0),
                fs::copy_options::overwrite_existing);
  Expect(HalfTheLeaves(), "replaced by another store's");
  // Beside ours, under a number that nobody uses, it is nobody's.
  CopyStore(original_, path_);
  fs::copy_file(FilesIn(SegmentsPath(other)).front(), SegmentPath(path_, 77));
  ExpectHealed();
}

// The log has everything that STEPWELL says: a writer makes it again.
TEST_F(DamageTest, AllMarksAreDamaged) {
  for (uint64_t slot = 0; slot < format::kSlotCount; ++slot) {
    FlipByte(SlotFilePath(path_), slot * format::kSlotBytes + 100, '\x01');
  }
  const Status status = Store::Open(path_, ReaderOptions()).status();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("STEPWELL: all slots are damaged"));
  ASSERT_OK(Store::Open(path_, PosixOptions()).status());
  ExpectHealed();
}

TEST_F(DamageTest, StepwellIsLost) {
  fs::remove(SlotFilePath(path_));
  const Status status = Store::Open(path_, ReaderOptions()).status();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("the STEPWELL file is lost"));
  ASSERT_OK(Store::Open(path_, PosixOptions()).status());
  ExpectHealed();
}

// A backup may have a STEPWELL from before the first save.
TEST_F(DamageTest, StepwellIsOfTheNewStore) {
  const auto now =
      format::DecodeSlot(AsBytes(ReadAll(SlotFilePath(path_))).first(format::kSlotBytes));
  ASSERT_OK(now.status());
  format::StoreSlot slot;
  slot.store_id = now->store_id;
  slot.clean = true;
  for (uint64_t i = 0; i < format::kSlotCount; ++i) {
    slot.sequence = i + 1;
    WriteOver(SlotFilePath(path_), i * format::kSlotBytes, AsText(format::EncodeSlot(slot)));
  }
  ExpectHealed();
}

// Nothing of either store is served, and nothing is written.
TEST_F(DamageTest, StepwellIsOfAnotherStore) {
  const std::string other = dir_ / "other";
  {
    auto store = Store::Open(other, PosixOptions());
    ASSERT_OK(store.status());
    for (uint64_t step = 0; step < 2 * kSteps; ++step) {
      ASSERT_OK(SaveSeeded(store->get(), step, step, DamageState())->Wait());
    }
  }
  const std::string slots = ReadAll(SlotFilePath(path_));
  const std::vector<std::string> segments = FilesIn(SegmentsPath(path_));
  WriteOver(SlotFilePath(path_), 0, ReadAll(SlotFilePath(other)));
  for (const StoreOptions& options : {ReaderOptions(), PosixOptions()}) {
    const Status status = Store::Open(path_, options).status();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status.ToString();
    EXPECT_THAT(status.message(), HasSubstr("STEPWELL is of another store than the segments"));
  }
  EXPECT_EQ(FilesIn(SegmentsPath(path_)), segments);
  WriteOver(SlotFilePath(path_), 0, slots);
  ExpectHealed();
}

TEST_F(DamageTest, AnOtherVersionIsNamed) {
  const std::string before = ReadAll(SlotFilePath(path_));
  auto slot = format::DecodeSlot(AsBytes(before).first(format::kSlotBytes));
  ASSERT_TRUE(slot.ok()) << slot.status().ToString();
  slot->format_version = 7;
  const auto newer = format::EncodeSlot(*slot);
  for (uint64_t i = 0; i < format::kSlotCount; ++i) {
    WriteOver(SlotFilePath(path_), i * format::kSlotBytes, AsText(newer));
  }
  for (const StoreOptions& options : {ReaderOptions(), PosixOptions()}) {
    const Status status = Store::Open(path_, options).status();
    EXPECT_EQ(status.code(), StatusCode::kUnimplemented) << status.ToString();
    EXPECT_THAT(status.message(),
                HasSubstr("format 7, and this version of Stepwell reads up to 5"));
  }
  WriteOver(SlotFilePath(path_), 0, before);
  ExpectHealed();
}

}  // namespace
}  // namespace stepwell::db
