// SPDX-License-Identifier: Apache-2.0
// The engine's names for a header that is installed.
#pragma once

#include <stepwell/dtype.h>

namespace stepwell::format {

using stepwell::AllDTypes;
using stepwell::DType;
using stepwell::DTypeInfo;
using stepwell::FindDType;

}  // namespace stepwell::format
