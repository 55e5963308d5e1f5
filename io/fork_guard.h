// SPDX-License-Identifier: Apache-2.0
// ForkGuard: descriptors that a forked child must not keep. A child that holds a ring could submit
// on it, and an orphaned worker would keep the ring's registered files, with their locks, open.
// Nothing is unlocked in the child: the locks belong to the descriptions that the parent shares.
#pragma once

namespace stepwell::io {

// Thread-safe.
class ForkGuard {
 public:
  static void Add(int descriptor);     // closed in every child from now on
  static void Remove(int descriptor);  // call before closing it
};

}  // namespace stepwell::io
