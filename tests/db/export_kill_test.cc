// SPDX-License-Identifier: Apache-2.0
// A process that exports is killed before each of its operations on files, while the store goes on,
// here or there. Afterwards there is no export or a whole one; what a dead one left is kept as it
// is by the store, and goes with the next export to the same place.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "db/export/orbax/bytes.h"
#include "db/layout.h"
#include "tests/db/support/big_state.h"
#include "tests/db/support/export_support.h"
#include "tests/db/support/process_support.h"

namespace stepwell::db {
namespace {

namespace fs = std::filesystem;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::string_view kTemporary = ".orbax-checkpoint-tmp";

// Several segments of 1 MiB, with chunks that are compressed and such that are not.
std::vector<LeafSpec> ExportedState() {
  return {
      {"a", {7}}, {"b", {300, 1000}, true}, {"c", {}}, {"d", {0, 3}}, {"e", {40000}, true, true}};
}

struct ExportKillCase {
  const char* mode;
  const char* layout;
  const char* writer;  // as store_child has it
  uint64_t stride;     // kill before each stride-th operation
};

class ExportKillTest : public ::testing::TestWithParam<ExportKillCase> {
 protected:
  void SetUp() override {
    fs::create_directory(out_);
    ASSERT_NO_FATAL_FAILURE(OpenStore());
    ASSERT_NO_FATAL_FAILURE(SaveNext());
  }

  bool IsSaving() const { return std::string_view(GetParam().writer) == "saving"; }
  bool IsV0() const { return std::string_view(GetParam().layout) == "v0"; }
  std::string Place() const { return IsV0() ? StrCat(out_, "/", step_) : out_ + "/x"; }
  std::string Leftover() const { return StrCat(Place(), kTemporary); }

  void OpenStore() {
    StoreOptions options;
    options.segment_bytes = 1 << 20;
    auto store = Store::Open(path_, options);
    ASSERT_OK(store.status());
    store_ = std::move(*store);
    EXPECT_THAT(store_->recovery().problems, IsEmpty());
  }
  // A step to export, with one before and one behind it that shares its segments.
  void SaveNext() {
    for (int i = 0; i < 3; ++i) {
      ++next_;
      ASSERT_OK(SaveSeeded(store_.get(), next_, next_, ExportedState())->Wait());
    }
    step_ = next_ - 1;
  }

  // The number of operations when it ended by itself; 0: it was killed.
  uint64_t RunChild(uint64_t stop) {
    if (IsSaving()) store_.reset();
    ChildProcess child({STEPWELL_STORE_CHILD, "export", path_, GetParam().writer,
                        std::to_string(step_), IsV0() ? out_ : out_ + "/x", GetParam().mode,
                        GetParam().layout, std::to_string(stop)});
    uint64_t operations = 0;
    for (const std::string& line : child.Rest()) {
      EXPECT_TRUE(line.starts_with("done ")) << line;
      if (line.starts_with("done ")) operations = std::stoull(line.substr(5));
    }
    const int status = child.Wait();
    EXPECT_EQ(status, operations > 0 ? 0 : SIGKILL);
    if (IsSaving()) OpenStore();
    return operations;
  }

  // All names and bytes of the segments that something in out_ has a second link to.
  std::map<std::string, std::string> Linked() const {
    std::map<std::string, std::string> linked;
    for (auto& [name, bytes] : FilesBelow(out_)) {
      if (name.find("/segment-") == std::string::npos) continue;
      struct stat info {};
      EXPECT_EQ(stat(StrCat(out_, "/", name).c_str(), &info), 0);
      if (info.st_nlink > 1) linked[name] = std::move(bytes);
    }
    return linked;
  }

  // The step and its neighbours are deleted, newer ones take what room they can get.
  void GoOn() {
    const uint64_t exported = step_;
    ASSERT_OK(CheckSeeded(store_.get(), exported, exported, ExportedState()));
    const auto old = StepNumbers(store_.get());
    ASSERT_NO_FATAL_FAILURE(SaveNext());
    ASSERT_OK(store_->Delete(old));
    ASSERT_OK(store_->Reclaim().status());
    ASSERT_NO_FATAL_FAILURE(SaveNext());
    const auto report = store_->Verify({});
    ASSERT_OK(report.status());
    for (const VerifyProblem& problem : report->problems) ADD_FAILURE() << problem.message;
  }

