// SPDX-License-Identifier: Apache-2.0
// Slots of the STEPWELL file: a fixed layout, so that any version can read the identity of any
// other's store. FORMAT.md has it as a table.
#include <algorithm>
#include <cstring>

#include "format/crc32c.h"
#include "format/endian.h"
#include "format/frame.h"

namespace stepwell::format {
namespace {

constexpr char kSlotMagic[8] = {'\x89', 'S', 'T', 'E', 'P', 'W', 'L', '\n'};

constexpr size_t kSlotVersionAt = 8;
constexpr size_t kFlagsAt = 12;  // bit 0: clean
constexpr size_t kStoreIdAt = 16;
constexpr size_t kSequenceAt = 32;
constexpr size_t kSlotEpochAt = 40;
constexpr size_t kDurableCommitAt = 48;
constexpr size_t kDurablePlaceAt = 56;
constexpr size_t kCatalogPlaceAt = 80;
constexpr size_t kGroupIdAt = 104;
constexpr size_t kPartAt = 120;
constexpr size_t kTipLengthAt = 124;
constexpr size_t kTipAt = 128;  // to 4091; zeros behind the copy
constexpr size_t kSlotCrcAt = kSlotBytes - sizeof(uint32_t);
static_assert(kTipAt + kSlotTipBytesMax == kSlotCrcAt);
constexpr uint32_t kFlagClean = 1;
// Numbers only count up by one: a larger one was never written, and must not overflow here.
constexpr uint64_t kSlotNumberMax = uint64_t{1} << 62;

}  // namespace

std::array<std::byte, kSlotBytes> EncodeSlot(const StoreSlot& slot) {
  std::array<std::byte, kSlotBytes> bytes{};
  std::byte* at = bytes.data();
  std::memcpy(at, kSlotMagic, sizeof(kSlotMagic));
  StoreLittle(at + kSlotVersionAt, slot.format_version);
  StoreLittle(at + kFlagsAt, slot.clean ? kFlagClean : uint32_t{0});
  std::memcpy(at + kStoreIdAt, slot.store_id.data(), slot.store_id.size());
  StoreLittle(at + kSequenceAt, slot.sequence);
  StoreLittle(at + kSlotEpochAt, slot.epoch);
  StoreLittle(at + kDurableCommitAt, slot.durable_commit);
  StorePlace(slot.durable_place, at + kDurablePlaceAt);
  StorePlace(slot.catalog_place, at + kCatalogPlaceAt);
  std::memcpy(at + kGroupIdAt, slot.group_id.data(), slot.group_id.size());
  StoreLittle(at + kPartAt, slot.part);
  if (slot.tip.size() <= kSlotTipBytesMax) {
    StoreLittle(at + kTipLengthAt, static_cast<uint32_t>(slot.tip.size()));
    std::memcpy(at + kTipAt, slot.tip.data(), slot.tip.size());
  }
  StoreLittle(at + kSlotCrcAt, Crc32c({at, kSlotCrcAt}));
  return bytes;
}

Result<StoreSlot> DecodeSlot(ConstBytes bytes) {
  if (bytes.size() < kSlotBytes) {
    return DataLossError(StrCat("STEPWELL slot cut short at ", bytes.size(), " bytes"));
  }
  const std::byte* at = bytes.data();
  const uint32_t expected = LoadLittle<uint32_t>(at + kSlotCrcAt);
  const uint32_t found = Crc32c({at, kSlotCrcAt});
  if (std::memcmp(at, kSlotMagic, sizeof(kSlotMagic)) != 0) {
    // All zeros, or one of our slots with damage in the magic itself: not a foreign file.
    if (expected == found || (expected == 0 && LoadLittle<uint64_t>(at) == 0)) {
      return DataLossError("STEPWELL slot without a magic");
    }
    return UnimplementedError("not a Stepwell store: STEPWELL does not start with \\x89STEPWL");
  }
  if (expected != found) {
    return DataLossError(
        StrCat("STEPWELL slot checksum mismatch: expected ", expected, ", found ", found));
  }
  StoreSlot slot;
  slot.format_version = LoadLittle<uint32_t>(at + kSlotVersionAt);
  if (slot.format_version < kFormatVersionMin) {
    return UnimplementedError(
        StrCat("the store has format ", slot.format_version,
               ", of a version of Stepwell before its first release, and this one reads formats "
               "from ",
               kFormatVersionMin,
               " on; export its steps as Orbax checkpoints with the "
               "version that wrote it, and import those"));
  }
  if (slot.format_version > kFormatVersion) {
    return UnimplementedError(StrCat("the store has format ", slot.format_version,
                                     ", and this version of Stepwell reads up to ", kFormatVersion,
                                     "; open it with a newer version"));
  }
  slot.clean = (LoadLittle<uint32_t>(at + kFlagsAt) & kFlagClean) != 0;
  std::memcpy(slot.store_id.data(), at + kStoreIdAt, slot.store_id.size());
  slot.sequence = LoadLittle<uint64_t>(at + kSequenceAt);
  slot.epoch = LoadLittle<uint64_t>(at + kSlotEpochAt);
  slot.durable_commit = LoadLittle<uint64_t>(at + kDurableCommitAt);
  if (std::max({slot.sequence, slot.epoch, slot.durable_commit}) > kSlotNumberMax) {
    return DataLossError("STEPWELL slot with a number out of range");
  }
  slot.durable_place = LoadPlace(at + kDurablePlaceAt);
  slot.catalog_place = LoadPlace(at + kCatalogPlaceAt);
  std::memcpy(slot.group_id.data(), at + kGroupIdAt, slot.group_id.size());
  slot.part = LoadLittle<uint32_t>(at + kPartAt);
  const auto length = LoadLittle<uint32_t>(at + kTipLengthAt);
  if (length > kSlotTipBytesMax) return DataLossError("STEPWELL slot with too long a copy");
  slot.tip.assign(reinterpret_cast<const char*>(at + kTipAt), length);
  return slot;
}

}  // namespace stepwell::format
