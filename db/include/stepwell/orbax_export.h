// SPDX-License-Identifier: Apache-2.0
// A step as a directory that Orbax and TensorStore read as their own: what can be asked for, and
// what was done. Plain structs.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace stepwell {

// Chooses how the chunks' bytes get into the directory. They are zarr chunks already, so nothing is
// decoded.
enum class ExportMode : uint8_t {
  kAuto,     // the first of the following that the destination allows
  kLink,     // hard links of whole segments: instant; the apparent size is that of the segments
  kReflink,  // clones of just the step's ranges: instant, compact
  kCopy,     // sequential copies of just the step's ranges: any file system; to hand on
};

enum class ExportLayout : uint8_t {
  kV1,  // the destination becomes the checkpoint: for orbax.checkpoint.v1 and anything that takes a
        // path
  kV0,  // the destination is the root of a CheckpointManager, existing or new; the checkpoint is
        // its subdirectory <step_prefix>_<step>, zero-padded
};

// Chooses the types of arrays in the checkpoint.
enum class ExportLeaves : uint8_t {
  kNumpy,  // np.ndarray: loads on any machine, keeps 64-bit types
  kJax,    // those that were jax.Array stay so, with their sharding: loading without a target needs
           // the devices that it names
};

// Decides about leaves that Orbax cannot hold.
enum class OnUnsupported : uint8_t {
  kError,  // kInvalidArgument that lists every one with its reason; nothing is written
  kSkip,   // left out
  kWiden,  // element types become the next wider one that Orbax has; what cannot be: kError
};

struct ExportOptions {
  ExportMode mode = ExportMode::kAuto;
  ExportLayout layout = ExportLayout::kV1;
  ExportLeaves leaves = ExportLeaves::kNumpy;
  OnUnsupported on_unsupported = OnUnsupported::kError;
  int zarr_format = 3;  // 3: every chunk with its CRC-32C, which readers check; or 2
  // Items to export; empty: all. An item is a directory of the same name in the checkpoint.
  std::vector<std::string> items{};
  std::string step_prefix{};     // kV0: "ckpt" makes ckpt_7; "": 7
  int step_digits = 0;           // kV0: at least so many, with zeros in front
  bool unnamed_default = false;  // kV0: a single item is called "default", as managers that were
                                 // not told names expect
  // Permissions of the files written, for readers under another user; 0: umask's. Linked segments
  // become readable by those it grants: these are the store's own files.
  uint32_t file_mode = 0;
  // Called now and then with the bytes copied and to be copied; false cancels (kCancelled, and
  // nothing is left). May be empty.
  std::function<bool(uint64_t done_bytes, uint64_t total_bytes)> progress{};
  // kV0: step_prefix is all that stands before the digits: "ckpt" makes ckpt7.
  bool step_prefix_verbatim = false;
};

struct ExportReport {
  struct Leaf {
    std::string path;  // "item/path"
    std::string reason;
  };
  std::string path;                     // of the checkpoint
  ExportMode mode = ExportMode::kAuto;  // the one that was used
  uint64_t leaves = 0;
  uint64_t chunks = 0;
  uint64_t step_bytes = 0;      // stored bytes of what was exported
  uint64_t apparent_bytes = 0;  // bytes that a copy of the directory would transfer
  uint64_t written_bytes = 0;   // bytes of new files, metadata included
  std::vector<Leaf> skipped;
  std::vector<Leaf> widened;
  // kJax: jax.Arrays with a sharding that Orbax cannot express (or none): they are np.ndarray.
  std::vector<Leaf> as_numpy;
  std::vector<Leaf> as_text;  // below a dict key that is neither text nor integer: it became text
};

}  // namespace stepwell
