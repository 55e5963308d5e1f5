// SPDX-License-Identifier: Apache-2.0
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

TEST_F(CTest, AStepComesBack) {
  SaveStep(7);
  stepwell_step* step = nullptr;
  ASSERT_C_OK(stepwell_read_latest(store_, &step));
  auto info = Sized<stepwell_step_info>();
  ASSERT_C_OK(stepwell_step_get_info(step, &info));
  EXPECT_EQ(info.step, 7U);
  EXPECT_EQ(info.item_count, 2U);
  EXPECT_EQ(info.leaves, 3U);
  EXPECT_GT(info.time_ns, 0);
  EXPECT_STREQ(info.metadata_json, R"({"run": 1})");
  auto item = Sized<stepwell_item_info>();
  ASSERT_C_OK(stepwell_step_get_item(step, 0, &item));
  EXPECT_STREQ(item.name, "data");
  EXPECT_EQ(item.leaves, 1U);
  EXPECT_C_ERROR(stepwell_step_get_item(step, 2, &item), STEPWELL_OUT_OF_RANGE, "index");

  stepwell_leaf_list* leaves = nullptr;
  ASSERT_C_OK(stepwell_list_leaves(step, nullptr, "", &leaves));
  ASSERT_EQ(stepwell_leaf_list_count(leaves), 3U);
  auto leaf = Sized<stepwell_leaf_info>();
  ASSERT_C_OK(stepwell_leaf_list_get(leaves, 1, &leaf));
  EXPECT_STREQ(leaf.item, "state");
  EXPECT_STREQ(leaf.path, "a/w");
  EXPECT_EQ(leaf.type, STEPWELL_TYPE_ARRAY);
  EXPECT_EQ(leaf.dtype, STEPWELL_INT32);
  ASSERT_EQ(leaf.rank, 2U);
  EXPECT_EQ(leaf.shape[1], 20U);
  EXPECT_EQ(leaf.chunk_shape[1], 20U);
  EXPECT_EQ(leaf.logical_bytes, 800U);

  std::vector<int32_t> whole(200);
  std::vector<int32_t> columns(6, -1);  // rows 1 and 2, columns 5 to 8, as (3, 2)
  const uint64_t start[] = {1, 5};
  const uint64_t stop[] = {3, 8};
  const int64_t strides[] = {4, 8};
  auto first = Sized<stepwell_read_request>();
  first.item = leaf.item;
  first.path = leaf.path;
  first.dtype = STEPWELL_INT32;
  first.out = whole.data();
  first.out_bytes = 800;
  auto second = first;
  second.rank = 2;
  second.start = start;
  second.stop = stop;
  second.strides_bytes = strides;
  second.out = columns.data();
  second.out_bytes = 24;
  const stepwell_read_request* requests[] = {&first, &second};
  ASSERT_C_OK(stepwell_read_arrays(step, requests, 2));
  EXPECT_EQ(whole, numbers_);
  EXPECT_THAT(columns, ::testing::ElementsAre(25, 45, 26, 46, 27, 47));
  second.out_bytes = 23;
  EXPECT_C_ERROR(stepwell_read_array(step, &second), STEPWELL_INVALID_ARGUMENT, "24 are needed");
  first.dtype = STEPWELL_FLOAT32;
  EXPECT_C_ERROR(stepwell_read_array(step, &first), STEPWELL_INVALID_ARGUMENT, "int32");
  auto value = Sized<stepwell_value>();
  ASSERT_C_OK(stepwell_read_value(step, "data", "position", &value));
  EXPECT_EQ(value.integer, 4);
  EXPECT_C_ERROR(stepwell_read_value(step, "data", "pos", &value), STEPWELL_NOT_FOUND, "position");
  stepwell_leaf_list_free(leaves);
  stepwell_step_free(step);
}

