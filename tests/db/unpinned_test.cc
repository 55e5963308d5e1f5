// SPDX-License-Identifier: Apache-2.0
// Readers that cannot write a pin: what they read may be erased under them. They get the right
// bytes, or hear that the step was deleted; and damage stays damage.
#include <gmock/gmock.h>

#include <atomic>
#include <cstdint>
#include <fstream>
#include <optional>

#include "db/layout.h"
#include "tests/db/support/reclaim_support.h"

namespace stepwell::db {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class UnpinnedTest : public ReclaimTest {
 protected:
  void SetUp() override {
    writer_ = Open(Options());
    ASSERT_NE(writer_, nullptr);
    // Not a directory: nobody, not even root, can make a pin there.
    fs::remove_all(ReadersPath(path_));
    std::ofstream(ReadersPath(path_)).close();
    StoreOptions read_only = Options();
    read_only.read_only = true;
    reader_ = Open(read_only);
    ASSERT_NE(reader_, nullptr);
    ASSERT_THAT(log_, HasSubstr("reading without a pin"));
  }

  // A load that is planned now and done later.
  struct Planned {
    std::shared_ptr<StepReader> reader;
    std::vector<format::LeafRecord> leaves;
  };
  Planned Plan(uint64_t step) {
    Planned planned;
    auto reader = reader_->Read(step);
    EXPECT_TRUE(reader.ok()) << reader.status().ToString();
    if (!reader.ok()) return planned;
    auto leaves = (*reader)->Leaves("");
    EXPECT_TRUE(leaves.ok()) << leaves.status().ToString();
    planned.reader = std::move(*reader);
    if (leaves.ok()) planned.leaves = std::move(*leaves);
    return planned;
  }
  // OK only when every byte of the array is right.
  static Status Load(const Planned& planned, const LeafSpec& spec = kState[0]) {
    const std::vector<float> wanted = LeafData(spec, planned.reader->step().step);
    std::vector<float> out(wanted.size());
    LoadRequest load;
    for (const auto& leaf : planned.leaves) {
      if (leaf.key == KeyOf("state", spec.name)) load.leaf = &leaf;
    }
    load.box = format::WholeArray(load.leaf->shape);
    load.out = reinterpret_cast<std::byte*>(out.data());
    STEPWELL_RETURN_IF_ERROR(planned.reader->Load({&load, 1}).status());
    EXPECT_EQ(out, wanted) << "a wrong byte";
    return OkStatus();
  }
  static void ExpectDeleted(const Status& status, uint64_t step) {
    EXPECT_EQ(status.code(), StatusCode::kNotFound) << status.ToString();
    EXPECT_THAT(status.message(),
                HasSubstr(StrCat(": step ", step, " was deleted while it was being read; load ")));
  }
  void Delete(const std::vector<uint64_t>& steps) {
    ASSERT_OK(writer_->Delete(steps));
    ASSERT_TRUE(writer_->Reclaim().ok());
  }

  std::unique_ptr<Store> writer_;
  std::unique_ptr<Store> reader_;
};

TEST_F(UnpinnedTest, ASegmentThatIsGone) {
  // The step has several segments. Only that of its commit frame is open when it is planned.
  const std::vector<LeafSpec> large = {{"w", {4000, 1000}, true, false}};
  for (uint64_t step = 0; step < 3; ++step) {
    const auto handle = SaveSeeded(writer_.get(), step, step, large);
    ASSERT_TRUE(handle.ok());
    ASSERT_OK(handle->Wait());
  }
  const Planned planned = Plan(1);
  const std::string first = SegmentPath(path_, planned.reader->step().extents.front().segment);
  ASSERT_TRUE(fs::exists(first));
  Delete(StepNumbers(writer_.get()));
  ASSERT_FALSE(fs::exists(first)) << log_;
  ExpectDeleted(Load(planned, large[0]), 1);
}

TEST_F(UnpinnedTest, ASegmentThatIsPunched) {
  for (uint64_t step = 0; step < 40; ++step) Save(writer_.get(), step);
  const Planned dead = Plan(6);
  const Planned live = Plan(5);
  std::vector<uint64_t> steps;
  for (uint64_t step = 0; step < 40; ++step) {
    if (step % 4 != 1) steps.push_back(step);
  }
  Delete(steps);
  ASSERT_GT(writer_->Stats().bytes_punched, 0U);
  ExpectDeleted(Load(dead), 6);
  EXPECT_OK(Load(live));
}

TEST_F(UnpinnedTest, ASegmentThatIsUsedAgain) {
  std::vector<Planned> planned;
  for (uint64_t step = 0; step < 16; ++step) Save(writer_.get(), step);
  for (uint64_t step = 0; step < 16; ++step) planned.push_back(Plan(step));
  Delete(StepNumbers(writer_.get()));
  for (uint64_t step = 100; step < 116; ++step) Save(writer_.get(), step);
  ASSERT_GT(writer_->Stats().segments_recycled, 0U);
  int overwritten = 0;
  for (uint64_t step = 0; step < 16; ++step) {
    // A file that was removed is still whole for who has it open.
    const Status status = Load(planned[step]);
    if (status.ok()) continue;
    ExpectDeleted(status, step);
    ++overwritten;
  }
  EXPECT_GT(overwritten, 0);
}

TEST_F(UnpinnedTest, AStepThatIsReplaced) {
  for (uint64_t step = 0; step < 40; ++step) Save(writer_.get(), step);
  const Planned planned = Plan(6);
  for (uint64_t step = 4; step < 8; ++step) {
    const auto handle = SaveSeeded(writer_.get(), step, step, kState, IfExists::kReplace);
    ASSERT_TRUE(handle.ok());
    ASSERT_OK(handle->Wait());
  }
  std::vector<uint64_t> steps;
  for (uint64_t step = 8; step < 40; ++step) {
    if (step % 4 != 1) steps.push_back(step);
  }
  Delete(steps);
  ASSERT_GT(writer_->Stats().bytes_punched + writer_->Stats().segments_recycled, 0U);
  for (uint64_t step = 100; step < 116; ++step) Save(writer_.get(), step);
  const Status status = Load(planned);
  EXPECT_EQ(status.code(), StatusCode::kNotFound) << status.ToString();
  EXPECT_THAT(status.message(), HasSubstr("step 6 was replaced, changed or moved"));
  EXPECT_OK(Load(Plan(6)));
}

TEST_F(UnpinnedTest, TheWriterAndTheReadersStoreAreGoneToo) {
  for (uint64_t step = 0; step < 40; ++step) Save(writer_.get(), step);
  const Planned planned = Plan(6);
  std::vector<uint64_t> steps;
  for (uint64_t step = 0; step < 40; ++step) {
    if (step % 4 != 1) steps.push_back(step);
  }
  Delete(steps);
  ASSERT_OK(writer_->Close());
  ASSERT_OK(reader_->Close());
  reader_.reset();
  ExpectDeleted(Load(planned), 6);
  fs::remove(SlotFilePath(path_));  // nobody can say any more what became of it
  const Status status = Load(planned);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("could not be looked up"));
}

