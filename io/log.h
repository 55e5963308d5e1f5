// SPDX-License-Identifier: Apache-2.0
// The engine's name for a header that is installed.
#pragma once

#include <stepwell/log.h>
