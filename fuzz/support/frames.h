// SPDX-License-Identifier: Apache-2.0
// All frames of a store in memory, to change one and make everything that names it right again.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "format/frame.h"
#include "io/disk.h"

namespace stepwell::fuzz {

struct StoredFrame {
  std::string file;
  uint64_t segment = 0;
  uint64_t offset_bytes = 0;
  format::FrameHeader header;
  std::string payload;
};

// The whole file; empty when it cannot be read, or is larger than the stores here.
std::string ReadFile(io::FileSystem* files, const std::string& path);
void WriteFile(io::FileSystem* files, const std::string& path, uint64_t offset_bytes,
               std::string_view bytes);

// Every intact frame in the segments.
std::vector<StoredFrame> FindFrames(io::FileSystem* files, const std::string& store_path);

// Writes frame `changed` of `frames` (which differs from what is in its file), and then all whose
// headers or payloads name a frame that was written, until none is left; then the slots.
void WriteForged(io::FileSystem* files, const std::string& store_path,
                 std::vector<StoredFrame> frames, size_t changed);

}  // namespace stepwell::fuzz
