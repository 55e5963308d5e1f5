// SPDX-License-Identifier: Apache-2.0
// A store that is open through the C interface.
#pragma once

#include <stepwell/c.h>

#include <vector>

#include "tests/api/support/api_support.h"

namespace stepwell {

template <typename Struct>
Struct Sized() {
  Struct out{};
  out.struct_size = sizeof(Struct);
  return out;
}

#define EXPECT_C_OK(call) EXPECT_EQ(call, STEPWELL_OK) << stepwell_last_error()
#define ASSERT_C_OK(call) ASSERT_EQ(call, STEPWELL_OK) << stepwell_last_error()
#define EXPECT_C_ERROR(call, code, words)                 \
  do {                                                    \
    EXPECT_EQ(call, code);                                \
    EXPECT_THAT(stepwell_last_error(), HasSubstr(words)); \
  } while (false)

class CTest : public ApiTest {
 protected:
  void SetUp() override {
    ApiTest::SetUp();
    ASSERT_C_OK(stepwell_open(path().c_str(), nullptr, &store_));
  }
  void TearDown() override {
    stepwell_store_free(store_);
    ApiTest::TearDown();
  }

  stepwell_array Array(uint32_t rank, const uint64_t* shape) const {
    auto array = Sized<stepwell_array>();
    array.data = numbers_.data();
    array.dtype = STEPWELL_INT32;
    array.rank = rank;
    array.shape = shape;
    return array;
  }
  static stepwell_value Int(int64_t number) {
    auto value = Sized<stepwell_value>();
    value.type = STEPWELL_TYPE_INT;
    value.integer = number;
    return value;
  }
  // A step with "a/w" (10, 20) int32, "epoch" 3 and, in the item "data", "position" 4.
  void SaveStep(uint64_t step) {
    stepwell_request* request = nullptr;
    ASSERT_C_OK(stepwell_request_new(step, &request));
    const uint64_t shape[] = {10, 20};
    const stepwell_array array = Array(2, shape);
    const stepwell_value epoch = Int(3);
    const stepwell_value position = Int(4);
    EXPECT_C_OK(stepwell_put_array(request, nullptr, "a/w", &array));
    EXPECT_C_OK(stepwell_put_value(request, nullptr, "epoch", &epoch));
    EXPECT_C_OK(stepwell_put_value(request, "data", "position", &position));
    auto options = Sized<stepwell_save_options>();
    options.metadata_json = R"({"run": 1})";
    stepwell_handle* handle = nullptr;
    ASSERT_C_OK(stepwell_save(store_, request, &options, &handle));
    EXPECT_C_OK(stepwell_handle_wait(handle, -1));
    EXPECT_EQ(stepwell_handle_done(handle), 1);
    EXPECT_EQ(stepwell_handle_skipped(handle), 0);
    stepwell_handle_free(handle);
    stepwell_request_free(request);
  }

  const std::vector<int32_t> numbers_ = Numbers<int32_t>(200);
  stepwell_store* store_ = nullptr;
};

}  // namespace stepwell
