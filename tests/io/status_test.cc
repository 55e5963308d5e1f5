// SPDX-License-Identifier: Apache-2.0
#include "io/status.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <set>

#include "io/result.h"

namespace stepwell {
namespace {

TEST(StatusTest, OkIsEmpty) {
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::kOk);
  EXPECT_EQ(status.message(), "");
  EXPECT_EQ(status.ToString(), "OK");
  EXPECT_TRUE(status.WithContext("save").ok());
  EXPECT_EQ(sizeof(Status), 2 * sizeof(void*));
}

TEST(StatusTest, ContextGoesInFrontAndKeepsCodeAndErrno) {
  const Status status = ErrnoStatus(ENOSPC, "write segments/0000000001.seg").WithContext("step 7");
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(status.os_error(), ENOSPC);
  EXPECT_EQ(status.message(), "step 7: write segments/0000000001.seg: No space left on device");
  EXPECT_EQ(status.ToString(), "out of space: " + status.message());
}

TEST(StatusTest, OnlyRoomOnTheDiskIsResourceExhausted) {
  std::set<int> exhausted;
  for (int os_error = 1; os_error < 134; ++os_error) {
    const Status status = ErrnoStatus(os_error, "x");
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(status.os_error(), os_error);
    if (status.code() == StatusCode::kResourceExhausted) exhausted.insert(os_error);
  }
  EXPECT_EQ(exhausted, (std::set<int>{ENOSPC, EDQUOT, EFBIG}));
}

TEST(StatusTest, ErrnoTable) {
  EXPECT_EQ(ErrnoStatus(EIO, "x").code(), StatusCode::kIoError);
  EXPECT_EQ(ErrnoStatus(EUCLEAN, "x").code(), StatusCode::kDataLoss);
  EXPECT_EQ(ErrnoStatus(ENOENT, "x").code(), StatusCode::kNotFound);
  EXPECT_EQ(ErrnoStatus(EEXIST, "x").code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(ErrnoStatus(EROFS, "x").code(), StatusCode::kPermissionDenied);
  EXPECT_EQ(ErrnoStatus(EINVAL, "x").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ErrnoStatus(EOPNOTSUPP, "x").code(), StatusCode::kUnimplemented);
  EXPECT_EQ(ErrnoStatus(EBADMSG, "x").code(), StatusCode::kDataLoss);
  EXPECT_EQ(ErrnoStatus(EMFILE, "x").code(), StatusCode::kIoError);
  EXPECT_EQ(ErrnoStatus(ENOMEM, "x").code(), StatusCode::kIoError);
}

TEST(StatusTest, EveryCodeHasANameOfItsOwn) {
  std::set<std::string_view> names;
  for (int code = 0; code <= 15; ++code) names.insert(StatusCodeName(StatusCode(code)));
  names.insert(StatusCodeName(StatusCode::kOutcomeUnknown));
  names.insert(StatusCodeName(StatusCode::kIoError));
  EXPECT_EQ(names.size(), 18U);
  EXPECT_FALSE(names.contains("unknown code"));
}

Result<std::unique_ptr<int>> Half(int number) {
  if (number % 2 != 0) return InvalidArgumentError("odd");
  return std::make_unique<int>(number / 2);
}

Result<int> Quarter(int number) {
  STEPWELL_ASSIGN_OR_RETURN(const std::unique_ptr<int> half, Half(number));
  STEPWELL_ASSIGN_OR_RETURN(const std::unique_ptr<int> quarter, Half(*half));
  return *quarter;
}

TEST(ResultTest, CarriesMoveOnlyValuesAndErrors) {
  EXPECT_EQ(*Quarter(12), 3);
  EXPECT_EQ(Quarter(6).status().message(), "odd");
  EXPECT_EQ(Quarter(5).status().code(), StatusCode::kInvalidArgument);
}

TEST(ResultDeathTest, ValueOfAnErrorIsABug) {
  EXPECT_DEATH((void)Quarter(5).value(),
               "stepwell check failed: result.ok\\(\\): invalid argument: odd");
}

}  // namespace
}  // namespace stepwell
