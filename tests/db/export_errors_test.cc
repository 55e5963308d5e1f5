// SPDX-License-Identifier: Apache-2.0
// Exports that cannot be: exact errors, nothing left behind, the store as it was, and nothing of
// anybody else's touched.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "db/export/orbax/folder.h"
#include "db/layout.h"
#include "tests/db/support/export_support.h"

namespace stepwell::db {
namespace {

namespace fs = std::filesystem;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kFaultyStep = 3;

class ExportErrorsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    StoreOptions options;
    options.segment_bytes = 1 << 20;
    auto store = Store::Open(dir_ / "store", options);
    ASSERT_OK(store.status());
    store_ = std::move(*store);
    auto handle = SaveSeeded(store_.get(), kFaultyStep, kFaultyStep, SmallState());
    ASSERT_OK(handle.status());
    ASSERT_OK(handle->Wait());
    fs::create_directory(dir_ / "out");
  }

  Status Run(const std::string& destination, ExportMode mode = ExportMode::kCopy,
             ExportLayout layout = ExportLayout::kV1) {
    ExportOptions options;
    options.mode = mode;
    options.layout = layout;
    return Export(*store_, kFaultyStep, destination, options).status();
  }
  std::string Out(const std::string& name) const { return dir_ / ("out/" + name); }
  void ExpectStore() const {
    EXPECT_OK(CheckSeeded(store_.get(), kFaultyStep, kFaultyStep, SmallState()));
    const auto report = store_->Verify({});
    ASSERT_OK(report.status());
    EXPECT_TRUE(report->problems.empty());
  }
  void TearDown() override { ExpectStore(); }

  TempDir dir_{"/dev/shm"};  // nothing here is about a disk
  std::unique_ptr<Store> store_;
};

TEST_F(ExportErrorsTest, AnythingOfThatNameIsInTheWay) {
  std::ofstream(Out("file")) << "mine";
  fs::create_directory(Out("empty"));
  fs::create_directories(Out("full/sub"));
  fs::create_symlink("full", Out("link"));
  fs::create_symlink("nowhere", Out("dangling"));
  fs::create_symlink("loop", Out("loop"));
  ASSERT_EQ(mkfifo(Out("fifo").c_str(), 0600), 0);
  const auto before = NamesIn(dir_ / "out");
  for (const ExportMode mode : {ExportMode::kLink, ExportMode::kCopy}) {
    for (const std::string& name : before) {
      for (const std::string end : {"", "/", "//"}) {
        const Status status = Run(Out(name) + end, mode);
        const bool is_loop = name == "loop";
        EXPECT_EQ(status.code(),
                  is_loop ? StatusCode::kInvalidArgument : StatusCode::kAlreadyExists)
            << status.ToString();
        EXPECT_THAT(status.message(), HasSubstr(Out(name)));
        EXPECT_THAT(status.message(),
                    HasSubstr(is_loop ? "symbolic links" : "is there already; delete it"));
      }
    }
    EXPECT_EQ(NamesIn(dir_ / "out"), before);
  }
  EXPECT_EQ(FilesBelow(dir_ / "out"), (std::map<std::string, std::string>{{"file", "mine"}}));
  EXPECT_TRUE(fs::exists(Out("full/sub")));
}

// That the destination is there must not cost somebody else's directory beside it.
TEST_F(ExportErrorsTest, ATemporaryDirectoryOfOthersIsLeftAlone) {
  const std::string theirs = Out("x.orbax-checkpoint-tmp");
  fs::create_directories(theirs + "/state");
  std::ofstream(theirs + "/state/array") << "being saved";
  for (const bool there : {false, true}) {
    if (there) fs::create_directory(Out("x"));
    const Status status = Run(Out("x"));
    EXPECT_EQ(status.code(), StatusCode::kAlreadyExists);
    EXPECT_THAT(status.message(), HasSubstr(there ? "is there already" : "of a save or export"));
    EXPECT_TRUE(fs::exists(theirs + "/state/array"));
  }
  fs::remove_all(theirs);
  std::ofstream(theirs) << "a file";
  fs::remove(Out("x"));
  EXPECT_FALSE(Run(Out("x")).ok());
  EXPECT_TRUE(fs::exists(theirs));
}

