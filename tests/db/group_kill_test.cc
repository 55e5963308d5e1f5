// SPDX-License-Identifier: Apache-2.0
// A process that prepares and decides steps of three parts is killed at random moments; this one
// opens the group at once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <set>
#include <thread>

#include "tests/db/support/group_support.h"
#include "tests/db/support/process_support.h"

namespace stepwell::db {
namespace {

constexpr uint64_t kKills = 8;

// The child's messages before it died.
struct ChildOutput {
  std::set<uint64_t> prepared;
  std::set<uint64_t> committed;
  std::set<uint64_t> aborted;
  std::string error;

  void Take(const std::string& line) {
    const auto number = [&](std::string_view word, std::set<uint64_t>* steps) {
      if (line.starts_with(word)) steps->insert(std::stoull(line.substr(word.size())));
    };
    number("prepared ", &prepared);
    number("committed ", &committed);
    number("aborted ", &aborted);
    if (line.starts_with("error")) error = line;
  }
};

Status CheckWhole(Store* root, uint64_t step) {
  std::vector<LeafSpec> specs;
  for (uint32_t part = 0; part < 3; ++part) specs.push_back(PartState(part).front());
  return CheckSeeded(root, step, step, specs);
}

TEST(GroupKillTest, AStepIsThereOnAllPartsOrOnNone) {
  const uint64_t seed = std::random_device{}();
  std::printf("seed %lu\n", static_cast<unsigned long>(seed));
  std::mt19937_64 random(seed);
  const uint64_t kills = InAStorm(kKills);
  TempDir dir;
  const std::string root = dir / "run";
  std::set<uint64_t> expected;
  uint64_t next = 1;
  uint64_t undecided = 0;
  for (uint64_t kill = 0; kill < kills; ++kill) {
    SCOPED_TRACE(StrCat("kill ", kill));
    ChildOutput output;
    {
      ChildProcess child({STEPWELL_STORE_CHILD, "group", root, std::to_string(next)});
      ASSERT_EQ(child.Line(), "open");
      for (uint64_t i = random() % 4; i > 0; --i) output.Take(child.Line());
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 15000));
      child.Kill();
      for (const std::string& line : child.Rest()) output.Take(line);
    }
    ASSERT_EQ(output.error, "");
    const auto group = GroupStores::Open(root, 3);
    ASSERT_OK(group.status());
    expected.insert(output.committed.begin(), output.committed.end());
    std::vector<Store*> parts;
    std::vector<std::set<uint64_t>> known(3);
    for (const auto& store : group->stores) {
      parts.push_back(store.get());
      for (const uint64_t step : StepNumbers(store.get())) known[parts.size() - 1].insert(step);
      for (const uint64_t step : PreparedSteps(store.get())) {
        known[parts.size() - 1].insert(step);
        ++undecided;
      }
      EXPECT_THAT(store->recovery().problems, ::testing::IsEmpty());
    }
    for (const uint64_t step : output.prepared) {
      if (output.aborted.contains(step) || step % 5 == 0) continue;  // may be aborted since
      for (size_t part = 0; part < 3; ++part) {
        EXPECT_TRUE(known[part].contains(step)) << "part " << part << " lost step " << step;
      }
    }
    // Before and after somebody decides, what part 0 has is there wholly.
    for (int round = 0; round < 2; ++round) {
      const std::vector<uint64_t> there = StepNumbers(parts[0]);
      for (const uint64_t step : there) {
        EXPECT_OK(CheckWhole(parts[0], step));
        EXPECT_TRUE(output.prepared.contains(step) || expected.contains(step));
        next = std::max(next, step + 1);
      }
      for (const uint64_t step : expected) {
        EXPECT_THAT(there, ::testing::Contains(step)) << "was committed and is gone";
      }
      if (round == 1) expected = {there.begin(), there.end()};
      ASSERT_OK(Settle(parts));
    }
    for (Store* store : parts) {
      EXPECT_THAT(PreparedSteps(store), ::testing::IsEmpty());
      EXPECT_EQ(StepNumbers(store), StepNumbers(parts[0]));
    }
    if (expected.size() > 6) {
      std::vector<uint64_t> old(expected.begin(), expected.end());
      old.resize(old.size() - 3);
      for (Store* store : parts) ASSERT_OK(store->Delete(old));
      for (const uint64_t step : old) expected.erase(step);
    }
    for (const uint64_t step : output.prepared) next = std::max(next, step + 2);
    const auto report = parts[0]->Verify({});
    ASSERT_OK(report.status());
    for (const VerifyProblem& problem : report->problems) ADD_FAILURE() << problem.message;
    ASSERT_OK(group->Close());
    if (HasFailure()) return;
  }
  std::printf("%lu kills, %lu steps were undecided after one\n", static_cast<unsigned long>(kills),
              static_cast<unsigned long>(undecided));
}

}  // namespace
}  // namespace stepwell::db
