// SPDX-License-Identifier: Apache-2.0
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "tests/api/support/api_support.h"

namespace stepwell {
namespace {

using ::testing::ElementsAre;

class StoreTest : public ApiTest {
 protected:
  static std::vector<uint64_t> Numbers(Store& store) {
    std::vector<uint64_t> numbers;
    for (const StepInfo& info : *store.Steps()) numbers.push_back(info.step);
    return numbers;
  }
};

TEST_F(StoreTest, OpeningFailsInWords) {
  OpenOptions read_only;
  read_only.read_only = true;
  EXPECT_ERROR(Store::Open(path(), read_only), StatusCode::kNotFound, "store");
  EXPECT_ERROR(Store::Open(""), StatusCode::kInvalidArgument, "empty");
  OpenOptions not_created;
  not_created.create = false;
  EXPECT_ERROR(Store::Open(path(), not_created), StatusCode::kNotFound, "store");
  OpenOptions bad_rule;
  bad_rule.keep = {KeepRule::Latest(0)};
  EXPECT_ERROR(Store::Open(path(), bad_rule), StatusCode::kInvalidArgument, "");
  Store store = Open();
  OpenOptions impatient;
  impatient.lock_timeout = std::chrono::milliseconds(1);
  EXPECT_ERROR(Store::Open(path(), impatient), StatusCode::kUnavailable, "");
}

TEST_F(StoreTest, AReaderWorksBesideTheWriter) {
  Store writer = Open();
  ASSERT_OK(SaveAndWait(writer, SmallStep(1, 5)));
  OpenOptions options;
  options.read_only = true;
  Store reader = Open(options);
  EXPECT_THAT(Numbers(reader), ElementsAre(1));
  ASSERT_OK(SaveAndWait(writer, SmallStep(2, 6)));
  EXPECT_EQ(reader.ReadLatest()->ReadVector<float>("w")->front(), 6);
  EXPECT_EQ(StatusOf(reader.Save(SmallStep(3))).ok(), false);
  EXPECT_FALSE(reader.Delete({1}).ok());
  EXPECT_THAT(Numbers(writer), ElementsAre(1, 2));
}

TEST_F(StoreTest, ReopeningFindsWhatWasSaved) {
  {
    Store store = Open();
    EXPECT_ERROR(store.ReadLatest(), StatusCode::kNotFound, "no steps yet");
    ASSERT_OK(store.Save(SmallStep(1, 5)));  // the destructor waits
  }
  Store store = Open();
  EXPECT_EQ(store.Read(1)->ReadVector<float>("w")->front(), 5);
  EXPECT_TRUE(store.Recovery()->clean);
}

TEST_F(StoreTest, RetentionKeepsWhatARuleOrAPinKeeps) {
  OpenOptions options;
  options.keep = {KeepRule::Latest(2), KeepRule::Every(10)};
  Store store = Open(options);
  for (const uint64_t step : {9U, 10U, 11U}) ASSERT_OK(SaveAndWait(store, SmallStep(step)));
  EXPECT_THAT(Numbers(store), ElementsAre(10, 11));
  ASSERT_OK(store.SetPinned({11}, true));
  for (const uint64_t step : {12U, 13U}) ASSERT_OK(SaveAndWait(store, SmallStep(step)));
  EXPECT_THAT(Numbers(store), ElementsAre(10, 11, 12, 13));
  EXPECT_TRUE(store.Steps()->at(1).pinned);
  EXPECT_EQ(store.Delete({11}).code(), StatusCode::kFailedPrecondition);
  ASSERT_OK(store.SetPinned({11}, false));
  EXPECT_OK(store.Delete({11}));
  EXPECT_EQ(store.SetPinned({11}, true).code(), StatusCode::kNotFound);
}

TEST_F(StoreTest, TaintedStepsAreNotTheLatest) {
  Store store = Open();
  for (const uint64_t step : {1U, 2U}) ASSERT_OK(SaveAndWait(store, SmallStep(step)));
  ASSERT_OK(store.SetTaint({2}, "loss spike"));
  EXPECT_EQ(store.ReadLatest()->info().step, 1U);
  EXPECT_EQ(store.Steps()->at(1).taint, "loss spike");
  EXPECT_EQ(store.Read(2)->info().taint, "loss spike");
  ASSERT_OK(store.SetTaint({1}, "too early"));
  EXPECT_ERROR(store.ReadLatest(), StatusCode::kNotFound, "only tainted steps");
  ASSERT_OK(store.SetTaint({1, 2}, ""));
  EXPECT_EQ(store.ReadLatest()->info().step, 2U);
  EXPECT_ERROR(store.SetTaint({1}, std::string(1025, 'x')), StatusCode::kInvalidArgument, "1024");
}

TEST_F(StoreTest, ARollbackMakesAStepTheLatest) {
  Store store = Open();
  for (const uint64_t step : {1U, 2U, 3U, 4U}) ASSERT_OK(SaveAndWait(store, SmallStep(step)));
  ASSERT_OK(store.SetTaint({1, 4}, "loss spike"));
  EXPECT_ERROR(store.RollBack(1), StatusCode::kInvalidArgument, "step 1 is tainted, 'loss spike'");
  EXPECT_ERROR(store.RollBack(9), StatusCode::kNotFound, "9");
  ASSERT_OK(store.SetPinned({3}, true));
  EXPECT_ERROR(store.RollBack(2), StatusCode::kFailedPrecondition, "pinned");
  const auto tainted = store.RollBack(2, "worse");
  ASSERT_OK(tainted.status());
  EXPECT_THAT(*tainted, ElementsAre(3, 4));
  EXPECT_EQ(store.ReadLatest()->info().step, 2U);
  EXPECT_EQ(store.Steps()->at(3).taint, "worse");
  ASSERT_OK(store.SetPinned({3}, false));
  EXPECT_THAT(*store.RollBack(2), ElementsAre(3, 4));
  EXPECT_THAT(*store.RollBack(2), ElementsAre());
  EXPECT_THAT(Numbers(store), ElementsAre(1, 2));
}

TEST_F(StoreTest, TheBestStepsByAMetricStay) {
  OpenOptions options;
  options.keep = {KeepRule::Best(1, "loss")};
  Store store = Open(options);
  const std::vector<std::pair<uint64_t, std::string>> losses = {
      {1, R"({"loss": 0.5})"}, {2, R"({"loss": 0.7})"}, {3, R"({"loss": 0.6})"}};
  for (const auto& [step, metrics] : losses) {
    SaveRequest request = SmallStep(step);
    request.metrics_json = metrics;
    ASSERT_OK(SaveAndWait(store, std::move(request)));
  }
  EXPECT_THAT(Numbers(store), ElementsAre(1, 3));  // the best, and the one just committed
}

TEST_F(StoreTest, StepsAndItemsAreDeleted) {
  Store store = Open();
  for (const uint64_t step : {1U, 2U, 3U}) ASSERT_OK(SaveAndWait(store, SmallStep(step)));
  EXPECT_EQ(store.Delete({1, 7}).code(), StatusCode::kNotFound);
  EXPECT_THAT(Numbers(store), ElementsAre(1, 2, 3));
  EXPECT_OK(store.Delete({1, 3}));
  EXPECT_THAT(Numbers(store), ElementsAre(2));
  SaveRequest request = SmallStep(4, 1);
  request.Put(Path::In("data", "position"), 17);
  ASSERT_OK(SaveAndWait(store, std::move(request)));
  EXPECT_EQ(store.DeleteItems(4, {"nothing"}).code(), StatusCode::kNotFound);
  EXPECT_EQ(store.DeleteItems(4, {"data", "state"}).code(), StatusCode::kInvalidArgument);
  EXPECT_OK(store.DeleteItems(4, {"data"}));
  EXPECT_EQ(store.Read(4)->info().items.size(), 1U);
  EXPECT_EQ(store.Read(4)->ReadVector<float>("w")->front(), 1);
}

TEST_F(StoreTest, StatsAccountForSpace) {
  Store store = Open();
  for (uint64_t step = 1; step <= 3; ++step) ASSERT_OK(SaveAndWait(store, SmallStep(step)));
  const auto frees = store.FreesBytes({1, 2});
  ASSERT_OK(frees);
  EXPECT_EQ(frees->at(1), 0U);  // the others are equal
  ASSERT_OK(store.Delete({1, 2}));
  const auto last = store.FreesBytes();
  ASSERT_OK(last);
  EXPECT_EQ(last->at(3), store.Steps()->front().stored_bytes);
  const auto stats = store.Stats();
  ASSERT_OK(stats);
  EXPECT_EQ(stats->steps, 1U);
  const SpaceStats& space = stats->space;
  EXPECT_GT(space.live_bytes, 0U);
  EXPECT_EQ(space.live_bytes + space.padding_bytes + space.overhead_bytes + space.dead_bytes +
                space.reserved_bytes + space.index_bytes + space.other_bytes,
            space.total_bytes);
  EXPECT_FALSE(stats->disk.empty());
  const auto reclaimed = store.Reclaim();
  ASSERT_OK(reclaimed);
  EXPECT_LE(reclaimed->bytes_after, reclaimed->bytes_before);
}

TEST_F(StoreTest, VerifyFindsAFlippedBit) {
  Store store = Open();
  ASSERT_OK(SaveAndWait(store, SmallStep(1, 1)));
  const auto good = store.Verify();
  ASSERT_OK(good);
  EXPECT_EQ(good->steps, 1U);
  EXPECT_EQ(good->leaves, 1U);
  EXPECT_TRUE(good->problems.empty());
  ASSERT_OK(store.Close());

  // The bytes of 1.0F a thousand times over, in the only segment.
  const std::string segment = path() + "/segments/0000000001.seg";
  std::string bytes;
  {
    std::ifstream in(segment, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(in), {});
  }
  const std::vector<float> ones(1000, 1.0F);
  const size_t at = bytes.find({reinterpret_cast<const char*>(ones.data()), 4000});
  ASSERT_NE(at, std::string::npos);
  bytes[at + 100] ^= 1;
  std::ofstream(segment, std::ios::binary) << bytes;

  Store again = Open();
  const auto bad = again.Verify();
  ASSERT_OK(bad);
  ASSERT_EQ(bad->problems.size(), 1U);
  EXPECT_EQ(bad->problems[0].path, "w");
  EXPECT_EQ(bad->problems[0].step, 1U);
  EXPECT_ERROR(again.Read(1)->ReadVector<float>("w"), StatusCode::kDataLoss, "0000000001.seg");
  VerifyOptions stopping;
  stopping.progress = [](uint64_t, uint64_t) { return false; };
  EXPECT_EQ(again.Verify(stopping).status().code(), StatusCode::kCancelled);
}

TEST_F(StoreTest, NothingWorksAfterClose) {
  Store store = Open();
  ASSERT_OK(SaveAndWait(store, SmallStep(1)));
  ASSERT_OK(store.Close());
  EXPECT_OK(store.Close());
  constexpr auto kClosed = StatusCode::kFailedPrecondition;
  EXPECT_ERROR(store.Save(SmallStep(2)), kClosed, "closed");
  EXPECT_ERROR(store.Wait(), kClosed, "closed");
  EXPECT_ERROR(store.Steps(), kClosed, "closed");
  EXPECT_ERROR(store.Read(1), kClosed, "closed");
  EXPECT_ERROR(store.ReadLatest(), kClosed, "closed");
  EXPECT_ERROR(store.Delete({1}), kClosed, "closed");
  EXPECT_ERROR(store.DeleteItems(1, {"state"}), kClosed, "closed");
  EXPECT_ERROR(store.SetPinned({1}, true), kClosed, "closed");
  EXPECT_ERROR(store.SetTaint({1}, "x"), kClosed, "closed");
  EXPECT_ERROR(store.Reclaim(), kClosed, "closed");
  EXPECT_ERROR(store.Verify(), kClosed, "closed");
  EXPECT_ERROR(store.Stats(), kClosed, "closed");
  EXPECT_ERROR(store.FreesBytes(), kClosed, "closed");
  EXPECT_ERROR(store.Recovery(), kClosed, "closed");
  Store moved = std::move(store);
  EXPECT_ERROR(store.Steps(), kClosed, "moved from");  // NOLINT(bugprone-use-after-move)
  EXPECT_OK(store.Close());
  moved = Open();  // the first one is closed already; the directory is free
  EXPECT_THAT(Numbers(moved), ElementsAre(1));
}

TEST_F(StoreTest, AForkedChildIsTurnedAway) {
  Store store = Open();
  ASSERT_OK(SaveAndWait(store, SmallStep(1)));
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const Status status = StatusOf(store.Steps());
    const bool told = status.code() == StatusCode::kFailedPrecondition &&
                      status.message().find("fork") != std::string::npos;
    { const Store dropped = std::move(store); }
    _exit(told ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_OK(SaveAndWait(store, SmallStep(2)));
}

}  // namespace
}  // namespace stepwell
