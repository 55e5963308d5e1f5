// SPDX-License-Identifier: Apache-2.0
// Writes a committed step as one file of arrays by name, .safetensors or .npz, for tools that take
// those. Such files cannot hold containers and Python's values. The export refuses them or leaves
// them out, as the caller says (DESIGN.md, "Archives").
#pragma once

#include <string>
#include <utility>

#include <stepwell/archive_export.h>

#include "db/export/export.h"

namespace stepwell::db {

using stepwell::ArchiveFormat;

struct ArchiveOptions : stepwell::ArchiveOptions {
  ArchiveOptions() = default;
  ArchiveOptions(stepwell::ArchiveOptions options)  // NOLINT(google-explicit-constructor)
      : stepwell::ArchiveOptions(std::move(options)) {}

  // Encoded leaf key (format::EncodeLeafKey) of the item, subtree or leaf to export; "": the step.
  std::string subtree_key;
  // That of the store and the destination; null: the machine's.
  io::FileSystem* file_system = nullptr;
};

// Writes the file beside its name, syncs and renames it; on error nothing is left. Streams: memory
// is bounded, whatever the step's size. Names are paths below the subtree, joined by "/"; the
// item's name comes first unless it is "state" and the only one. A .safetensors file has the step's
// metadata, one string a key, "stepwell.step" and "stepwell.metrics"; .npz files have no place for
// them.
//
// kInvalidArgument: what the format cannot hold (all of it, with paths), no leaf at all, no
// directory to put it in, a destination inside the store. kNotFound: no such step. kAlreadyExists.
// kUnavailable: another export to there is under way. kResourceExhausted, kDataLoss as they come.
Result<ExportReport> ExportArchive(StoreReader& store, uint64_t step,
                                   const std::string& destination, const ArchiveOptions& options);

}  // namespace stepwell::db
