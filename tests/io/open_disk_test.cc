// SPDX-License-Identifier: Apache-2.0
#include "io/open_disk.h"

#include <gtest/gtest.h>

#include "tests/io/support/support.h"

namespace stepwell::io {
namespace {

std::string OpenWith(const char* value, DiskKind kind) {
  return InChild([=]() -> std::string {
    setenv("STEPWELL_DISK", value, 1);
    DiskOptions options;
    options.kind = kind;
    const Result<std::unique_ptr<Disk>> disk = OpenDisk(options);
    return disk.ok() ? (*disk)->Describe() : disk.status().ToString();
  });
}

TEST(OpenDiskTest, EnvironmentPicksTheKind) {
  EXPECT_EQ(OpenWith("posix", DiskKind::kAuto), "posix");
  EXPECT_EQ(OpenWith("uring", DiskKind::kPosix), "posix") << "only kAuto obeys it";
  EXPECT_EQ(OpenWith("fast", DiskKind::kAuto),
            "invalid argument: STEPWELL_DISK is 'fast'; use 'uring' or 'posix'");
  EXPECT_EQ(OpenWith("fast", DiskKind::kPosix), "posix");
  EXPECT_EQ(OpenWith("", DiskKind::kAuto).find("invalid"), std::string::npos);
}

TEST(OpenDiskTest, DescribesItself) {
  const auto disk = testing::OpenKind(DiskKind::kUring);
  if (disk == nullptr) GTEST_SKIP() << "this machine has no io_uring";
  EXPECT_EQ(disk->Describe().substr(0, 8), "io_uring");
  EXPECT_EQ(disk->depth(), 8U);
}

}  // namespace
}  // namespace stepwell::io
