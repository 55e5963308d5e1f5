// SPDX-License-Identifier: Apache-2.0
// From a fill value's JSON to the bytes of an element.
#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <limits>

#include "format/endian.h"
#include "format/orbax/json.h"
#include "format/orbax/zarr_internal.h"
#include "format/orbax/zarr_metadata.h"

namespace stepwell::format::orbax {
namespace {

using internal::DTypeClass;

void AppendLittle(uint64_t bits, size_t size_bytes, std::string* out) {
  for (size_t i = 0; i < size_bytes; ++i) out->push_back(static_cast<char>(bits >> (8 * i) & 0xFF));
}

Status AppendInteger(const JsonNode& node, const DTypeInfo& dtype, std::string* out) {
  const bool is_unsigned = dtype.name[0] == 'u';
  const int bits = dtype.value_bits != 0 ? dtype.value_bits : 8 * dtype.item_bytes;
  uint64_t value = 0;
  if (is_unsigned) {
    STEPWELL_ASSIGN_OR_RETURN(value, node.Unsigned(UINT64_MAX >> (64 - bits)));
  } else {
    STEPWELL_ASSIGN_OR_RETURN(const int64_t number, node.Signed());
    const int64_t max = static_cast<int64_t>(UINT64_MAX >> (65 - bits));
    if (number < -max - 1 || number > max) {
      return node.Error(StrCat(number, " is not of type ", dtype.name));
    }
    value = static_cast<uint64_t>(number) & UINT64_MAX >> (64 - bits);
  }
  AppendLittle(value, dtype.item_bytes, out);
  return OkStatus();
}

// One float of 4 or 8 bytes, or any float whose bits are said.
Status AppendFloat(const JsonNode& node, size_t size_bytes, bool small, std::string* out) {
  double value = 0;
  if (node.value().is_string()) {
    STEPWELL_ASSIGN_OR_RETURN(const std::string_view text, node.Text());
    uint64_t bits = 0;
    if (text.starts_with("0x") && text.size() == 2 + 2 * size_bytes) {
      const auto [stop, error] =
          std::from_chars(text.data() + 2, text.data() + text.size(), bits, 16);
      if (error == std::errc() && stop == text.data() + text.size()) {
        AppendLittle(bits, size_bytes, out);
        return OkStatus();
      }
    }
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    if (text == "NaN") {
      value = std::numeric_limits<double>::quiet_NaN();
    } else if (text == "Infinity" || text == "-Infinity") {
      value = text[0] == '-' ? -kInfinity : kInfinity;
    } else {
      return node.Error(StrCat("\"", Printable(text), "\" is not a number"));
    }
  } else if (node.value().is_number()) {
    value = node.value().get<double>();
  } else {
    return node.Error("is not a number");
  }
  if (small && (value != 0 || std::signbit(value))) {
    return node.Unknown("a fill value other than 0 is not read for this type");
  }
  if (size_bytes == sizeof(double)) {
    AppendLittle(std::bit_cast<uint64_t>(value), size_bytes, out);
  } else if (size_bytes == sizeof(float) && !small) {
    // Converting what no float can hold is undefined.
    const double max = std::numeric_limits<float>::max();
    if (std::isfinite(value) && std::abs(value) > max) {
      return node.Unknown("the fill value is beyond the range of its type");
    }
    AppendLittle(std::bit_cast<uint32_t>(static_cast<float>(value)), size_bytes, out);
  } else {
    AppendLittle(0, size_bytes, out);
  }
  return OkStatus();
}

}  // namespace

Result<std::string> ZarrFillElement(std::string_view file, const ZarrArray& array) {
  const DTypeInfo* dtype = FindDType(array.dtype);
  if (dtype == nullptr) return InvalidArgumentError("an array without a type of elements");
  STEPWELL_ASSIGN_OR_RETURN(const Json json,
                            ParseJson(file, array.fill_value, JsonDialect::kStrict));
  const JsonNode root(file, json);
  const JsonNode node = root.Child("fill_value", json);
  std::string out;
  if (json.is_null()) return std::string(dtype->item_bytes, '\0');
  switch (internal::ClassOf(array.dtype)) {
    case DTypeClass::kBool: {
      STEPWELL_ASSIGN_OR_RETURN(const bool value, node.Bool());
      out.push_back(value ? '\1' : '\0');
      break;
    }
    case DTypeClass::kInteger:
      STEPWELL_RETURN_IF_ERROR(AppendInteger(node, *dtype, &out));
      break;
    case DTypeClass::kFloat:
      STEPWELL_RETURN_IF_ERROR(AppendFloat(node, dtype->item_bytes, dtype->item_bytes < 4, &out));
      break;
    case DTypeClass::kComplex:
      STEPWELL_RETURN_IF_ERROR(node.CheckArray(2));
      if (json.size() != 2) return node.Error("a complex number has two parts");
      for (size_t part = 0; part < 2; ++part) {
        const JsonNode element = node.At(part);
        STEPWELL_RETURN_IF_ERROR(AppendFloat(element, dtype->item_bytes / 2, false, &out));
      }
      break;
  }
  return out;
}

}  // namespace stepwell::format::orbax
