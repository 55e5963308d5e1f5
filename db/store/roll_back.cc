// SPDX-License-Identifier: Apache-2.0
#include "db/store/roll_back.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "io/bytes.h"

namespace stepwell::db {

Result<std::vector<uint64_t>> RollBack(Store& store, uint64_t to, std::string_view taint) {
  for (std::vector<uint64_t> tried;;) {
    STEPWELL_ASSIGN_OR_RETURN(const auto reader, store.ReadShare(to));
    const std::string& own = reader->step().taint;
    if (!own.empty()) {
      return InvalidArgumentError(
          StrCat("step ", to, " is tainted, '", own, "': untaint it, or go back to another step"));
    }
    STEPWELL_ASSIGN_OR_RETURN(std::vector<uint64_t> above, store.StepNumbers(SIZE_MAX, true));
    above.erase(above.begin(), std::upper_bound(above.begin(), above.end(), to));
    if (above.empty()) return above;
    const Status status = taint.empty() ? store.Delete(above) : store.SetTaint(above, taint);
    if (status.ok()) return above;
    // One of them may have gone in the instant between, by another thread or a rule.
    if (status.code() != StatusCode::kNotFound || above == tried) return status;
    tried = std::move(above);
  }
}

}  // namespace stepwell::db
