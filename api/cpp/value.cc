// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <utility>

#include "api/cpp/core.h"
#include "io/bytes.h"

namespace stepwell {
namespace {

using format::ValueType;

static_assert(std::endian::native == std::endian::little);  // floats are stored as they are here

template <typename T>
std::string BytesOf(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}
template <typename T>
Result<Value> FromBytes(std::string_view bytes) {
  if (bytes.size() != sizeof(T)) {
    return DataLossError(StrCat("a value has ", bytes.size(), " bytes, not ", sizeof(T)));
  }
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return Value(value);
}

// Returns true if Python can decode the text. Python's decoder here accepts lone surrogates.
bool IsUtf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i++]);
    if (lead < 0x80) continue;
    const int more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
    if (lead < 0xC2 || lead > 0xF4 || text.size() - i < static_cast<size_t>(more)) return false;
    const auto second = static_cast<unsigned char>(text[i]);
    if ((lead == 0xE0 && second < 0xA0) || (lead == 0xF0 && second < 0x90) ||
        (lead == 0xF4 && second > 0x8F)) {
      return false;
    }
    for (int k = 0; k < more; ++k) {
      if ((static_cast<unsigned char>(text[i++]) & 0xC0) != 0x80) return false;
    }
  }
  return true;
}

bool IsDecimal(std::string_view text) {
  if (text.starts_with('-')) text.remove_prefix(1);
  if (text.empty() || (text.size() > 1 && text[0] == '0')) return false;
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

struct Encoder {
  Result<EncodedValue> operator()(std::monostate) { return EncodedValue{ValueType::kNone, ""}; }
  Result<EncodedValue> operator()(bool value) {
    return EncodedValue{ValueType::kBool, std::string(1, value ? '\1' : '\0')};
  }
  Result<EncodedValue> operator()(int64_t value) {
    return EncodedValue{ValueType::kInt, std::to_string(value)};
  }
  Result<EncodedValue> operator()(double value) {
    return EncodedValue{ValueType::kFloat, BytesOf(value)};
  }
  Result<EncodedValue> operator()(std::complex<double> value) {
    return EncodedValue{ValueType::kComplex, BytesOf(value)};
  }
  Result<EncodedValue> operator()(std::string& value) {
    if (!IsUtf8(value)) return InvalidArgumentError("a str is UTF-8; give Bytes for other bytes");
    return EncodedValue{ValueType::kStr, std::move(value)};
  }
  Result<EncodedValue> operator()(const Bytes& value) {
    return EncodedValue{ValueType::kBytes, std::string(AsText(value))};
  }
  Result<EncodedValue> operator()(BigInt& value) {
    if (!IsDecimal(value.decimal)) {
      return InvalidArgumentError(StrCat("\"", value.decimal, "\" is not a decimal integer"));
    }
    return EncodedValue{ValueType::kInt, std::move(value.decimal)};
  }
};

Result<Value> IntFrom(std::string text) {
  int64_t number = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, number);
  if (parsed.ec == std::errc() && parsed.ptr == end) return Value(number);
  if (!IsDecimal(text)) return DataLossError("an int is not decimal text");
  return Value(BigInt{std::move(text)});
}

}  // namespace

Result<EncodedValue> EncodeValue(Value value) { return std::visit(Encoder(), value); }

Result<Value> DecodeValue(ValueType type, std::string bytes) {
  switch (type) {
    case ValueType::kNone:
      return Value();
    case ValueType::kBool:
      if (bytes.size() != 1) return DataLossError("a bool has one byte");
      return Value(bytes[0] != '\0');
    case ValueType::kInt:
      return IntFrom(std::move(bytes));
    case ValueType::kFloat:
      return FromBytes<double>(bytes);
    case ValueType::kComplex:
      return FromBytes<std::complex<double>>(bytes);
    case ValueType::kStr:
      return Value(std::move(bytes));
    default: {
      const ConstBytes view = AsBytes(bytes);
      return Value(Bytes(view.begin(), view.end()));
    }
  }
}

namespace internal {

Status WrongDType(DType stored, DType wanted) {
  const auto name = [](DType dtype) -> std::string {
    const DTypeInfo* info = FindDType(dtype);
    return info != nullptr ? std::string(info->name)
                           : StrCat("dtype number ", static_cast<int>(dtype));
  };
  return InvalidArgumentError(StrCat("the array is of ", name(stored), ", not ", name(wanted)));
}

}  // namespace internal
}  // namespace stepwell
