// SPDX-License-Identifier: Apache-2.0
// Collects the leaves that an export's format cannot hold, so that one error names them all. Pure.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "db/export/export.h"
#include "format/orbax/python_text.h"

namespace stepwell::db {

class ExportVerdicts {
 public:
  // `format`: its name in messages.
  ExportVerdicts(const char* format, OnUnsupported policy) : format_(format), policy_(policy) {}

  void Unsupported(std::string path, std::string reason) {
    auto& list = policy_ == OnUnsupported::kSkip ? skipped_ : errors_;
    list.push_back({std::move(path), std::move(reason)});
  }

  // kInvalidArgument with all of them, unless they are left out: then `skipped` are those.
  Status Finish(std::vector<ExportReport::Leaf>* skipped) {
    if (errors_.empty()) {
      *skipped = std::move(skipped_);
      return OkStatus();
    }
    constexpr const char* kAdvice =
        "; on_unsupported \"skip\" leaves out what is unsupported, \"widen\" converts numbers";
    std::string list;
    for (const auto& [path, reason] : errors_) {
      list +=
          StrCat(errors_.size() == 1 ? "" : "\n  ", format::orbax::Printable(path), ": ", reason);
    }
    if (errors_.size() == 1) {
      return InvalidArgumentError(StrCat(format_, " cannot hold ", list, kAdvice));
    }
    return InvalidArgumentError(
        StrCat(format_, " cannot hold ", errors_.size(), " parts of the step", kAdvice, ":", list));
  }

 private:
  const char* const format_;
  const OnUnsupported policy_;
  std::vector<ExportReport::Leaf> skipped_;
  std::vector<ExportReport::Leaf> errors_;
};

}  // namespace stepwell::db