TEST_F(ExportErrorsTest, AStepInAManagersRootIsInTheWay) {
  fs::create_directories(Out("root/3/state"));
  std::ofstream(Out("root/3/state/array")) << "theirs";
  const Status status = Run(Out("root"), ExportMode::kCopy, ExportLayout::kV0);
  EXPECT_EQ(status.code(), StatusCode::kAlreadyExists);
  EXPECT_THAT(status.message(), HasSubstr(Out("root/3")));
  EXPECT_THAT(NamesIn(Out("root")), ElementsAre("3"));
  EXPECT_EQ(FilesBelow(Out("root")),
            (std::map<std::string, std::string>{{"3/state/array", "theirs"}}));
  std::ofstream(Out("file"));
  EXPECT_EQ(Run(Out("file"), ExportMode::kCopy, ExportLayout::kV0).code(),
            StatusCode::kInvalidArgument);
  const Status no_parent = Run(Out("no/root"), ExportMode::kCopy, ExportLayout::kV0);
  EXPECT_EQ(no_parent.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(no_parent.message(), HasSubstr("no such directory to export to; make it"));
}

// A root that was made for an export that then failed goes away again.
TEST_F(ExportErrorsTest, ANewRootGoesWithItsExport) {
  ExportOptions options;
  options.layout = ExportLayout::kV0;
  options.mode = ExportMode::kCopy;
  options.progress = [](uint64_t done, uint64_t) { return done == 0; };
  EXPECT_EQ(Export(*store_, kFaultyStep, Out("root"), options).status().code(),
            StatusCode::kCancelled);
  EXPECT_TRUE(NamesIn(dir_ / "out").empty());

  // With metadata, too; in a root that is there already it stays the step's.
  std::vector<std::vector<float>> scratch;
  scratch.reserve(SmallState().size());
  SaveRequest request = MakeRequest(kFaultyStep + 1, kFaultyStep, SmallState(), &scratch);
  request.metadata_json = R"({"orbax": {"root": {"r": 1}}})";
  auto handle = store_->Save(std::move(request));
  ASSERT_OK(handle.status());
  ASSERT_OK(handle->Wait());
  EXPECT_EQ(Export(*store_, kFaultyStep + 1, Out("root"), options).status().code(),
            StatusCode::kCancelled);
  EXPECT_TRUE(NamesIn(dir_ / "out").empty());
  options.progress = nullptr;
  EXPECT_OK(Export(*store_, kFaultyStep + 1, Out("root"), options).status());
  EXPECT_TRUE(fs::exists(Out("root/metadata/_ROOT_METADATA")));
  fs::create_directory(Out("there"));
  EXPECT_OK(Export(*store_, kFaultyStep + 1, Out("there"), options).status());
  EXPECT_THAT(NamesIn(Out("there")), ElementsAre("4"));
}

TEST_F(ExportErrorsTest, InsideTheStoreWhateverThePathLooksLike) {
  fs::create_symlink(dir_ / "store", Out("alias"));
  fs::create_symlink(dir_ / "store/segments", Out("segments"));
  const auto before = NamesIn(dir_ / "store");
  const auto segments = NamesIn(dir_ / "store/segments");
  const std::string here = fs::current_path();
  for (const std::string& path :
       {dir_ / "store/x", dir_ / "store/segments/x", dir_ / "store//x", dir_ / "store/./x",
        dir_ / "out/../store/x", Out("alias/x"), Out("segments/x"), Out("segments/../x"),
        fs::path(dir_ / "store/x").lexically_relative(here).string()}) {
    for (const ExportLayout layout : {ExportLayout::kV1, ExportLayout::kV0}) {
      const Status status = Run(path, ExportMode::kLink, layout);
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << path << status.ToString();
      EXPECT_THAT(status.message(), HasSubstr("is inside the store; export elsewhere")) << path;
    }
  }
  for (const std::string& root : {dir_ / "store", dir_ / "store/segments", Out("segments")}) {
    EXPECT_EQ(Run(root, ExportMode::kLink, ExportLayout::kV0).code(), StatusCode::kInvalidArgument)
        << root;
  }
  EXPECT_EQ(NamesIn(dir_ / "store"), before);
  EXPECT_EQ(NamesIn(dir_ / "store/segments"), segments);
  EXPECT_THAT(NamesIn(dir_ / "out"), ElementsAre("alias", "segments"));
}

// The store lies below the manager's root: that does no harm, unless it has the step's name.
TEST_F(ExportErrorsTest, TheStoreBelowTheRoot) {
  EXPECT_OK(Run(dir_.path(), ExportMode::kLink, ExportLayout::kV0));
  EXPECT_OK(CheckExported(io::LocalFileSystem(), dir_ / "3", kFaultyStep, SmallState()));
  ExportOptions options;
  options.layout = ExportLayout::kV0;
  ASSERT_OK(store_->Close());
  fs::rename(dir_ / "store", dir_ / "00003");
  auto store = Store::Open(dir_ / "00003", {});
  ASSERT_OK(store.status());
  store_ = std::move(*store);
  options.step_digits = 5;
  EXPECT_EQ(Export(*store_, kFaultyStep, dir_.path(), options).status().code(),
            StatusCode::kAlreadyExists);
}

TEST_F(ExportErrorsTest, OddPaths) {
  const Status empty = Run("");
  EXPECT_EQ(empty.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(empty.message(), HasSubstr("needs a destination"));
  for (const std::string path : {".", "..", "/", "///", "/."}) {
    EXPECT_EQ(Run(path).code(), StatusCode::kAlreadyExists) << path;
  }
  for (const std::string& path : {Out("no/x"), Out("no/../x"), Out("no/.")}) {
    const Status status = Run(path);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << path;
    EXPECT_THAT(status.message(), HasSubstr("no such directory to export to; make it"));
  }
  std::ofstream(Out("file"));
  EXPECT_EQ(Run(Out("file/x")).code(), StatusCode::kInvalidArgument);
  for (const size_t bytes : {235U, 255U, 256U, 5000U}) {
    const Status status = Run(Out(std::string(bytes, 'n')));
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << bytes;
    EXPECT_THAT(status.message(), HasSubstr("at most 234 bytes"));
  }
  EXPECT_THAT(Run(Out("x.orbax-checkpoint-tmp.y")).message(), HasSubstr("was not finished"));
  EXPECT_THAT(NamesIn(dir_ / "out"), ElementsAre("file"));
  // And those that are only unusual.
  const std::string longest(234, 'n');
  const std::string here = fs::current_path();
  ASSERT_EQ(chdir((dir_ / "out").c_str()), 0);
  for (const std::string& path :
       {longest, std::string("relative///"), std::string("./a b\n\"\xff"), Out("../out/up")}) {
    SCOPED_TRACE(path);
    EXPECT_OK(Run(path));
    EXPECT_OK(CheckExported(io::LocalFileSystem(), path.substr(0, path.find("///")), kFaultyStep,
                            SmallState()));
  }
  ASSERT_EQ(chdir(here.c_str()), 0);
}

TEST_F(ExportErrorsTest, WhatIsNotInTheStep) {
  ExportOptions options;
  options.items = {"state", "nothing"};
  Status status = Export(*store_, kFaultyStep, Out("x"), options).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("no item \"nothing\"; it has state"));
  options.items.clear();
  options.subtree_key = KeyOf("state", "nothing");
  status = Export(*store_, kFaultyStep, Out("x"), options).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("has nothing at this path"));
  EXPECT_EQ(Export(*store_, 4, Out("x"), {}).status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(NamesIn(dir_ / "out").empty());
}

TEST_F(ExportErrorsTest, AMissingSegmentIsNamed) {
  const std::string away = dir_ / "away";
  for (const auto& entry : fs::directory_iterator(SegmentsPath(dir_ / "store"))) {
    if (entry.path().extension() != ".seg" || entry.file_size() < 100'000) continue;
    fs::rename(entry.path(), away);
    for (const ExportMode mode : {ExportMode::kLink, ExportMode::kCopy, ExportMode::kAuto}) {
      const Status status = Run(Out("x"), mode);
      EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status.ToString();
      EXPECT_THAT(status.message(), HasSubstr(entry.path().string()));
      EXPECT_TRUE(NamesIn(dir_ / "out").empty());
    }
    fs::rename(away, entry.path());
    return;
  }
  FAIL() << "no segment has the step's chunks";
}

// It is pinned: deleting it does not take its bytes away.
TEST_F(ExportErrorsTest, AStepThatIsDeletedMeanwhile) {
  for (const ExportMode mode : {ExportMode::kLink, ExportMode::kCopy}) {
    const uint64_t step = mode == ExportMode::kLink ? 10 : 20;
    ASSERT_OK(SaveSeeded(store_.get(), step, step, SmallState())->Wait());
    ExportOptions options;
    options.mode = mode;
    bool deleted = false;
    options.progress = [&](uint64_t, uint64_t) {
      if (deleted) return true;
      deleted = true;
      EXPECT_OK(store_->Delete({&step, 1}));
      for (uint64_t more = step + 1; more < step + 9; ++more) {
        EXPECT_OK(SaveSeeded(store_.get(), more, more, SmallState())->Wait());
      }
      EXPECT_OK(store_->Reclaim().status());
      return true;
    };
    const std::string path = Out(std::to_string(step));
    EXPECT_OK(Export(*store_, step, path, options).status());
    EXPECT_TRUE(deleted);
    EXPECT_OK(store_->Reclaim().status());
    EXPECT_OK(CheckExported(io::LocalFileSystem(), path, step, SmallState()));
  }
}

TEST_F(ExportErrorsTest, CancelledWhenever) {
  for (const ExportMode mode : {ExportMode::kLink, ExportMode::kCopy}) {
    int calls = 0;
    ExportOptions options;
    options.mode = mode;
    options.progress = [&](uint64_t, uint64_t) { return ++calls > 0; };
    ASSERT_OK(Export(*store_, kFaultyStep, Out("whole"), options).status());
    fs::remove_all(Out("whole"));
    ASSERT_GT(calls, 0);
    for (int last = 1, all = calls; last <= all; ++last) {
      calls = 0;
      options.progress = [&](uint64_t, uint64_t) { return ++calls < last; };
      EXPECT_EQ(Export(*store_, kFaultyStep, Out("x"), options).status().code(),
                StatusCode::kCancelled);
      EXPECT_TRUE(NamesIn(dir_ / "out").empty());
    }
  }
}

// The directory becomes somebody else's before the rename.
TEST_F(ExportErrorsTest, WhoComesFirstStays) {
  for (const std::string what : {"file", "full", "dangling"}) {
    ExportOptions options;
    options.mode = ExportMode::kCopy;
    options.progress = [&](uint64_t, uint64_t) {
      if (what == "file") std::ofstream(Out("x")) << "mine";
      if (what == "full") fs::create_directories(Out("x/sub"));
      if (what == "dangling" && !fs::is_symlink(Out("x"))) fs::create_symlink("no", Out("x"));
      return true;
    };
    const Status status = Export(*store_, kFaultyStep, Out("x"), options).status();
    EXPECT_EQ(status.code(), StatusCode::kAlreadyExists) << status.ToString();
    EXPECT_THAT(NamesIn(dir_ / "out"), ElementsAre("x"));
    EXPECT_FALSE(fs::exists(Out("x/state")));
    fs::remove_all(Out("x"));
  }
}

// A dead export's claim may be one that its owner could not open for writing.
TEST_F(ExportErrorsTest, ALeftoverWithAnotherModeIsReplaced) {
  {
    ExportFolderOptions options;
    options.file_mode = 0444;
    auto dead = ExportFolder::Create(io::LocalFileSystem(), Out("x"), options);
    ASSERT_OK(dead.status());
    struct stat info {};
    ASSERT_EQ(stat((*dead)->Now("stepwell-export.lock").c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0644U);
    ASSERT_OK((*dead)->MakeDirectory("zz"));
    ASSERT_OK((*dead)->Write("zz/file", "old"));
    fs::copy((*dead)->Now(""), Out("copy"), fs::copy_options::recursive);
  }
  EXPECT_THAT(NamesIn(dir_ / "out"), ElementsAre("copy"));
  fs::rename(Out("copy"), Out("x.orbax-checkpoint-tmp"));
  EXPECT_OK(Run(Out("x")));
  EXPECT_THAT(NamesIn(dir_ / "out"), ElementsAre("x"));
  EXPECT_FALSE(fs::exists(Out("x/zz")));
}

}  // namespace
}  // namespace stepwell::db
