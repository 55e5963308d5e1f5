// SPDX-License-Identifier: Apache-2.0
// The file VIEWS of a store: the views that the next open for writing serves again, so that what it
// reclaims is not shown any more. Its loss is harmless.
#pragma once

#include <string>
#include <vector>

#include "db/export/export.h"
#include "io/disk.h"

namespace stepwell::db {

// Absolute, without symbolic links; what is not there yet is appended as it is.
Result<std::string> CanonicalPath(const std::string& path);

// Writes the options that shape a view's checkpoints as a line of JSON.
std::string ViewOptionsText(const ExportOptions& options);

struct RememberedView {
  std::string path;  // canonical
  bool beside = false;
  ExportOptions checkpoint;
};

struct RememberedViews {
  std::vector<RememberedView> views;
  std::string where;  // WhereBeside of the store when they were written; "": not known
};

// Empty where the file does not exist. Where the store was copied or moved since the file was
// written, only the view that the store itself lies in. kDataLoss: the file is damaged.
Result<RememberedViews> ReadViews(io::FileSystem* file_system, const std::string& store_path);
// Durable. kInvalidArgument: a path that is not UTF-8.
Status WriteViews(io::FileSystem* file_system, const std::string& store_path,
                  const std::vector<RememberedView>& views);

}  // namespace stepwell::db