TEST_F(CTest, ValuesOfEveryType) {
  stepwell_request* request = nullptr;
  ASSERT_C_OK(stepwell_request_new(1, &request));
  const auto put = [&](const char* name, stepwell_type type, int64_t integer, double real,
                       const char* data, size_t size) {
    auto value = Sized<stepwell_value>();
    value.type = type;
    value.integer = integer;
    value.real = real;
    value.imaginary = 2 * real;
    value.data = data;
    value.data_bytes = size;
    return stepwell_put_value(request, nullptr, name, &value);
  };
  EXPECT_C_OK(put("none", STEPWELL_TYPE_NONE, 0, 0, nullptr, 0));
  EXPECT_C_OK(put("bool", STEPWELL_TYPE_BOOL, 1, 0, nullptr, 0));
  EXPECT_C_OK(put("int", STEPWELL_TYPE_INT, INT64_MIN, 0, nullptr, 0));
  EXPECT_C_OK(put("big", STEPWELL_TYPE_INT, 0, 0, "18446744073709551616", 20));
  EXPECT_C_OK(put("float", STEPWELL_TYPE_FLOAT, 0, 0.5, nullptr, 0));
  EXPECT_C_OK(put("complex", STEPWELL_TYPE_COMPLEX, 0, 0.5, nullptr, 0));
  EXPECT_C_OK(put("str", STEPWELL_TYPE_STR, 0, 0, "hello", 5));
  EXPECT_C_OK(put("bytes", STEPWELL_TYPE_BYTES, 0, 0, "\0\xFF", 2));
  EXPECT_C_OK(stepwell_put_int(request, nullptr, "plain/int", INT64_MAX));
  EXPECT_C_OK(stepwell_put_float(request, nullptr, "plain/float", -0.25));
  EXPECT_C_OK(stepwell_put_str(request, "state", "plain/str", "\xC3\xA4"));
  EXPECT_C_ERROR(put("x", STEPWELL_TYPE_ARRAY, 0, 0, nullptr, 0), STEPWELL_INVALID_ARGUMENT,
                 "type");
  EXPECT_C_ERROR(put("x", STEPWELL_TYPE_STR, 0, 0, nullptr, 5), STEPWELL_INVALID_ARGUMENT, "data");
  EXPECT_C_OK(stepwell_save(store_, request, nullptr, nullptr));
  // Emptied: it may be filled and saved again, but not as it is.
  EXPECT_C_ERROR(stepwell_save(store_, request, nullptr, nullptr), STEPWELL_INVALID_ARGUMENT,
                 "at least one leaf");
  stepwell_request_free(request);
  ASSERT_C_OK(stepwell_wait(store_));
  stepwell_step* step = nullptr;
  ASSERT_C_OK(stepwell_read(store_, 1, &step));
  const auto get = [&](const char* name) {
    auto value = Sized<stepwell_value>();
    EXPECT_C_OK(stepwell_read_value(step, nullptr, name, &value));
    return value;
  };
  EXPECT_EQ(get("none").type, STEPWELL_TYPE_NONE);
  EXPECT_EQ(get("bool").integer, 1);
  EXPECT_EQ(get("int").integer, INT64_MIN);
  EXPECT_EQ(get("float").real, 0.5);
  EXPECT_EQ(get("complex").imaginary, 1.0);
  EXPECT_EQ(get("plain/int").type, STEPWELL_TYPE_INT);
  EXPECT_EQ(get("plain/int").integer, INT64_MAX);
  EXPECT_EQ(get("plain/float").real, -0.25);
  for (const auto& [name, text] :
       std::vector<std::pair<const char*, std::string>>{{"big", "18446744073709551616"},
                                                        {"str", "hello"},
                                                        {"plain/str", "\xC3\xA4"},
                                                        {"bytes", {'\0', '\xFF'}}}) {
    stepwell_value value = get(name);
    EXPECT_EQ(std::string(value.data, value.data_bytes), text);
    EXPECT_EQ(value.data[value.data_bytes], '\0');
    stepwell_value_clear(&value);
    EXPECT_EQ(value.data, nullptr);
  }
  stepwell_step_free(step);
}

