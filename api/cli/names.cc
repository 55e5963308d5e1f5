// SPDX-License-Identifier: Apache-2.0
#include "api/cli/names.h"

#include "api/cli/text.h"
#include "api/cli/values.h"
#include "io/bytes.h"

namespace stepwell::cli {
namespace {

using format::ContainerKind;
using format::LeafKind;
using format::LeafRecord;

constexpr size_t kShownValueMax = 60;

}  // namespace

std::string CodecName(format::CodecId codec) {
  switch (codec) {
    case format::CodecId::kRaw:
      return "raw";
    case format::CodecId::kBloscLz4:
      return "blosc-lz4";
    case format::CodecId::kLz4Frame:
      return "lz4";
  }
  return StrCat("codec ", static_cast<unsigned>(codec));
}

std::string ContainerName(ContainerKind container) {
  switch (container) {
    case ContainerKind::kDict:
      return "dict";
    case ContainerKind::kList:
      return "list";
    case ContainerKind::kTuple:
      return "tuple";
    case ContainerKind::kNamedTuple:
      return "namedtuple";
    case ContainerKind::kObject:
      return "object";
    case ContainerKind::kNotContainer:
      break;
  }
  return "node";
}

std::string ValueTypeName(format::ValueType type) {
  switch (type) {
    case format::ValueType::kNone:
      return "None";
    case format::ValueType::kNumpyArray:
      return "numpy";
    case format::ValueType::kJaxArray:
      return "jax";
    case format::ValueType::kNumpyScalar:
      return "numpy scalar";
    case format::ValueType::kPrngKey:
      return "jax key";
    case format::ValueType::kInt:
      return "int";
    case format::ValueType::kFloat:
      return "float";
    case format::ValueType::kBool:
      return "bool";
    case format::ValueType::kStr:
      return "str";
    case format::ValueType::kBytes:
      return "bytes";
    case format::ValueType::kComplex:
      return "complex";
  }
  return StrCat("type ", static_cast<unsigned>(type));
}

std::string DTypeName(format::DType dtype) {
  const format::DTypeInfo* info = format::FindDType(dtype);
  return info == nullptr ? StrCat("dtype ", static_cast<unsigned>(dtype)) : std::string(info->name);
}

// What stands at an entry, in a few words.
std::string Description(const LeafRecord& record) {
  switch (record.kind) {
    case LeafKind::kArray: {
      std::string text = DTypeName(record.dtype) + ShapeText(record.shape);
      if (record.value_type == format::ValueType::kPrngKey) {
        text += StrCat(" key ", Printable(record.prng_impl));
      }
      return text;
    }
    case LeafKind::kValue: {
      const std::string type = ValueTypeName(record.value_type);
      if (!record.chunks.empty()) return type;
      const Result<std::string> value = ValueText(record.value_type, AsBytes(record.inline_value));
      if (!value.ok()) return type + " (damaged)";
      if (*value == type) return type;
      std::string shown = Printable(*value);
      if (shown.size() > kShownValueMax) {
        // Not in the middle of a UTF-8 character.
        size_t end = kShownValueMax;
        while (end > 0 && (static_cast<uint8_t>(shown[end]) & 0xC0) == 0x80) --end;
        shown.resize(end);
        shown += "...";
      }
      return StrCat(type, " ", shown);
    }
    case LeafKind::kNode: {
      std::string text = ContainerName(record.container);
      if (!record.type_name.empty() && record.type_name != text) {
        text += StrCat(" ", Printable(record.type_name));
      }
      return record.child_count == 0 ? text + ", empty" : text;
    }
  }
  return "?";
}

}  // namespace stepwell::cli
