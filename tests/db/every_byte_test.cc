// SPDX-License-Identifier: Apache-2.0
// A store is right, or says that it is damaged, whichever byte of it is another.
#include <gmock/gmock.h>

#include <filesystem>

#include "db/layout.h"
#include "tests/db/support/damage_support.h"

namespace stepwell::db {
namespace {

namespace fs = std::filesystem;

// Every byte of a small store, one at a time.
class EveryByteTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kSmallSteps = 3;
  static std::vector<LeafSpec> State() {
    return {{"a", {7}, false, false}, {"t", {300}, true, false}};
  }

  void SetUp() override {
    for (uint64_t step = 0; step < kSmallSteps; ++step) seeds_[step] = 3 * step;  // short texts
    auto store = Store::Open(dir_ / "live", PosixOptions());
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    for (const auto& [step, seed] : seeds_) {
      ASSERT_OK(SaveSeeded(store->get(), step, seed, State())->Wait());
    }
    CopyLiveStore(dir_ / "live", dir_ / "killed");  // as a kill leaves it
    ASSERT_OK((*store)->Close());
  }

  // Flips bytes of the store's segments and of STEPWELL: all that are not zero, with what is around
  // them, and of the padding every `stride`th.
  void FlipAll(const std::string& path, const StoreOptions& options, uint64_t stride) {
    std::vector<std::string> files = FilesIn(SegmentsPath(path));
    files.push_back(SlotFilePath(path));
    uint64_t flips = 0;
    uint64_t reported = 0;
    for (const std::string& file : files) {
      const std::string bytes = ReadAll(file);
      for (uint64_t i = 0; i < bytes.size(); ++i) {
        const std::string_view around = std::string_view(bytes).substr(i < 4 ? 0 : i - 4, 9);
        const bool padding = around.find_first_not_of('\0') == std::string_view::npos;
        if (i % (padding ? 1021 : stride) != 0) continue;
        FlipByte(file, i, static_cast<char>(1 << i % 8));
        const Survey survey = SurveyStore(path, options, seeds_, State());
        FlipByte(file, i, static_cast<char>(1 << i % 8));
        ++flips;
        if (!survey.open.ok() || !survey.errors.empty()) ++reported;
        for (const std::string& silent : survey.silent) {
          ADD_FAILURE() << file << " byte " << i << ": " << silent;
        }
        if (HasFailure()) return;
      }
    }
    std::printf("%s: %lu flips, %lu reported, the others harmless\n", path.c_str(),
                static_cast<unsigned long>(flips), static_cast<unsigned long>(reported));
    EXPECT_GT(reported, 0U);
    EXPECT_EQ(SurveyStore(path, options, seeds_, State()).right,
              kSmallSteps * (State().size() + 1));
  }

  TempDir dir_{fs::exists("/dev/shm") ? fs::path("/dev/shm") : fs::temp_directory_path()};  // quick
  std::map<uint64_t, uint64_t> seeds_;
};

TEST_F(EveryByteTest, OfAClosedStoreIsRightOrReported) {
  FlipAll(dir_ / "live", ReaderOptions(), 1);
}

TEST_F(EveryByteTest, OfAKilledStoreIsRightOrReported) {
  FlipAll(dir_ / "killed", ReaderOptions(), 3);
}

// Recovery writes: each time in a copy.
TEST_F(EveryByteTest, OpenedForWritingIsRightOrReported) {
  uint64_t flips = 0;
  for (const char* name : {"live", "killed"}) {
    const std::string path = dir_ / name;
    std::vector<std::string> files = FilesIn(SegmentsPath(path));
    files.push_back(SlotFilePath(path));
    for (const std::string& file : files) {
      const std::string bytes = ReadAll(file);
      for (uint64_t i = 0; i < bytes.size(); ++i) {
        if (bytes[i] == '\0' || i % 23 != 0) continue;
        CopyStore(path, dir_ / "copy");
        FlipByte(dir_ / ("copy" + file.substr(path.size())), i, '\x04');
        ++flips;
        // Twice: what the first open made of it must not be worse.
        for (int open = 0; open < 2; ++open) {
          const Survey survey = SurveyStore(dir_ / "copy", PosixOptions(), seeds_, State());
          for (const std::string& silent : survey.silent) {
            if (open == 1 && silent.starts_with("missing")) continue;  // said at the first open
            ADD_FAILURE() << file << " byte " << i << ", open " << open << ": " << silent;
          }
        }
        if (HasFailure()) return;
      }
    }
  }
  std::printf("%lu flips under a writer\n", static_cast<unsigned long>(flips));
}

}  // namespace
}  // namespace stepwell::db