TEST_F(CTest, HeldArraysAreReleasedOnce) {
  const uint64_t shape[] = {200};
  std::atomic<int> released{0};
  const auto put = [&](stepwell_request* request, const char* path) {
    stepwell_array array = Array(1, shape);
    array.release = [](void* context) { ++*static_cast<std::atomic<int>*>(context); };
    array.release_context = &released;
    return stepwell_put_array(request, nullptr, path, &array);
  };
  stepwell_request* request = nullptr;
  ASSERT_C_OK(stepwell_request_new(1, &request));
  EXPECT_C_ERROR(put(nullptr, "w"), STEPWELL_INVALID_ARGUMENT, "request");
  EXPECT_EQ(released, 1);
  EXPECT_C_OK(put(request, "w"));
  EXPECT_EQ(released, 1);
  EXPECT_C_OK(stepwell_save(store_, request, nullptr, nullptr));
  EXPECT_C_OK(put(request, "bad*path"));
  EXPECT_C_ERROR(stepwell_save(store_, request, nullptr, nullptr), STEPWELL_INVALID_ARGUMENT,
                 "bad*path");
  EXPECT_C_OK(put(request, "never saved"));
  stepwell_request_free(request);
  EXPECT_C_OK(stepwell_close(store_));
  EXPECT_EQ(released, 4);
}

TEST_F(CTest, HandlesCallBack) {
  stepwell_request* request = nullptr;
  ASSERT_C_OK(stepwell_request_new(1, &request));
  const stepwell_value value = Int(1);
  ASSERT_C_OK(stepwell_put_value(request, nullptr, "x", &value));
  stepwell_handle* handle = nullptr;
  ASSERT_C_OK(stepwell_save(store_, request, nullptr, &handle));
  std::promise<stepwell_code> told;
  ASSERT_C_OK(stepwell_handle_on_complete(
      handle,
      [](void* context, stepwell_code code, const char* message) {
        EXPECT_STREQ(message, "");
        static_cast<std::promise<stepwell_code>*>(context)->set_value(code);
      },
      &told));
  EXPECT_EQ(told.get_future().get(), STEPWELL_OK);
  EXPECT_C_OK(stepwell_handle_wait(handle, INT64_MAX));
  stepwell_handle_free(handle);

  ASSERT_C_OK(stepwell_put_value(request, nullptr, "x", &value));
  EXPECT_C_ERROR(stepwell_save(store_, request, nullptr, &handle), STEPWELL_ALREADY_EXISTS,
                 "step 1");
  EXPECT_EQ(handle, nullptr);
  ASSERT_C_OK(stepwell_put_value(request, nullptr, "x", &value));
  auto options = Sized<stepwell_save_options>();
  options.if_exists = STEPWELL_IF_EXISTS_SKIP;
  ASSERT_C_OK(stepwell_save(store_, request, &options, &handle));
  EXPECT_EQ(stepwell_handle_skipped(handle), 1);
  stepwell_handle_free(handle);
  stepwell_request_free(request);
}

