// SPDX-License-Identifier: Apache-2.0
// Some of what nth_soak.cc does with every number: of every kind a few.
#include <gtest/gtest.h>

#include <cerrno>

#include "tests/db/nth.h"
#include "tests/db/store_support.h"

namespace stepwell::db::nth {
namespace {

using Kind = Fault::Kind;
using Until = Fault::Until;

struct Series {
  const char* name;
  Fault fault;
  uint64_t every;  // a prime, so that it is in step with nothing
  uint64_t first = 1;
};

// So that a failure is named by it.
std::ostream& operator<<(std::ostream& out, const Series& series) { return out << series.name; }

class NthTest : public ::testing::TestWithParam<std::tuple<Series, io::DiskKind>> {};

TEST_P(NthTest, LosesNothingThatWasAcknowledged) {
  const TempDir dir;
  const auto& [series, disk] = GetParam();
  Fault fault = series.fault;
  // The two disks have other numbers.
  fault.n = series.first + (disk == io::DiskKind::kPosix ? series.every / 2 : 0);
  uint64_t cases = 0;
  for (; cases < 1000; ++cases, fault.n += series.every) {
    const Outcome outcome = RunCase(dir.path(), disk, fault);
    EXPECT_EQ(outcome.problem, "") << fault.Name() << " n=" << fault.n;
    if (!outcome.reached) break;
  }
  EXPECT_GE(cases, 3U);
}

INSTANTIATE_TEST_SUITE_P(
    Every, NthTest,
    ::testing::Combine(
        ::testing::Values(
            Series{"Kill", {Kind::kKill, "all", 0, Until::kOnce}, 431},
            Series{"DiskEio", {Kind::kError, "disk", EIO, Until::kOnce}, 149},
            Series{"DiskEioFromThere", {Kind::kError, "disk", EIO, Until::kEnd}, 151},
            Series{"DiskFull", {Kind::kError, "disk", ENOSPC, Until::kOnce}, 157},
            Series{"NamesEio", {Kind::kError, "names", EIO, Until::kOnce}, 599},
            Series{"NoDescriptors", {Kind::kError, "names", EMFILE, Until::kEnd}, 601},
            Series{"NoThread", {Kind::kError, "threads", EAGAIN, Until::kOnce}, 7, 2},
            Series{"NoThreads", {Kind::kError, "threads", EAGAIN, Until::kEnd}, 5, 2},
            Series{"NoBuffer", {Kind::kAlloc, "buffers", 0, Until::kOnce}, 13},
            Series{"NoMapping", {Kind::kError, "memory", ENOMEM, Until::kOnce}, 13},
            Series{"NoMemory", {Kind::kAlloc, "", 0, Until::kOnce}, 16001},
            Series{"NoMemoryForAnOperation", {Kind::kAlloc, "", 0, Until::kOperation}, 18013},
            Series{"NoMemoryFromThere", {Kind::kAlloc, "", 0, Until::kEnd}, 18401}),
        ::testing::Values(io::DiskKind::kUring, io::DiskKind::kPosix)),
    [](const auto& param) {
      return std::string(std::get<0>(param.param).name) +
             (std::get<1>(param.param) == io::DiskKind::kUring ? "Uring" : "Posix");
    });

}  // namespace
}  // namespace stepwell::db::nth
