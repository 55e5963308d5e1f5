// SPDX-License-Identifier: Apache-2.0
// A little of what open_soak.cc does for hours.
#include <gtest/gtest.h>

#include "tests/db/support/process_support.h"
#include "tests/db/support/store_support.h"

namespace stepwell::db {
namespace {

TEST(OpenStressTest, LeavesNoCoreNoHangNoDescriptorAndNoThread) {
  const TempDir dir("/dev/shm");
  ChildProcess soak({STEPWELL_OPEN_SOAK, "dir=" + dir.path(), "cycles=80", "seed=7001"});
  std::string output;
  for (const std::string& line : soak.Rest()) output += line + "\n";
  EXPECT_EQ(soak.Wait(), 0) << output;
}

}  // namespace
}  // namespace stepwell::db
