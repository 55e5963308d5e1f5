// SPDX-License-Identifier: Apache-2.0
#include "io/numa.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <fstream>

namespace stepwell::io {
namespace {

constexpr int kNodesMax = 1024;  // Linux has MAX_NUMNODES up to 1 << 10
constexpr int kBitsPerWord = 8 * sizeof(unsigned long);

}  // namespace

int NumaNodeOfPciDevice(std::string bus_id) {
  std::transform(bus_id.begin(), bus_id.end(), bus_id.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  std::ifstream file(StrCat("/sys/bus/pci/devices/", bus_id, "/numa_node"));
  int node = -1;
  return file >> node && node >= 0 && node < kNodesMax ? node : -1;
}

Status PreferNumaNode(MutableBytes memory, int node) {
  if (node < 0 || node >= kNodesMax) return InvalidArgumentError(StrCat("no NUMA node ", node));
  unsigned long nodes[kNodesMax / kBitsPerWord] = {};
  nodes[node / kBitsPerWord] = 1UL << (node % kBitsPerWord);
  if (syscall(SYS_mbind, memory.data(), memory.size(), MPOL_PREFERRED, nodes, kNodesMax + 1, 0) ==
      0) {
    return OkStatus();
  }
  const int os_error = errno;  // before anything else can change it
  return ErrnoStatus(os_error, StrCat("preferring NUMA node ", node));
}

}  // namespace stepwell::io
