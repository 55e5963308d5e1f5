// SPDX-License-Identifier: Apache-2.0
// Which store a thread is saving into. Store::Save asks SaveRequest::keep_waiting while a step is
// partly copied; whoever is called there must not wait for the store's changes or close it: that
// step comes before them, and goes on when the call returns.
#pragma once

namespace stepwell::db {

class Store;

// The store whose step this thread copies at the moment; null: none.
inline thread_local const Store* store_copied_into = nullptr;

}  // namespace stepwell::db
