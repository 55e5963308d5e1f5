// SPDX-License-Identifier: Apache-2.0
// An input read as a list of choices. Past its end everything is zero, so every input means
// something; what is not taken is the rest.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "io/bytes.h"

namespace stepwell::fuzz {

class Input {
 public:
  Input(const uint8_t* data, size_t size) : left_(reinterpret_cast<const std::byte*>(data), size) {}

  bool empty() const { return left_.empty(); }
  ConstBytes rest() const { return left_; }
  std::string_view rest_text() const { return AsText(left_); }

  // Little-endian.
  template <typename T>
  T Take() {
    T value{};
    const size_t size = std::min(sizeof(T), left_.size());
    if (size > 0) std::memcpy(&value, left_.data(), size);
    left_ = left_.subspan(size);
    return value;
  }
  uint8_t Byte() { return Take<uint8_t>(); }
  // In [0, bound); 0 when `bound` is 0.
  uint64_t Below(uint64_t bound) {
    const uint64_t value = bound <= 256 ? Take<uint8_t>() : Take<uint32_t>();
    return bound == 0 ? 0 : value % bound;
  }
  // Up to `size` bytes.
  std::string_view Text(size_t size) {
    const std::string_view text = AsText(left_.first(std::min(size, left_.size())));
    left_ = left_.subspan(text.size());
    return text;
  }

 private:
  ConstBytes left_;
};

}  // namespace stepwell::fuzz
