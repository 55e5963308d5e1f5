// SPDX-License-Identifier: Apache-2.0
// Helpers of every C function: errors by thread, no exception across the border, structs whose size
// the caller gives.
#pragma once

#include <stepwell/c.h>
#include <stepwell/store.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <utility>

struct stepwell_store {
  stepwell::Store store;
};
struct stepwell_step {
  stepwell::Step step;
};
struct stepwell_handle {
  stepwell::SaveHandle handle;
};
struct stepwell_verify_report {
  stepwell::VerifyReport report;
};

namespace stepwell::c {

// Remembers the message for stepwell_last_error.
stepwell_code Report(const Status& status);

// Runs `function`, which returns a Status.
template <typename Function>
stepwell_code Guard(Function&& function) {
  try {
    return Report(function());
  } catch (const std::bad_alloc&) {
    return Report(Status(StatusCode::kResourceExhausted, ""));  // no memory for words
  } catch (const std::exception& error) {
    return Report(InternalError(error.what()));
  } catch (...) {
    return Report(InternalError("an exception of an unknown kind"));
  }
}

inline Status IsNull(const char* what) {
  return InvalidArgumentError(std::string(what) + " is NULL");
}
#define STEPWELL_REQUIRE_(pointer) \
  if ((pointer) == nullptr) return ::stepwell::c::IsNull(#pointer)

// Copies the caller's struct, whose first field is its size. Fields that it has not are zero; what
// it has more than we know must be zero. `first_bytes`: the struct's size in its first version.
template <typename Struct>
Status CopyStructIn(const Struct* in, Struct* out, size_t first_bytes = sizeof(Struct)) {
  *out = {};
  if (in == nullptr) return OkStatus();
  size_t size = 0;
  std::memcpy(&size, in, sizeof(size));
  if (size < first_bytes) {
    return InvalidArgumentError("struct_size is " + std::to_string(size) + "; at least " +
                                std::to_string(first_bytes) + " was expected: is it set?");
  }
  constexpr size_t kSizeMax = 4096;  // more is garbage, not a later version
  if (size > kSizeMax) {
    return InvalidArgumentError("struct_size is " + std::to_string(size) + ": is it set?");
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(in);
  for (size_t i = sizeof(Struct); i < size; ++i) {
    if (bytes[i] != 0) {
      return UnimplementedError("a field is set that this version of the library does not know");
    }
  }
  std::memcpy(out, in, std::min(size, sizeof(Struct)));
  return OkStatus();
}

// The other way: fills as much of the caller's struct as it has.
template <typename Struct>
Status CopyStructOut(Struct values, Struct* out, size_t first_bytes = sizeof(Struct)) {
  if (out == nullptr) return IsNull("the struct for the result");
  size_t size = 0;
  std::memcpy(&size, out, sizeof(size));
  if (size < first_bytes) {
    return InvalidArgumentError("struct_size is " + std::to_string(size) + "; at least " +
                                std::to_string(first_bytes) + " was expected: is it set?");
  }
  values.struct_size = size;
  std::memcpy(out, &values, std::min(size, sizeof(Struct)));
  return OkStatus();
}

inline Path PathOf(const char* item, const char* path) {
  return item == nullptr ? Path(path) : Path::In(item, path);
}
inline std::string TextOf(const char* text) { return text == nullptr ? "" : text; }

}  // namespace stepwell::c
