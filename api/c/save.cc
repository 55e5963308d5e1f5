// SPDX-License-Identifier: Apache-2.0
// C: requests and handles.
#include <chrono>
#include <cstdlib>
#include <memory>

#include "api/c/support.h"

using stepwell::InvalidArgumentError;
using stepwell::OkStatus;
using stepwell::Status;
using stepwell::StatusCode;
using stepwell::c::Guard;

struct stepwell_request {
  stepwell::SaveRequest request;
};

namespace {

template <typename T>
std::vector<T> VectorOf(const T* pointer, size_t count) {
  return pointer == nullptr ? std::vector<T>() : std::vector<T>(pointer, pointer + count);
}

stepwell::Result<stepwell::Value> ValueOf(const stepwell_value& in) {
  if (in.data == nullptr && in.data_bytes > 0) return stepwell::c::IsNull("data");
  const std::string data = in.data == nullptr ? "" : std::string(in.data, in.data_bytes);
  switch (in.type) {
    case STEPWELL_TYPE_NONE:
      return stepwell::Value();
    case STEPWELL_TYPE_BOOL:
      return stepwell::Value(in.integer != 0);
    case STEPWELL_TYPE_INT:
      if (in.data == nullptr) return stepwell::Value(in.integer);
      return stepwell::Value(stepwell::BigInt{data});
    case STEPWELL_TYPE_FLOAT:
      return stepwell::Value(in.real);
    case STEPWELL_TYPE_COMPLEX:
      return stepwell::Value(std::complex<double>(in.real, in.imaginary));
    case STEPWELL_TYPE_STR:
      return stepwell::Value(data);
    case STEPWELL_TYPE_BYTES: {
      const auto bytes = std::as_bytes(std::span(data));
      return stepwell::Value(stepwell::Bytes(bytes.begin(), bytes.end()));
    }
    case STEPWELL_TYPE_ARRAY:
    case STEPWELL_TYPE_NODE:
      break;
  }
  return InvalidArgumentError("the type is none of a value");
}

template <typename T>
stepwell_code Put(stepwell_request* request, const char* item, const char* path, T value) {
  return Guard([&]() -> Status {
    STEPWELL_REQUIRE_(request);
    STEPWELL_REQUIRE_(path);
    request->request.Put(stepwell::c::PathOf(item, path), stepwell::Value(std::move(value)));
    return OkStatus();
  });
}

}  // namespace

stepwell_code stepwell_request_new(uint64_t step, stepwell_request** request) {
  return Guard([&]() -> Status {
    STEPWELL_REQUIRE_(request);
    *request = nullptr;
    *request = new stepwell_request{stepwell::SaveRequest(step)};
    return OkStatus();
  });
}

void stepwell_request_free(stepwell_request* request) { delete request; }

stepwell_code stepwell_put_array(stepwell_request* request, const char* item, const char* path,
                                 const stepwell_array* array) {
  return Guard([&]() -> Status {
    STEPWELL_REQUIRE_(array);
    stepwell_array in;
    STEPWELL_RETURN_IF_ERROR(stepwell::c::CopyStructIn(array, &in));
    stepwell::ArrayView view;
    // From here on the array is let go whatever happens.
    if (in.release != nullptr) {
      view.hold =
          std::shared_ptr<const void>(in.release_context == nullptr ? "" : in.release_context,
                                      [in](const void*) { in.release(in.release_context); });
    }
    STEPWELL_REQUIRE_(request);
    STEPWELL_REQUIRE_(path);
    if (in.rank > 0 && in.shape == nullptr) return stepwell::c::IsNull("shape");
    constexpr uint32_t kRankMax = 64;  // of the format
    if (in.rank > kRankMax) return InvalidArgumentError("an array of more than 64 axes");
    view.data = in.data;
    view.dtype = static_cast<stepwell::DType>(in.dtype);
    view.shape = VectorOf(in.shape, in.rank);
    view.strides_bytes = VectorOf(in.strides_bytes, in.rank);
    request->request.Put(stepwell::c::PathOf(item, path), std::move(view));
    return OkStatus();
  });
}

