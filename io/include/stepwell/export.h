// SPDX-License-Identifier: Apache-2.0
// What libstepwell exports; everything else in it is hidden.
#pragma once

#define STEPWELL_API [[gnu::visibility("default")]]
