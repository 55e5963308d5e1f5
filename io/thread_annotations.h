// SPDX-License-Identifier: Apache-2.0
// States what a lock guards and which functions hold it, as clang checks it (-Wthread-safety); for
// other compilers nothing. The test lint.thread_safety is that check; io/mutex.h has the locks.
//
// The check looks at one function at a time. It does not follow a lock into a lambda, which says
// itself what it needs: `[this]() STEPWELL_REQUIRES(mutex_) { … }`. Constructors and destructors
// are not checked.
#pragma once

#if defined(__clang__)
#define STEPWELL_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define STEPWELL_THREAD_ATTRIBUTE(x)
#endif

// A variable with this is read and changed only with the mutex held; so is what a pointer points
// at.
#define STEPWELL_GUARDED_BY(mutex) STEPWELL_THREAD_ATTRIBUTE(guarded_by(mutex))
#define STEPWELL_PT_GUARDED_BY(mutex) STEPWELL_THREAD_ATTRIBUTE(pt_guarded_by(mutex))

// A mutex with this is taken before those.
#define STEPWELL_ACQUIRED_BEFORE(...) STEPWELL_THREAD_ATTRIBUTE(acquired_before(__VA_ARGS__))

// A function's callers hold the mutex; do not hold it; hold it afterwards; held it before.
#define STEPWELL_REQUIRES(...) STEPWELL_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define STEPWELL_EXCLUDES(...) STEPWELL_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#define STEPWELL_ACQUIRE(...) STEPWELL_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define STEPWELL_RELEASE(...) STEPWELL_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
// The same where it returns the first argument.
#define STEPWELL_TRY_ACQUIRE(...) STEPWELL_THREAD_ATTRIBUTE(try_acquire_capability(__VA_ARGS__))

// The class is a mutex, or holds one as long as it lives.
#define STEPWELL_CAPABILITY(name) STEPWELL_THREAD_ATTRIBUTE(capability(name))
#define STEPWELL_SCOPED_CAPABILITY STEPWELL_THREAD_ATTRIBUTE(scoped_lockable)

// After a call of the function the check takes the mutex for held.
#define STEPWELL_ASSERT_CAPABILITY(mutex) STEPWELL_THREAD_ATTRIBUTE(assert_capability(mutex))
// The check cannot follow the function. A comment says why, and why it is right.
#define STEPWELL_NO_THREAD_SAFETY_ANALYSIS STEPWELL_THREAD_ATTRIBUTE(no_thread_safety_analysis)
