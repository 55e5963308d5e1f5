// SPDX-License-Identifier: Apache-2.0
// EXPECT_OK and ASSERT_OK of a Status or a Result.
#pragma once

#include <gtest/gtest.h>

#include <stepwell/result.h>

#define EXPECT_OK(expr)                                                     \
  do {                                                                      \
    const ::stepwell::Status expect_ok_ = ::stepwell::ToStatus((expr));     \
    EXPECT_TRUE(expect_ok_.ok()) << #expr << ": " << expect_ok_.ToString(); \
  } while (false)
#define ASSERT_OK(expr)                                                     \
  do {                                                                      \
    const ::stepwell::Status assert_ok_ = ::stepwell::ToStatus((expr));     \
    ASSERT_TRUE(assert_ok_.ok()) << #expr << ": " << assert_ok_.ToString(); \
  } while (false)

namespace stepwell {

inline Status ToStatus(const Status& status) { return status; }
template <typename T>
Status ToStatus(const Result<T>& result) {
  return result.status();
}

}  // namespace stepwell
