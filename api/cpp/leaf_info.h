// SPDX-License-Identifier: Apache-2.0
// Records of the engine as the public structs that describe them.
#pragma once

#include <stepwell/step.h>

#include "format/records.h"

namespace stepwell {

StepInfo ToPublic(const format::StepRecord& record);
// Accepts any record. An element type that this version does not know becomes kInvalid.
Result<LeafInfo> Describe(const format::LeafRecord& record);

}  // namespace stepwell
