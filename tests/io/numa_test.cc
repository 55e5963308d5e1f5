// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "io/buffer.h"

namespace stepwell::io {
namespace {

TEST(NumaTest, MemoryPrefersTheNodeThatIsNamed) {
  AlignedBuffer buffer(size_t{1} << 20);
  const Status status = PreferNumaNode(buffer.bytes(), 0);
  if (status.ok()) {
    int policy = -1;
    unsigned long nodes[16] = {};
    ASSERT_EQ(syscall(SYS_get_mempolicy, &policy, nodes, 1024, buffer.data(), MPOL_F_ADDR), 0);
    EXPECT_EQ(policy, MPOL_PREFERRED);
    EXPECT_EQ(nodes[0], 1U);
  } else {  // a kernel without NUMA, or a container that forbids it
    EXPECT_TRUE(status.os_error() == ENOSYS || status.os_error() == EPERM) << status.ToString();
  }
  std::ranges::fill(buffer.bytes(), std::byte{1});  // it is memory in any case
}

TEST(NumaTest, ANodeThatIsNotThereIsRefused) {
  AlignedBuffer buffer(size_t{1} << 20);
  EXPECT_EQ(PreferNumaNode(buffer.bytes(), -1).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(PreferNumaNode(buffer.bytes(), 1024).code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(PreferNumaNode(buffer.bytes(), 1023).ok());
}

TEST(NumaTest, ADeviceThatIsNotThereHasNoNode) {
  EXPECT_EQ(NumaNodeOfPciDevice("FFFF:FF:1F.7"), -1);
}

}  // namespace
}  // namespace stepwell::io
