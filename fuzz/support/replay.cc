// SPDX-License-Identifier: Apache-2.0
// main() of the targets where there is no libFuzzer: runs the target once for each file given, and
// for each file below each folder given, in order of their names. A property that does not hold
// aborts; the last line printed names the input.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

// Empty when something is not there.
std::vector<std::string> FilesOf(int argc, char** argv) {
  std::vector<std::string> files;
  for (int i = 1; i < argc; ++i) {
    const std::filesystem::path path = argv[i];
    if (std::filesystem::is_regular_file(path)) {
      files.push_back(path.string());
    } else if (std::filesystem::is_directory(path)) {
      std::vector<std::string> inside;
      for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
        if (entry.is_regular_file()) inside.push_back(entry.path().string());
      }
      std::sort(inside.begin(), inside.end());
      files.insert(files.end(), inside.begin(), inside.end());
    } else {
      std::fprintf(stderr, "no such file or folder: %s\n", argv[i]);
      return {};
    }
  }
  return files;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> files = FilesOf(argc, argv);
  if (files.empty()) {
    std::fprintf(stderr, "usage: %s INPUT_OR_FOLDER...   (and there must be an input)\n", argv[0]);
    return 2;
  }
  for (const std::string& file : files) {
    std::ifstream stream(file, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(stream),
                            std::istreambuf_iterator<char>()};
    std::fprintf(stderr, "%s (%zu bytes)\n", file.c_str(), bytes.size());
    // A copy of exactly its size, so that a read past the end is seen.
    const std::vector<uint8_t> input(bytes.begin(), bytes.end());
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::fprintf(stderr, "%zu inputs\n", files.size());
  return 0;
}
