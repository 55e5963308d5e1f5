// SPDX-License-Identifier: Apache-2.0
// Writes the golden files into FOLDER/v4: stepwell_make_golden FOLDER. Files of a
// released version are never written again; a new version gets a new folder.
#include <filesystem>
#include <fstream>
#include <iostream>

#include "tests/format/support/examples.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: stepwell_make_golden FOLDER\n";
    return 2;
  }
  for (const stepwell::format::Golden& golden : stepwell::format::MakeGolden()) {
    const std::filesystem::path folder = std::filesystem::path(argv[1]) / golden.version;
    const std::filesystem::path path = folder / (golden.name + ".bin");
    std::error_code ignored;  // the file says it
    std::filesystem::create_directories(folder, ignored);
    std::ofstream file(path, std::ios::binary);
    file.write(golden.bytes.data(), static_cast<std::streamsize>(golden.bytes.size()));
    if (!file.flush()) {
      std::cerr << "cannot write " << path.string() << "\n";
      return 1;
    }
  }
  return 0;
}
