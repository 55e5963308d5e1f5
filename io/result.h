// SPDX-License-Identifier: Apache-2.0
// The engine's name for a header that is installed; and STEPWELL_CHECK, which goes with it.
#pragma once

#include <stepwell/result.h>

#include "io/check.h"
