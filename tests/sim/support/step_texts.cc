// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/support/step_texts.h"

#include "tests/db/support/store_support.h"

namespace stepwell::sim {

Status CheckTexts(db::Store* store, const Steps& wanted) {
  STEPWELL_ASSIGN_OR_RETURN(const auto all, store->Texts(SIZE_MAX));
  Status first;
  for (const db::StepTexts& texts : all) {
    const auto it = wanted.find(texts.step);
    if (!texts.status.ok() || it == wanted.end()) {
      if (first.ok()) first = texts.status;
      continue;
    }
    const uint64_t seed = SeedOf(it->second);
    if (texts.metadata_json != StrCat(kMetadata, seed, "}") ||
        texts.metrics_json != db::MetricsOf(seed)) {
      return InternalError(StrCat("step ", texts.step, " has the texts '", texts.metadata_json,
                                  "' and '", texts.metrics_json, "'"));
    }
  }
  return first;
}

}  // namespace stepwell::sim
