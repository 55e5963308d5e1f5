// SPDX-License-Identifier: Apache-2.0
// Checkpoints, archives and views through the C interface.
#include <stepwell/c.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <future>
#include <thread>

#include "tests/api/support/c_support.h"

namespace stepwell {
namespace {

using ::testing::HasSubstr;

TEST_F(CTest, AStepGoesOutAsACheckpointAndComesBack) {
  SaveStep(1);
  const std::string out = path() + "-1";
  auto options = Sized<stepwell_export_options>();
  const char* const state = "state";
  options.mode = STEPWELL_EXPORT_COPY;
  options.items = &state;
  options.item_count = 1;
  auto report = Sized<stepwell_export_report>();
  ASSERT_C_OK(stepwell_export(store_, 1, nullptr, "", out.c_str(), &options, &report));
  EXPECT_EQ(report.mode, STEPWELL_EXPORT_COPY);
  EXPECT_EQ(report.leaves, 2U);
  stepwell_verify_report* verified = nullptr;
  ASSERT_C_OK(stepwell_verify_export(out.c_str(), &verified));
  auto found = Sized<stepwell_verify_info>();
  ASSERT_C_OK(stepwell_verify_report_get(verified, &found));
  EXPECT_GT(found.chunks, 0U);
  EXPECT_EQ(found.problem_count, 0U);
  stepwell_verify_report_free(verified);

  stepwell_handle* handle = nullptr;
  ASSERT_C_OK(stepwell_import(store_, out.c_str(), 2, nullptr, &handle));
  EXPECT_C_OK(stepwell_handle_wait(handle, -1));
  stepwell_handle_free(handle);
  EXPECT_C_OK(stepwell_verify_import(store_, out.c_str(), 2, nullptr));
  EXPECT_C_ERROR(stepwell_import(store_, out.c_str(), 2, nullptr, nullptr), STEPWELL_ALREADY_EXISTS,
                 "2");
  auto skip = Sized<stepwell_import_options>();
  skip.if_exists = STEPWELL_IF_EXISTS_SKIP;
  ASSERT_C_OK(stepwell_import(store_, out.c_str(), 2, &skip, &handle));
  EXPECT_C_OK(stepwell_handle_wait(handle, -1));
  EXPECT_EQ(stepwell_handle_skipped(handle), 1);
  stepwell_handle_free(handle);
  options.progress = [](void*, uint64_t, uint64_t) { return 0; };
  EXPECT_C_ERROR(stepwell_export(store_, 1, nullptr, "", (out + "-b").c_str(), &options, nullptr),
                 STEPWELL_CANCELLED, "");
  EXPECT_C_ERROR(stepwell_import(store_, path().c_str(), 3, nullptr, nullptr),
                 STEPWELL_INVALID_ARGUMENT, "not an Orbax checkpoint");
}

TEST_F(CTest, AStepGoesOutAsAnArchive) {
  SaveStep(1);
  const std::string out = path() + ".npz";
  auto options = Sized<stepwell_archive_options>();
  options.format = STEPWELL_ARCHIVE_NPZ;
  auto report = Sized<stepwell_export_report>();
  EXPECT_C_ERROR(stepwell_export_archive(store_, 1, nullptr, "", out.c_str(), &options, &report),
                 STEPWELL_INVALID_ARGUMENT, "epoch");
  options.on_unsupported = STEPWELL_UNSUPPORTED_SKIP;
  ASSERT_C_OK(stepwell_export_archive(store_, 1, nullptr, "", out.c_str(), &options, &report));
  EXPECT_EQ(report.leaves, 1U);
  EXPECT_EQ(report.skipped, 2U);
  EXPECT_TRUE(std::filesystem::exists(out));
  options.on_unsupported = static_cast<stepwell_on_unsupported>(3);
  EXPECT_C_ERROR(stepwell_export_archive(store_, 1, nullptr, "", out.c_str(), &options, nullptr),
                 STEPWELL_INVALID_ARGUMENT, "on_unsupported");
}

TEST_F(CTest, AViewFollowsTheStore) {
  stepwell_view* view = nullptr;
  const std::string directory = path() + "-view";
  ASSERT_C_OK(stepwell_view_open(store_, directory.c_str(), nullptr, 0, &view));
  SaveStep(1);
  ASSERT_C_OK(stepwell_view_wait(view, 60'000));
  auto stats = Sized<stepwell_view_stats>();
  ASSERT_C_OK(stepwell_view_get_stats(view, &stats));
  EXPECT_EQ(stats.shown, 1U);
  EXPECT_EQ(stats.following, 1);
  EXPECT_TRUE(std::filesystem::exists(directory + "/1"));
  ASSERT_C_OK(stepwell_view_close(view, 0));
  EXPECT_FALSE(std::filesystem::exists(directory + "/1"));
  EXPECT_C_ERROR(stepwell_view_wait(view, 0), STEPWELL_FAILED_PRECONDITION, "closed");
  stepwell_view_free(view);
  stepwell_view_free(nullptr);
}

}  // namespace
}  // namespace stepwell
