// SPDX-License-Identifier: Apache-2.0
// NumPy's .npy format, version 1.0, and the file that it goes to.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include <stepwell/step.h>

#include "api/cli/slice.h"

namespace stepwell::cli {

// A file that appears under its name when it is complete, or stdout. After the reader of a pipe
// went away, writing does nothing.
class OutputFile {
 public:
  // `path` empty: stdout.
  static Result<std::unique_ptr<OutputFile>> Open(const std::string& path);
  ~OutputFile();  // removes what was not closed
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  Status Write(std::span<const std::byte> bytes);
  // Gives the file its name.
  Status Close();
  uint64_t bytes_written() const { return bytes_written_; }
  // The reader of the pipe is gone.
  bool ended() const { return ended_; }

 private:
  OutputFile(std::string path, std::string part_path, int descriptor)
      : path_(std::move(path)), part_path_(std::move(part_path)), descriptor_(descriptor) {}

  const std::string path_;       // empty: stdout
  const std::string part_path_;  // until it is complete; empty: written in place
  int descriptor_;
  uint64_t bytes_written_ = 0;
  bool ended_ = false;
};

struct NpyHeader {
  std::string descr;  // "<f4"
  Shape shape;
};
// kInvalidArgument when NumPy has no such type (bfloat16), unless `bits`: then it is an unsigned
// integer of the same size, and `.view(ml_dtypes.bfloat16)` gives the values back.
Result<NpyHeader> MakeNpyHeader(const LeafInfo& leaf, const std::string& path_text,
                                const Ranges& ranges, bool bits);
// Streams: memory stays within a few boxes.
Status WriteNpy(const Step& step, const LeafInfo& leaf, const Ranges& ranges,
                const NpyHeader& header, OutputFile* file);

}  // namespace stepwell::cli
