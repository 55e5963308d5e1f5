// SPDX-License-Identifier: Apache-2.0
// STEPWELL_DCHECK(condition, message): an invariant of the code around it. Builds that define
// STEPWELL_DCHECKS (the simulation's and the tests') print it and abort where it does not hold; in
// others it costs nothing and is not evaluated. Bad input, bytes from a disk and failed I/O are
// Statuses (see STEPWELL_CHECK in result.h, which is always on).
#pragma once

#include "io/result.h"

#ifdef STEPWELL_DCHECKS
#define STEPWELL_DCHECK(condition, message) STEPWELL_CHECK(condition, message)
#else
#define STEPWELL_DCHECK(condition, message) \
  do {                                      \
    if (false) {                            \
      (void)(condition);                    \
      (void)(message);                      \
    }                                       \
  } while (false)
#endif