TEST_F(UnpinnedTest, DamageOfALiveStepIsDamage) {
  for (uint64_t step = 0; step < 4; ++step) Save(writer_.get(), step);
  const Planned planned = Plan(2);
  const format::ChunkRecord* chunk = nullptr;
  for (const auto& leaf : planned.leaves) {
    if (leaf.key == KeyOf("state", "w")) chunk = &leaf.chunks.front();
  }
  ASSERT_NE(chunk, nullptr);
  {
    std::fstream file(SegmentPath(path_, chunk->segment), std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(chunk->offset_bytes + 1000));
    file << "damage";
  }
  const Status status = Load(planned);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), AllOf(HasSubstr(".seg"), Not(HasSubstr("deleted"))));
  const auto report = reader_->Verify({});
  ASSERT_TRUE(report.ok());
  ASSERT_EQ(report->problems.size(), 1U);
  EXPECT_EQ(report->problems[0].step, 2U);
}

TEST_F(UnpinnedTest, VerifyDoesNotCallADeletedStepDamaged) {
  for (const bool one : {false, true}) {
    for (uint64_t step = 0; step < 40; ++step) Save(writer_.get(), step);
    bool deleted = false;
    VerifyOptions options;
    if (one) options.step = 39;
    options.progress = [&](uint64_t, uint64_t) {
      if (!std::exchange(deleted, true)) {
        EXPECT_OK(writer_->Delete(StepNumbers(writer_.get())));
        EXPECT_TRUE(writer_->Reclaim().ok());
        for (uint64_t step = 100; step < 116; ++step) {
          Save(writer_.get(), step);
          EXPECT_OK(writer_->Delete({&step, 1}));
        }
      }
      return true;
    };
    const auto report = reader_->Verify(options);
    EXPECT_TRUE(deleted);
    if (report.ok()) {
      EXPECT_THAT(report->problems, IsEmpty());
    } else {
      EXPECT_TRUE(one);
      ExpectDeleted(report.status(), 39);
    }
  }
}

TEST_F(UnpinnedTest, AReaderFollowsWhileTheWriterSavesDeletesAndReclaims) {
  ASSERT_OK(writer_->Close());
  StoreOptions options = Options();
  options.keep = {{.count = 1}};
  writer_ = Open(options);
  ASSERT_NE(writer_, nullptr);
  Save(writer_.get(), 0);
  std::atomic<bool> stop{false};
  std::atomic<int> loads{0};
  std::string wrong;
  std::thread reader([&] {
    while (!stop.load() && wrong.empty()) {
      const auto steps = reader_->Steps();
      if (!steps.ok() || steps->empty()) {
        wrong = steps.ok() ? "no step" : steps.status().ToString();
        return;
      }
      const uint64_t step = steps->back().step;
      const Status status = CheckSeeded(reader_.get(), step, step, kState);
      if (!status.ok() && status.code() != StatusCode::kNotFound) wrong = status.ToString();
      if (status.ok()) ++loads;
    }
  });
  for (uint64_t step = 1; step < 200; ++step) {
    Save(writer_.get(), step);
    if (step % 4 == 0) {
      EXPECT_TRUE(writer_->Reclaim().ok());
    }
  }
  while (loads.load() == 0 && wrong.empty()) std::this_thread::yield();
  stop = true;
  reader.join();
  EXPECT_EQ(wrong, "");
}

}  // namespace
}  // namespace stepwell::db