TEST_F(CTest, HousekeepingAndRetention) {
  for (uint64_t step = 1; step <= 3; ++step) SaveStep(step);
  const uint64_t one = 1;
  const uint64_t missing[] = {2, 9};
  EXPECT_C_OK(stepwell_set_pinned(store_, &one, 1, 1));
  EXPECT_EQ(stepwell_delete(store_, &one, 1), STEPWELL_FAILED_PRECONDITION);
  EXPECT_C_OK(stepwell_set_pinned(store_, &one, 1, 0));
  EXPECT_EQ(stepwell_delete(store_, missing, 2), STEPWELL_NOT_FOUND);
  const uint64_t three = 3;
  EXPECT_C_OK(stepwell_set_taint(store_, &three, 1, "loss spike"));
  stepwell_step* latest = nullptr;
  ASSERT_C_OK(stepwell_read_latest(store_, &latest));
  auto latest_info = Sized<stepwell_step_info>();
  EXPECT_C_OK(stepwell_step_get_info(latest, &latest_info));
  EXPECT_EQ(latest_info.step, 2U);
  EXPECT_STREQ(latest_info.taint, "");
  stepwell_step_free(latest);
  stepwell_step_list* tainted = nullptr;
  ASSERT_C_OK(stepwell_list_steps(store_, &tainted));
  EXPECT_C_OK(stepwell_step_list_get(tainted, 2, &latest_info));
  EXPECT_STREQ(latest_info.taint, "loss spike");
  // The struct of before this field.
  latest_info.struct_size = offsetof(stepwell_step_info, taint);
  latest_info.taint = nullptr;
  EXPECT_C_OK(stepwell_step_list_get(tainted, 2, &latest_info));
  EXPECT_EQ(latest_info.taint, nullptr);
  stepwell_step_list_free(tainted);
  EXPECT_C_OK(stepwell_set_taint(store_, &three, 1, nullptr));
  EXPECT_C_OK(stepwell_roll_back(store_, 2, "worse"));
  EXPECT_EQ(stepwell_roll_back(store_, 3, nullptr), STEPWELL_INVALID_ARGUMENT);
  EXPECT_C_OK(stepwell_set_taint(store_, &three, 1, nullptr));
  ASSERT_C_OK(stepwell_read_latest(store_, &latest));
  latest_info = Sized<stepwell_step_info>();
  EXPECT_C_OK(stepwell_step_get_info(latest, &latest_info));
  EXPECT_EQ(latest_info.step, 3U);
  stepwell_step_free(latest);
  EXPECT_C_OK(stepwell_delete(store_, &one, 1));
  const char* items[] = {"data"};
  EXPECT_C_OK(stepwell_delete_items(store_, 2, items, 1));
  stepwell_step_list* steps = nullptr;
  ASSERT_C_OK(stepwell_list_steps(store_, &steps));
  ASSERT_EQ(stepwell_step_list_count(steps), 2U);
  auto info = Sized<stepwell_step_info>();
  EXPECT_C_OK(stepwell_step_list_get(steps, 0, &info));
  EXPECT_EQ(info.step, 2U);
  EXPECT_EQ(info.item_count, 1U);
  auto item = Sized<stepwell_item_info>();
  EXPECT_C_OK(stepwell_step_list_item(steps, 0, 0, &item));
  EXPECT_STREQ(item.name, "state");
  EXPECT_C_ERROR(stepwell_step_list_get(steps, 2, &info), STEPWELL_OUT_OF_RANGE, "index");
  stepwell_step_list_free(steps);
  auto stats = Sized<stepwell_stats>();
  EXPECT_C_OK(stepwell_get_stats(store_, &stats));
  EXPECT_EQ(stats.steps, 2U);
  EXPECT_EQ(stats.saves, 3U);

  auto options = Sized<stepwell_verify_options>();
  options.one_step = 1;
  options.step = 3;
  stepwell_verify_report* report = nullptr;
  ASSERT_C_OK(stepwell_verify(store_, &options, &report));
  auto verified = Sized<stepwell_verify_info>();
  EXPECT_C_OK(stepwell_verify_report_get(report, &verified));
  EXPECT_EQ(verified.steps, 1U);
  EXPECT_EQ(verified.leaves, 3U);
  EXPECT_EQ(verified.problem_count, 0U);
  auto problem = Sized<stepwell_problem>();
  EXPECT_C_ERROR(stepwell_verify_report_problem(report, 0, &problem), STEPWELL_OUT_OF_RANGE, "");
  stepwell_verify_report_free(report);
  options.progress = [](void*, uint64_t, uint64_t) { return 0; };
  EXPECT_EQ(stepwell_verify(store_, &options, &report), STEPWELL_CANCELLED);
  EXPECT_EQ(report, nullptr);

  ASSERT_C_OK(stepwell_close(store_));
  stepwell_store_free(std::exchange(store_, nullptr));
  stepwell_keep_rule rules[2] = {};
  rules[0].count = 1;
  rules[1].kind = STEPWELL_KEEP_EVERY;
  rules[1].count = 2;
  auto open = Sized<stepwell_open_options>();
  open.keep = rules;
  open.keep_count = 2;
  ASSERT_C_OK(stepwell_open(path().c_str(), &open, &store_));
  SaveStep(5);
  ASSERT_C_OK(stepwell_list_steps(store_, &steps));
  EXPECT_EQ(stepwell_step_list_count(steps), 2U);  // 2 and 5; 3 is gone
  stepwell_step_list_free(steps);
}

