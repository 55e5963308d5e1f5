// SPDX-License-Identifier: Apache-2.0
#include "format/safetensors.h"

#include <algorithm>
#include <array>

#include "format/endian.h"
#include "format/orbax/python_text.h"

namespace stepwell::format {
namespace {

constexpr size_t kLengthBytes = 8;

constexpr std::array<std::pair<DType, std::string_view>, 19> kWords = {{
    {DType::kBool, "BOOL"},
    {DType::kInt8, "I8"},
    {DType::kInt16, "I16"},
    {DType::kInt32, "I32"},
    {DType::kInt64, "I64"},
    {DType::kUInt8, "U8"},
    {DType::kUInt16, "U16"},
    {DType::kUInt32, "U32"},
    {DType::kUInt64, "U64"},
    {DType::kFloat16, "F16"},
    {DType::kFloat32, "F32"},
    {DType::kFloat64, "F64"},
    {DType::kBFloat16, "BF16"},
    {DType::kComplex64, "C64"},
    {DType::kFloat8E4M3FN, "F8_E4M3"},
    {DType::kFloat8E5M2, "F8_E5M2"},
    {DType::kFloat8E4M3FNUZ, "F8_E4M3FNUZ"},
    {DType::kFloat8E5M2FNUZ, "F8_E5M2FNUZ"},
    {DType::kFloat8E8M0FNU, "F8_E8M0"},
}};

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
  const auto* found = std::find_if(kWords.begin(), kWords.end(),
                                   [dtype](const auto& known) { return known.first == dtype; });
  return found == kWords.end() ? "" : found->second;
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
  StoreLittle(reinterpret_cast<std::byte*>(header.data()), length);
  return header;
}

}  // namespace stepwell::format
