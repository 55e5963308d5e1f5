// SPDX-License-Identifier: Apache-2.0
// Memory on the NUMA node of a device.
#pragma once

#include <string>

#include "io/bytes.h"
#include "io/result.h"

namespace stepwell::io {

// The node that a PCI device ("0000:65:00.0", in any case) is attached to; -1 when the machine does
// not say, as those with one node do. Where Linux keeps it: /sys/bus/pci/devices/*/numa_node.
int NumaNodeOfPciDevice(std::string bus_id);

// Has the kernel take pages of `memory` (a mapping of its own, not yet written to) from `node`, or
// from another when that has none left (mbind(2), MPOL_PREFERRED). An error of the system where the
// kernel has no NUMA (ENOSYS), a container forbids it (EPERM), or there is no such node (EINVAL).
Status PreferNumaNode(MutableBytes memory, int node);

}  // namespace stepwell::io
