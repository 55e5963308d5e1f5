// SPDX-License-Identifier: Apache-2.0
// Archives, views, imports, checkpoints, and what a step says of its tree.
#include <stepwell/checkpoint.h>
#include <stepwell/doctor.h>

#include <filesystem>
#include <fstream>

#include "tests/api/support/api_support.h"

namespace stepwell {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class ApiFormatsTest : public ApiTest {
 protected:
  // A step of the item "state" with "w", ten times a hundred numbers.
  std::string Exported(Store& store, const std::string& name) {
    EXPECT_OK(SaveAndWait(store, SmallStep(7, 5)));
    const std::string to = path() + name;
    EXPECT_OK(store.Export(7, to, {.mode = ExportMode::kCopy}));
    return to;
  }
};

TEST_F(ApiFormatsTest, ACheckpointIsFoundReadAndImported) {
  Store store = Open();
  const std::string root = path() + "-root";
  ASSERT_OK(SaveAndWait(store, SmallStep(7, 5)));
  ASSERT_OK(store.Export(7, root, {.layout = ExportLayout::kV0}));
  const auto steps = FindOrbaxSteps(root);
  ASSERT_OK(steps);
  ASSERT_THAT(*steps, SizeIs(1));
  EXPECT_EQ(steps->front().step, 7);
  const auto info = ReadCheckpointInfo(steps->front().path);
  ASSERT_OK(info);
  EXPECT_EQ(info->step, 7);
  EXPECT_THAT(info->items, ElementsAre("state"));

  const auto handle = store.Import(steps->front().path, 8);
  ASSERT_OK(handle);
  ASSERT_OK(handle->Wait());
  EXPECT_EQ(store.Read(8)->ReadVector<float>("w")->front(), 5);
  EXPECT_OK(store.VerifyImport(steps->front().path, 8));
  ASSERT_OK(SaveAndWait(store, SmallStep(9, 6)));
  EXPECT_ERROR(store.VerifyImport(steps->front().path, 9), StatusCode::kDataLoss, "w");
}

TEST_F(ApiFormatsTest, AnImportDoesAsItsOptionsSay) {
  Store store = Open();
  const std::string checkpoint = Exported(store, "-7");
  EXPECT_ERROR(store.Import(checkpoint, 7), StatusCode::kAlreadyExists, "7");
  const auto skipped = store.Import(checkpoint, 7, {.if_exists = IfExists::kSkip});
  ASSERT_OK(skipped);
  EXPECT_OK(skipped->Wait());
  EXPECT_TRUE(skipped->skipped());
  EXPECT_ERROR(store.Import(checkpoint, 8, {.items = {"nothing"}}), StatusCode::kNotFound,
               "nothing");
  EXPECT_ERROR(store.Import(checkpoint, 8, {.memory_bytes_max = 1}), StatusCode::kResourceExhausted,
               "");
  EXPECT_ERROR(store.Import(path(), 8), StatusCode::kInvalidArgument, "not an Orbax checkpoint");
}

TEST_F(ApiFormatsTest, WhatIsNoCheckpointSaysSo) {
  Store store = Open();
  EXPECT_THAT(*FindOrbaxSteps(path()), IsEmpty());
  EXPECT_THAT(*FindOrbaxSteps(path() + "/nowhere"), IsEmpty());
  EXPECT_ERROR(ReadCheckpointInfo(path() + "/nowhere"), StatusCode::kNotFound, "nowhere");
  EXPECT_ERROR(VerifyExport(path()), StatusCode::kFailedPrecondition, "");
}

TEST_F(ApiFormatsTest, AnExportIsCheckedAgainstItsDigests) {
  Store store = Open();
  const std::string checkpoint = Exported(store, "-7");
  const auto whole = VerifyExport(checkpoint);
  ASSERT_OK(whole);
  EXPECT_GT(whole->files, 0);
  EXPECT_GT(whole->chunks, 0);
  EXPECT_THAT(whole->problems, IsEmpty());
  fs::remove(checkpoint + "/state/_METADATA");
  const auto damaged = VerifyExport(checkpoint);
  ASSERT_OK(damaged);
  ASSERT_THAT(damaged->problems, SizeIs(1));
  EXPECT_THAT(damaged->problems.front().file, HasSubstr("_METADATA"));
  EXPECT_ERROR(VerifyExport(checkpoint, [](uint64_t, uint64_t) { return false; }),
               StatusCode::kCancelled, "");
}

TEST_F(ApiFormatsTest, AStepBecomesAnArchive) {
  Store store = Open();
  SaveRequest request(1);
  const std::vector<float> numbers = Numbers<float>(100);
  request.Put("a/w", ArrayView::Of(numbers.data(), {100}));
  request.Put("a/n", 3);
  ASSERT_OK(SaveAndWait(store, std::move(request)));
  const std::string file = path() + ".safetensors";
  EXPECT_ERROR(store.ExportArchive(1, file), StatusCode::kInvalidArgument, "a/n");
  EXPECT_FALSE(fs::exists(file));
  const auto report = store.ExportArchive(1, file, {.on_unsupported = OnUnsupported::kWiden}, "a");
  ASSERT_OK(report);
  EXPECT_EQ(report->leaves, 2);
  std::ifstream stream(file, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(stream), {});
  EXPECT_THAT(text, HasSubstr("\"w\":{\"dtype\":\"F32\""));
  EXPECT_ERROR(store.ExportArchive(1, file, {.on_unsupported = OnUnsupported::kSkip}),
               StatusCode::kAlreadyExists, file);
}

TEST_F(ApiFormatsTest, AViewFollowsTheStoreAndOutlivesIt) {
  std::shared_ptr<View> view;
  const std::string directory = path() + "-view";
  {
    Store store = Open();
    auto opened = store.OpenView(directory, {.checkpoint = {.step_digits = 4}});
    ASSERT_OK(opened);
    view = *opened;
    ASSERT_OK(SaveAndWait(store, SmallStep(7)));
    const auto current = view->WaitUntilCurrent(std::chrono::seconds(60));
    ASSERT_OK(current);
    EXPECT_TRUE(*current);
    EXPECT_EQ(view->PathOf(7), directory + "/0007");
    EXPECT_TRUE(fs::exists(directory + "/0007/state"));
    EXPECT_EQ(view->Stats().shown, 1);
    EXPECT_ERROR(store.OpenView(path() + "/below"), StatusCode::kInvalidArgument, "view");
  }
  EXPECT_FALSE(view->Stats().following);  // closed with its store, and kept as it was
  EXPECT_TRUE(fs::exists(directory + "/0007/state"));
  EXPECT_ERROR(view->WaitUntilCurrent(std::chrono::seconds(0)), StatusCode::kFailedPrecondition,
               "closed");
}

TEST_F(ApiFormatsTest, ATreeHasContainersAndWhatTheyAre) {
  Store store = Open();
  SaveRequest request(1);
  const std::vector<float> numbers = Numbers<float>(100);
  request.Put(KeyPath{PathComponent::Key("layers"), PathComponent::Index(0)},
              ArrayView::Of(numbers.data(), {100}));
  request.Put("name", "dense");
  request.Put("long", std::string(5000, 'x'));
  ASSERT_OK(SaveAndWait(store, std::move(request)));
  const auto step = store.ReadLatest();
  ASSERT_OK(step);
  EXPECT_TRUE(step->info().only_state());
  EXPECT_GT(step->info().commit, 0);
  EXPECT_THAT(step->info().processes, IsEmpty());
  const auto tree = step->Tree();
  ASSERT_OK(tree);
  std::vector<std::string> texts;
  for (const LeafInfo& info : *tree) texts.push_back(info.path.ToText() + " " + info.kind);
  EXPECT_THAT(texts, ElementsAre(" dict", "layers list", "layers/0 numpy", "long str", "name str"));
  EXPECT_EQ((*tree)[0].type, LeafType::kNode);
  EXPECT_EQ((*tree)[0].children, 3);
  EXPECT_THAT((*tree)[2].shard_shape, ElementsAre(100));
  EXPECT_EQ((*tree)[2].chunks, 1);
  EXPECT_EQ((*tree)[3].value, std::nullopt);  // its bytes are a chunk
  EXPECT_EQ((*tree)[4].value, Value("dense"));
  EXPECT_THAT(*step->Leaves(), SizeIs(3));
  EXPECT_THAT(*step->Tree("layers"), SizeIs(2));
}

TEST_F(ApiFormatsTest, RepairOfAnIntactStoreDoesNothing) {
  Store store = Open();
  ASSERT_OK(SaveAndWait(store, SmallStep(1)));
  const auto report = store.Repair();
  ASSERT_OK(report);
  EXPECT_THAT(report->steps_rewritten, IsEmpty());
  EXPECT_THAT(report->losses, IsEmpty());
  EXPECT_EQ(store.path(), path());
}

TEST_F(ApiFormatsTest, AMachineIsExamined) {
  Store store = Open();
  const auto report = ExamineMachine(path());
  ASSERT_OK(report);
  EXPECT_THAT(report->machine.kernel, HasSubstr("Linux"));
  EXPECT_TRUE(report->file_system.locks);
  EXPECT_ERROR(ExamineMachine(path() + "/nowhere"), StatusCode::kNotFound, "nowhere");
  EXPECT_ERROR(ExamineMachine(path() + "/STEPWELL"), StatusCode::kInvalidArgument,
               "not a directory");
}

}  // namespace
}  // namespace stepwell
