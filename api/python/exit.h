// SPDX-License-Identifier: Apache-2.0
// A process that lost a save in the background must not exit with status 0.
#pragma once

namespace stepwell::python {

void InstallExitHandler();
// From now on exit(0) of this process becomes exit(1); other statuses stay.
void FailAtExit();

}  // namespace stepwell::python