TEST_F(CTest, StructsTellTheirSize) {
  stepwell_store* store = nullptr;
  const std::string other = path() + "2";
  auto options = Sized<stepwell_open_options>();
  for (const size_t size : {size_t{0}, sizeof(options) - 8, SIZE_MAX}) {
    options.struct_size = size;
    EXPECT_C_ERROR(stepwell_open(other.c_str(), &options, &store), STEPWELL_INVALID_ARGUMENT,
                   "struct_size");
    EXPECT_EQ(store, nullptr);
  }
  // A later version's struct: fine as long as its new fields are zero.
  struct {
    stepwell_open_options known;
    uint64_t new_field;
  } later = {};
  later.known.struct_size = sizeof(later);
  later.new_field = 1;
  EXPECT_C_ERROR(stepwell_open(other.c_str(), &later.known, &store), STEPWELL_UNIMPLEMENTED,
                 "does not know");
  later.new_field = 0;
  EXPECT_C_OK(stepwell_open(other.c_str(), &later.known, &store));
  stepwell_store_free(store);
  // In a result its new fields are left alone.
  struct {
    stepwell_stats known;
    uint64_t new_field;
  } result = {};
  result.known.struct_size = sizeof(result);
  result.new_field = 7;
  EXPECT_C_OK(stepwell_get_stats(store_, &result.known));
  EXPECT_EQ(result.known.struct_size, sizeof(result));
  EXPECT_EQ(result.new_field, 7U);
  result.known.struct_size = 8;
  EXPECT_C_ERROR(stepwell_get_stats(store_, &result.known), STEPWELL_INVALID_ARGUMENT,
                 "struct_size");
}

TEST_F(CTest, NullIsAnErrorEverywhere) {
  constexpr auto kBad = STEPWELL_INVALID_ARGUMENT;
  stepwell_store* store = nullptr;
  stepwell_request* request = nullptr;
  stepwell_step* step = nullptr;
  stepwell_step_list* steps = nullptr;
  stepwell_leaf_list* leaves = nullptr;
  stepwell_verify_report* report = nullptr;
  EXPECT_C_ERROR(stepwell_open(nullptr, nullptr, &store), kBad, "path is NULL");
  EXPECT_C_ERROR(stepwell_open("x", nullptr, nullptr), kBad, "store is NULL");
  EXPECT_C_ERROR(stepwell_close(nullptr), kBad, "store");
  EXPECT_C_ERROR(stepwell_wait(nullptr), kBad, "store");
  EXPECT_C_ERROR(stepwell_request_new(1, nullptr), kBad, "request");
  ASSERT_C_OK(stepwell_request_new(1, &request));
  const stepwell_value value = Int(1);
  const uint64_t shape[] = {200};
  const stepwell_array array = Array(1, shape);
  EXPECT_C_ERROR(stepwell_put_value(nullptr, nullptr, "x", &value), kBad, "request");
  EXPECT_C_ERROR(stepwell_put_value(request, nullptr, nullptr, &value), kBad, "path");
  EXPECT_C_ERROR(stepwell_put_value(request, nullptr, "x", nullptr), kBad, "value");
  EXPECT_C_ERROR(stepwell_put_int(nullptr, nullptr, "x", 1), kBad, "request");
  EXPECT_C_ERROR(stepwell_put_float(request, nullptr, nullptr, 1), kBad, "path");
  EXPECT_C_ERROR(stepwell_put_str(request, nullptr, "x", nullptr), kBad, "text");
  EXPECT_C_ERROR(stepwell_put_array(request, nullptr, nullptr, &array), kBad, "path");
  EXPECT_C_ERROR(stepwell_put_array(request, nullptr, "x", nullptr), kBad, "array");
  const stepwell_array shapeless = Array(1, nullptr);
  EXPECT_C_ERROR(stepwell_put_array(request, nullptr, "x", &shapeless), kBad, "shape");
  EXPECT_C_ERROR(stepwell_save(nullptr, request, nullptr, nullptr), kBad, "store");
  EXPECT_C_ERROR(stepwell_save(store_, nullptr, nullptr, nullptr), kBad, "request");
  stepwell_request_free(request);
  EXPECT_C_ERROR(stepwell_handle_wait(nullptr, 0), kBad, "handle");
  EXPECT_C_ERROR(stepwell_handle_on_complete(nullptr, nullptr, nullptr), kBad, "handle");
  EXPECT_EQ(stepwell_handle_done(nullptr), 0);
  EXPECT_EQ(stepwell_handle_skipped(nullptr), 0);
  EXPECT_C_ERROR(stepwell_list_steps(store_, nullptr), kBad, "list");
  EXPECT_C_ERROR(stepwell_list_steps(nullptr, &steps), kBad, "store");
  EXPECT_C_ERROR(stepwell_step_list_get(nullptr, 0, nullptr), kBad, "list");
  EXPECT_EQ(stepwell_step_list_count(nullptr), 0U);
  EXPECT_C_ERROR(stepwell_read(store_, 1, nullptr), kBad, "opened");
  EXPECT_C_ERROR(stepwell_read(nullptr, 1, &step), kBad, "store");
  EXPECT_C_ERROR(stepwell_read_latest(nullptr, &step), kBad, "store");
  EXPECT_C_ERROR(stepwell_read_latest(store_, &step), STEPWELL_NOT_FOUND, "no step");
  SaveStep(1);
  ASSERT_C_OK(stepwell_read(store_, 1, &step));
  EXPECT_C_ERROR(stepwell_step_get_info(step, nullptr), kBad, "struct");
  EXPECT_C_ERROR(stepwell_list_leaves(step, nullptr, nullptr, &leaves), kBad, "path");
  EXPECT_C_ERROR(stepwell_list_leaves(step, nullptr, "", nullptr), kBad, "list");
  EXPECT_C_ERROR(stepwell_leaf_list_get(nullptr, 0, nullptr), kBad, "list");
  EXPECT_EQ(stepwell_leaf_list_count(nullptr), 0U);
  EXPECT_C_ERROR(stepwell_read_array(step, nullptr), kBad, "request");
  EXPECT_C_ERROR(stepwell_read_arrays(step, nullptr, 1), kBad, "requests");
  EXPECT_C_ERROR(stepwell_read_value(step, nullptr, "epoch", nullptr), kBad, "struct");
  auto request_without_path = Sized<stepwell_read_request>();
  EXPECT_C_ERROR(stepwell_read_array(step, &request_without_path), kBad, "path");
  stepwell_step_free(step);
  EXPECT_C_ERROR(stepwell_delete(store_, nullptr, 1), kBad, "list");
  const char* items[] = {nullptr};
  EXPECT_C_ERROR(stepwell_delete_items(store_, 1, items, 1), kBad, "entry");
  EXPECT_C_ERROR(stepwell_set_pinned(nullptr, nullptr, 0, 1), kBad, "store");
  EXPECT_C_ERROR(stepwell_set_taint(nullptr, nullptr, 0, ""), kBad, "store");
  EXPECT_C_ERROR(stepwell_roll_back(nullptr, 0, ""), kBad, "store");
  EXPECT_C_ERROR(stepwell_reclaim(nullptr, nullptr), kBad, "store");
  EXPECT_C_ERROR(stepwell_verify(nullptr, nullptr, &report), kBad, "store");
  EXPECT_C_ERROR(stepwell_verify(store_, nullptr, nullptr), kBad, "report");
  EXPECT_C_ERROR(stepwell_get_stats(store_, nullptr), kBad, "struct");
  stepwell_store_free(nullptr);
  stepwell_request_free(nullptr);
  stepwell_handle_free(nullptr);
  stepwell_step_free(nullptr);
  stepwell_step_list_free(nullptr);
  stepwell_leaf_list_free(nullptr);
  stepwell_verify_report_free(nullptr);
  stepwell_value_clear(nullptr);
}

