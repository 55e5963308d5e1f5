// SPDX-License-Identifier: Apache-2.0
// A directory that goes away, and short spellings of what the tests save.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stepwell/store.h>

#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace stepwell {

class ApiTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "stepwell_api_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string path() const { return directory_ / "store"; }
  Store Open(OpenOptions options = {}) const {
    auto store = Store::Open(path(), options);
    if (!store.ok()) ADD_FAILURE() << store.status().ToString();
    return std::move(store).value();
  }

 private:
  std::filesystem::path directory_;
};

// 0, 1, 2, …
template <typename T>
std::vector<T> Numbers(size_t count) {
  std::vector<T> numbers(count);
  std::iota(numbers.begin(), numbers.end(), T{0});
  return numbers;
}

// A step with the one array "w", all elements `value`.
inline SaveRequest SmallStep(uint64_t step, float value = 0) {
  static const std::vector<float> zeros(1000);
  SaveRequest request(step);
  std::vector<float> elements(1000, value);
  auto held = std::make_shared<const std::vector<float>>(std::move(elements));
  request.Put("w", ArrayView::Of(held, {10, 100}));
  return request;
}

inline Status SaveAndWait(Store& store, SaveRequest request) {
  auto handle = store.Save(std::move(request));
  return handle.ok() ? handle->Wait() : handle.status();
}

inline Status StatusOf(Status status) { return status; }
template <typename T>
Status StatusOf(const Result<T>& result) {
  return result.status();
}

}  // namespace stepwell

// These take a Status or a Result.
#define EXPECT_OK(expression) EXPECT_EQ(::stepwell::StatusOf(expression).ToString(), "OK")
#define ASSERT_OK(expression) ASSERT_EQ(::stepwell::StatusOf(expression).ToString(), "OK")
#define EXPECT_ERROR(expression, wanted_code, words)              \
  do {                                                            \
    const auto outcome = ::stepwell::StatusOf(expression);        \
    EXPECT_EQ(outcome.code(), wanted_code) << outcome.ToString(); \
    EXPECT_THAT(outcome.message(), ::testing::HasSubstr(words));  \
  } while (false)
