// SPDX-License-Identifier: Apache-2.0
#include "format/hash.h"

#include <xxh_x86dispatch.h>  // the widest vectors that the machine has

#include <algorithm>

#include "format/endian.h"

namespace stepwell::format {

Hash128 HashOf(ConstBytes bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  if (hash.low64 == 0 && hash.high64 == 0) return {1, 0};
  return {hash.low64, hash.high64};
}

Hash128 PlacesHash(std::vector<PayloadPlace>* places) {
  std::sort(places->begin(), places->end());
  places->erase(std::unique(places->begin(), places->end()), places->end());
  std::vector<std::byte> bytes(places->size() * 16);
  for (size_t i = 0; i < places->size(); ++i) {
    StoreLittle(bytes.data() + 16 * i, (*places)[i].offset_bytes);
    StoreLittle(bytes.data() + 16 * i + 8, (*places)[i].stored_bytes);
  }
  return HashOf(bytes);
}

}  // namespace stepwell::format