TEST_F(CTest, ContainersAreListedWithTheirLeaves) {
  SaveStep(1);
  stepwell_step* step = nullptr;
  ASSERT_C_OK(stepwell_read(store_, 1, &step));
  stepwell_leaf_list* list = nullptr;
  ASSERT_C_OK(stepwell_list_tree(step, "state", "a", &list));
  ASSERT_EQ(stepwell_leaf_list_count(list), 2U);
  auto info = Sized<stepwell_leaf_info>();
  ASSERT_C_OK(stepwell_leaf_list_get(list, 0, &info));
  EXPECT_EQ(info.type, STEPWELL_TYPE_NODE);
  EXPECT_STREQ(info.kind, "dict");
  EXPECT_EQ(info.children, 1U);
  ASSERT_C_OK(stepwell_leaf_list_get(list, 1, &info));
  EXPECT_STREQ(info.path, "a/w");
  EXPECT_STREQ(info.kind, "numpy");
  EXPECT_STREQ(info.sharding_json, "");
  info.struct_size = offsetof(stepwell_leaf_info, kind);  // of the first version
  info.codec = "not touched";
  ASSERT_C_OK(stepwell_leaf_list_get(list, 1, &info));
  EXPECT_STREQ(info.codec, "not touched");
  stepwell_leaf_list_free(list);
  stepwell_step_free(step);
}

