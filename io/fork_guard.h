// SPDX-License-Identifier: Apache-2.0
// Descriptors that a forked child must not keep. A child that holds a ring could submit on it, and
// an orphaned worker would keep the ring's registered files, with their locks, open. Nothing is
// unlocked in the child: the locks belong to the descriptions that the parent shares.
#pragma once

namespace stepwell::io {

// Both are thread-safe. `owner` groups descriptors; negative ones are left out. Forget them before
// they are closed.
void CloseInForkedChild(const void* owner, int descriptor);
void ForgetForkDescriptors(const void* owner);

}  // namespace stepwell::io
