// SPDX-License-Identifier: Apache-2.0
// Opens what a crash left and compares it with the model.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/sim/support/store_machine.h"
#include "tests/sim/support/store_model.h"

namespace stepwell::sim {

struct ImageCheck {
  uint64_t seed = 1;
  bool with_index = false;
  int crashes = 0;  // this many more, while recovery runs or right after it
  std::string path = kStorePath;
};

// Counts the images that this process has checked, and those in which RocksDB ran.
struct ImageCounts {
  uint64_t images = 0;
  uint64_t with_index = 0;
};
ImageCounts& CheckedImages();

// Recovery must find one of the `legal` states, whole and verifying clean; the store must take
// another step, close, and hold all of it at the next open. Returns what went wrong; empty:
// nothing.
std::string CheckImage(const std::shared_ptr<SimWorld>& image, const std::vector<Steps>& legal,
                       const ImageCheck& check);

}  // namespace stepwell::sim
