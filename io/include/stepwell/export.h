// SPDX-License-Identifier: Apache-2.0
// Marks the symbols that libstepwell exports. Everything else in it is hidden.
#pragma once

#define STEPWELL_API [[gnu::visibility("default")]]
