// SPDX-License-Identifier: Apache-2.0
// Reads the columns of a manifest's or node's body. Every count is compared with the bytes that are
// left before anything is allocated for it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "format/endian.h"
#include "format/orbax/ocdbt_internal.h"
#include "format/orbax/ocdbt_read.h"

namespace stepwell::format::orbax::internal {

// The first fault wins, and makes everything that is read afterwards zero.
class ColumnReader {
 public:
  explicit ColumnReader(std::string_view bytes) : left_(bytes) {}

  bool ok() const { return fault_.empty(); }
  const std::string& fault() const { return fault_; }
  size_t left() const { return left_.size(); }

  void Fail(std::string what) {
    if (ok()) fault_ = std::move(what);
    left_ = {};
  }
  void Require(bool holds, std::string_view what) {
    if (!holds) [[unlikely]]
      Fail(std::string(what));
  }

  std::string_view Bytes(size_t size) {
    if (size > left_.size()) {
      Fail("ends too early");
      return {};
    }
    const std::string_view bytes = left_.substr(0, size);
    left_.remove_prefix(size);
    return bytes;
  }
  uint8_t Byte() {
    const std::string_view byte = Bytes(1);
    return byte.empty() ? 0 : static_cast<uint8_t>(byte[0]);
  }
  template <typename T>
  T Little() {
    const std::string_view bytes = Bytes(sizeof(T));
    return bytes.empty() ? T{0} : LoadLittle<T>(AsBytes(bytes).data());
  }
  uint64_t Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const uint8_t byte = Byte();
      const uint64_t bits = byte & 0x7F;
      if (bits << shift >> shift != bits) break;
      value |= bits << shift;
      if ((byte & 0x80) == 0) return value;
    }
    Fail("a number of more than 64 bits");
    return 0;
  }
  uint64_t VarintUpTo(uint64_t limit, std::string_view what) {
    const uint64_t value = Varint();
    if (value <= limit) return value;
    Fail(StrCat(what, " ", value, ", more than ", limit));
    return 0;
  }
  // A number of records that the bytes which are left can have.
  size_t Count(size_t record_bytes_min, std::string_view what) {
    const uint64_t count = Varint();
    if (count <= left_.size() / record_bytes_min) return count;
    Fail(StrCat(count, " ", what, " in ", left_.size(), " bytes"));
    return 0;
  }
  // A range of a file, whose offset and length were read before.
  void RequireRange(uint64_t offset_bytes, uint64_t length_bytes) {
    if (length_bytes <= kFileBytesMax && offset_bytes <= kFileBytesMax - length_bytes) return;
    Fail(StrCat("offset ", offset_bytes, " and length ", length_bytes, " go beyond 2^63 bytes"));
  }

 private:
  std::string_view left_;
  std::string fault_;
};

// The table of files that a body names. `base` goes before each path.
std::vector<OcdbtFile> ReadFileTable(std::string_view base, ColumnReader* in);

inline Status BadBody(std::string_view what, const ColumnReader& in) {
  return DataLossError(StrCat("bad OCDBT ", what, ": ", in.fault()));
}

}  // namespace stepwell::format::orbax::internal