TEST_F(CTest, StatisticsOfArrays) {
  ASSERT_C_OK(stepwell_close(store_));
  stepwell_store_free(std::exchange(store_, nullptr));
  auto open = Sized<stepwell_open_options>();
  open.on_nonfinite = static_cast<stepwell_on_nonfinite>(3);
  EXPECT_C_ERROR(stepwell_open(path().c_str(), &open, &store_), STEPWELL_INVALID_ARGUMENT,
                 "on_nonfinite");
  open.on_nonfinite = STEPWELL_ON_NONFINITE_WARN;
  open.statistics = 1;
  ASSERT_C_OK(stepwell_open(path().c_str(), &open, &store_));
  SaveStep(7);
  stepwell_step* step = nullptr;
  ASSERT_C_OK(stepwell_read(store_, 7, &step));
  stepwell_leaf_list* list = nullptr;
  ASSERT_C_OK(stepwell_list_leaves(step, "state", "a/w", &list));
  auto info = Sized<stepwell_leaf_info>();
  ASSERT_C_OK(stepwell_leaf_list_get(list, 0, &info));
  ASSERT_EQ(info.has_statistics, 1);
  EXPECT_EQ(info.statistics.elements, 200U);
  EXPECT_EQ(info.statistics.nonfinite, 0U);
  EXPECT_LT(info.statistics.min, info.statistics.max);
  EXPECT_GT(info.statistics.norm, 0);
  auto item = Sized<stepwell_item_info>();
  ASSERT_C_OK(stepwell_step_get_item(step, 0, &item));
  EXPECT_EQ(item.nonfinite, 0U);
  stepwell_leaf_list_free(list);
  stepwell_step_free(step);
}

TEST_F(CTest, AfterCloseEverythingFailsButFreeing) {
  SaveStep(1);
  stepwell_step* step = nullptr;
  ASSERT_C_OK(stepwell_read(store_, 1, &step));
  ASSERT_C_OK(stepwell_close(store_));
  EXPECT_C_OK(stepwell_close(store_));
  stepwell_step_list* steps = nullptr;
  EXPECT_C_ERROR(stepwell_list_steps(store_, &steps), STEPWELL_FAILED_PRECONDITION, "closed");
  stepwell_store_free(std::exchange(store_, nullptr));
  auto value = Sized<stepwell_value>();
  EXPECT_C_ERROR(stepwell_read_value(step, nullptr, "state/epoch", &value),
                 STEPWELL_FAILED_PRECONDITION, "closed");
  stepwell_step_free(step);
}

TEST_F(CTest, MessagesAreTheThreadsOwn) {
  EXPECT_EQ(stepwell_close(nullptr), STEPWELL_INVALID_ARGUMENT);
  std::thread([] { EXPECT_STREQ(stepwell_last_error(), ""); }).join();
  EXPECT_STRNE(stepwell_last_error(), "");
  EXPECT_C_OK(stepwell_wait(store_));
  EXPECT_STREQ(stepwell_last_error(), "");
  EXPECT_STREQ(stepwell_code_name(STEPWELL_DATA_LOSS), "data loss");
  EXPECT_STREQ(stepwell_code_name(STEPWELL_OUTCOME_UNKNOWN), "outcome unknown");
  EXPECT_STREQ(stepwell_code_name(STEPWELL_IO_ERROR), "I/O error");
  EXPECT_STREQ(stepwell_dtype_name(STEPWELL_BFLOAT16), "bfloat16");
  EXPECT_EQ(stepwell_dtype_from_name("float8_e5m2"), STEPWELL_FLOAT8_E5M2);
  EXPECT_EQ(stepwell_dtype_from_name("float31"), STEPWELL_DTYPE_INVALID);
  EXPECT_EQ(stepwell_dtype_bytes(STEPWELL_COMPLEX128), 16U);
  EXPECT_EQ(stepwell_dtype_name(static_cast<stepwell_dtype>(31)), nullptr);
  EXPECT_STRNE(stepwell_version(), "");
}

}  // namespace
}  // namespace stepwell