stepwell_code stepwell_put_value(stepwell_request* request, const char* item, const char* path,
                                 const stepwell_value* value) {
  return Guard([&]() -> Status {
    STEPWELL_REQUIRE_(request);
    STEPWELL_REQUIRE_(path);
    STEPWELL_REQUIRE_(value);
    stepwell_value in;
    STEPWELL_RETURN_IF_ERROR(stepwell::c::CopyStructIn(value, &in));
    STEPWELL_ASSIGN_OR_RETURN(stepwell::Value taken, ValueOf(in));
    request->request.Put(stepwell::c::PathOf(item, path), std::move(taken));
    return OkStatus();
  });
}

stepwell_code stepwell_put_int(stepwell_request* request, const char* item, const char* path,
                               int64_t number) {
  return Put(request, item, path, number);
}

stepwell_code stepwell_put_float(stepwell_request* request, const char* item, const char* path,
                                 double number) {
  return Put(request, item, path, number);
}

stepwell_code stepwell_put_str(stepwell_request* request, const char* item, const char* path,
                               const char* text) {
  if (text == nullptr) return Guard([] { return stepwell::c::IsNull("text"); });
  return Put(request, item, path, std::string(text));
}

stepwell_code stepwell_save(stepwell_store* store, stepwell_request* request,
                            const stepwell_save_options* options, stepwell_handle** handle) {
  return Guard([&]() -> Status {
    if (handle != nullptr) *handle = nullptr;
    STEPWELL_REQUIRE_(request);
    stepwell::SaveRequest taken = std::move(request->request);
    request->request = stepwell::SaveRequest(taken.step);
    STEPWELL_REQUIRE_(store);
    stepwell_save_options given;
    STEPWELL_RETURN_IF_ERROR(stepwell::c::CopyStructIn(options, &given));
    if (given.if_exists < STEPWELL_IF_EXISTS_ERROR || given.if_exists > STEPWELL_IF_EXISTS_SKIP) {
      return InvalidArgumentError("if_exists is not known");
    }
    taken.if_exists = static_cast<stepwell::IfExists>(given.if_exists);
    taken.metadata_json = stepwell::c::TextOf(given.metadata_json);
    taken.metrics_json = stepwell::c::TextOf(given.metrics_json);
    // Made first: without memory for it nothing is saved.
    auto made = handle == nullptr ? nullptr : std::make_unique<stepwell_handle>();
    STEPWELL_ASSIGN_OR_RETURN(auto under_way, store->store.Save(std::move(taken)));
    if (made != nullptr) {
      made->handle = std::move(under_way);
      *handle = made.release();
    }
    return OkStatus();
  });
}

stepwell_code stepwell_handle_wait(const stepwell_handle* handle, int64_t timeout_ms) {
  return Guard([&]() -> Status {
    STEPWELL_REQUIRE_(handle);
    constexpr int64_t kLongestMs = int64_t{1} << 40;  // decades; clocks cannot count all of int64
    const auto timeout = std::chrono::milliseconds(std::min(timeout_ms, kLongestMs));
    if (!handle->handle.WaitFor(timeout)) {
      return stepwell::DeadlineExceededError("the save is still under way");
    }
    return handle->handle.status();
  });
}

int stepwell_handle_done(const stepwell_handle* handle) {
  return handle != nullptr && handle->handle.done() ? 1 : 0;
}
int stepwell_handle_skipped(const stepwell_handle* handle) {
  return handle != nullptr && handle->handle.skipped() ? 1 : 0;
}

stepwell_code stepwell_handle_on_complete(const stepwell_handle* handle,
                                          void (*function)(void* context, stepwell_code code,
                                                           const char* message),
                                          void* context) {
  return Guard([&]() -> Status {
    STEPWELL_REQUIRE_(handle);
    STEPWELL_REQUIRE_(function);
    handle->handle.OnComplete([function, context](const Status& status) {
      function(context, static_cast<stepwell_code>(status.code()), status.message().c_str());
    });
    return OkStatus();
  });
}

void stepwell_handle_free(stepwell_handle* handle) { delete handle; }
