// SPDX-License-Identifier: Apache-2.0
// A committed step as a directory that Orbax and TensorStore read as their own (DESIGN.md,
// "Export"). Chunks are not decoded: they are zarr chunks already. Their bytes come into the
// directory by hard links of the segments, by clones of their ranges, or by copies; OCDBT nodes
// point at them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include <stepwell/orbax_export.h>

#include "db/store.h"
#include "io/disk.h"

namespace stepwell::db {

using stepwell::ExportLayout;
using stepwell::ExportLeaves;
using stepwell::ExportMode;
using stepwell::ExportReport;
using stepwell::OnUnsupported;

struct ExportOptions : stepwell::ExportOptions {
  ExportOptions() = default;
  ExportOptions(stepwell::ExportOptions options)  // NOLINT(google-explicit-constructor)
      : stepwell::ExportOptions(std::move(options)) {}

  // Encoded leaf key (format::EncodeLeafKey) of the subtree or leaf that becomes the whole tree of
  // its item; "": whole items.
  std::string subtree_key;
  // kReflink, kCopy: a new data file begins where one would become larger; 0: one file an item.
  uint64_t data_file_bytes = 0;
  // That of the store and the destination; null: the machine's.
  io::FileSystem* file_system = nullptr;
};

// Exports a step, which is pinned meanwhile. The destination must not exist (kV0: the step's
// directory). Everything is built in a sibling "<name>.orbax-checkpoint-tmp", synced bottom-up and
// renamed; on error that is removed, and so is what an export that died left there.
//
// kInvalidArgument: leaves that Orbax cannot hold (all of them, with their paths), names that
// collide, no leaf at all, an unknown item or subtree, no directory to put the destination in.
// kNotFound: no such step. kAlreadyExists. kUnavailable: another export to there is under way.
// kFailedPrecondition: the mode is not possible there (says why). kResourceExhausted, kDataLoss as
// they come.
Result<ExportReport> Export(StoreReader& store, uint64_t step, const std::string& destination,
                            const ExportOptions& options);

}  // namespace stepwell::db