  void KillAt(uint64_t stop, bool* killed) {
    SCOPED_TRACE(StrCat("before operation ", stop));
    const uint64_t step = step_;
    const std::string place = Place();
    const std::string leftover = Leftover();
    *killed = RunChild(stop) == 0;
    const bool there = fs::exists(place);
    EXPECT_EQ(fs::exists(leftover), *killed && !there && stop > kFirstOperation);
    if (there) {
      EXPECT_OK(CheckExported(io::LocalFileSystem(), place, step, ExportedState()));
    }
    whole_ += there && *killed ? 1 : 0;
    leftovers_ += fs::exists(leftover) ? 1 : 0;
    const auto linked = Linked();
    links_ += linked.size();
    ASSERT_NO_FATAL_FAILURE(GoOn());
    for (const auto& [name, bytes] : linked) {
      std::ostringstream now;
      now << std::ifstream(StrCat(out_, "/", name), std::ios::binary).rdbuf();
      EXPECT_TRUE(now.str() == bytes) << name << " was changed";
    }
    if (there) {
      EXPECT_OK(CheckExported(io::LocalFileSystem(), place, step, ExportedState()));
    }
    ExportAgain(place, leftover, there);
  }
  // Before this operation there is nothing yet: it makes the temporary directory.
  static constexpr uint64_t kFirstOperation = 1;

  // The next export succeeds in the place of a dead one.
  void ExportAgain(const std::string& place, const std::string& leftover, bool there) {
    ExportOptions options;
    options.mode = ExportMode::kLink;
    const Status status = Export(*store_, step_, place, options).status();
    EXPECT_EQ(status.code(), there ? StatusCode::kAlreadyExists : StatusCode::kOk)
        << status.ToString();
    EXPECT_FALSE(fs::exists(leftover));
    EXPECT_THAT(NamesIn(out_), ElementsAre(fs::path(place).filename().string()));
    fs::remove_all(place);
    EXPECT_TRUE(Linked().empty());
    ASSERT_OK(store_->Reclaim().status());
    EXPECT_EQ(store_->Stats().space.linked_bytes, 0U);
  }

  // A kill leaves the page cache as it was, on any file system, so the test takes a quick one.
  TempDir dir_{"/dev/shm"};
  const std::string path_ = dir_ / "store";
  const std::string out_ = dir_ / "out";
  std::unique_ptr<Store> store_;
  uint64_t next_ = 0;
  uint64_t step_ = 0;
  uint64_t whole_ = 0;
  uint64_t leftovers_ = 0;
  uint64_t links_ = 0;
};

TEST_P(ExportKillTest, NothingOrAllOfIt) {
  const uint64_t stride = Stride(GetParam().stride);
  uint64_t kills = 0;
  uint64_t stop = 1;
  for (bool killed = true; killed; stop += stride) {
    ASSERT_NO_FATAL_FAILURE(KillAt(stop, &killed));
    kills += killed ? 1 : 0;
    if (HasFailure()) return;
  }
  std::printf("%lu kills; %lu left a whole export, %lu a part of one, with %lu links to segments\n",
              kills, whole_, leftovers_, links_);
  EXPECT_GT(leftovers_, 3U);
  EXPECT_TRUE(whole_ > 0 || stride > 1);
  EXPECT_TRUE(links_ > 3 || std::string_view(GetParam().mode) != "link");
}

INSTANTIATE_TEST_SUITE_P(Exports, ExportKillTest,
                         ::testing::Values(ExportKillCase{"link", "v1", "beside", 3},
                                           ExportKillCase{"copy", "v0", "beside", 3},
                                           ExportKillCase{"link", "v0", "saving", 4},
                                           ExportKillCase{"copy", "v1", "saving", 4}),
                         [](const auto& param) {
                           return StrCat(param.param.mode, "_", param.param.layout, "_",
                                         param.param.writer);
                         });

}  // namespace
}  // namespace stepwell::db
