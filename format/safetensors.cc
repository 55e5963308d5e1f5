// SPDX-License-Identifier: Apache-2.0
#include "format/safetensors.h"

#include "format/orbax/python_text.h"

namespace stepwell::format {
namespace {

constexpr size_t kLengthBytes = 8;

void AppendTensor(const SafetensorsTensor& tensor, std::string* json) {
  orbax::AppendJsonString(tensor.name, json);
  *json += StrCat(R"(:{"dtype":")", SafetensorsDType(tensor.dtype), R"(","shape":[)");
  for (size_t axis = 0; axis < tensor.shape.size(); ++axis) {
    *json += StrCat(axis == 0 ? "" : ",", tensor.shape[axis]);
  }
  *json += StrCat(R"(],"data_offsets":[)", tensor.begin_bytes, ",", tensor.end_bytes, "]}");
}

}  // namespace

std::string_view SafetensorsDType(DType dtype) {
  switch (dtype) {
    case DType::kBool:
      return "BOOL";
    case DType::kInt8:
      return "I8";
    case DType::kInt16:
      return "I16";
    case DType::kInt32:
      return "I32";
    case DType::kInt64:
      return "I64";
    case DType::kUInt8:
      return "U8";
    case DType::kUInt16:
      return "U16";
    case DType::kUInt32:
      return "U32";
    case DType::kUInt64:
      return "U64";
    case DType::kFloat16:
      return "F16";
    case DType::kFloat32:
      return "F32";
    case DType::kFloat64:
      return "F64";
    case DType::kBFloat16:
      return "BF16";
    case DType::kComplex64:
      return "C64";
    case DType::kFloat8E4M3FN:
      return "F8_E4M3";
    case DType::kFloat8E5M2:
      return "F8_E5M2";
    case DType::kFloat8E4M3FNUZ:
      return "F8_E4M3FNUZ";
    case DType::kFloat8E5M2FNUZ:
      return "F8_E5M2FNUZ";
    case DType::kFloat8E8M0FNU:
      return "F8_E8M0";
    default:
      return "";
  }
}

Result<std::string> EncodeSafetensorsHeader(
    std::span<const SafetensorsTensor> tensors,
    std::span<const std::pair<std::string, std::string>> metadata) {
  std::string header(kLengthBytes, '\0');
  header += '{';
  if (!metadata.empty()) {
    header += StrCat('"', kSafetensorsMetadata, R"(":{)");
    for (size_t i = 0; i < metadata.size(); ++i) {
      if (i > 0) header += ',';
      orbax::AppendJsonString(metadata[i].first, &header);
      header += ':';
      orbax::AppendJsonString(metadata[i].second, &header);
    }
    header += '}';
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (i > 0 || !metadata.empty()) header += ',';
    AppendTensor(tensors[i], &header);
  }
  header += '}';
  header.resize(AlignUp(header.size(), kLengthBytes), ' ');
  const uint64_t length = header.size() - kLengthBytes;
  if (length > kSafetensorsHeaderBytesMax) {
    return InvalidArgumentError(StrCat("names and metadata take ", length,
                                       " bytes; safetensors' readers take ",
                                       kSafetensorsHeaderBytesMax));
  }
  for (size_t i = 0; i < kLengthBytes; ++i) {
    header[i] = static_cast<char>((length >> (8 * i)) & 0xFF);
  }
  return header;
}

}  // namespace stepwell::format
