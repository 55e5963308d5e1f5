// SPDX-License-Identifier: Apache-2.0
// What records are called when people and programs read about them.
#pragma once

#include <string>

#include "format/records.h"

namespace stepwell::cli {

std::string CodecName(format::CodecId codec);
std::string ContainerName(format::ContainerKind container);
std::string ValueTypeName(format::ValueType type);
std::string DTypeName(format::DType dtype);
// What stands at an entry, in a few words: "float32[3, 4]", "int 3", "dict".
std::string Description(const format::LeafRecord& record);

}  // namespace stepwell::cli
