// SPDX-License-Identifier: Apache-2.0
// Frame headers, whole frames, and the slots of STEPWELL. The first byte picks which, and whether
// checksums are made right first, so that what lies behind them is reached too.
#include <cstring>

#include "format/crc32c.h"
#include "format/endian.h"
#include "format/frame.h"
#include "format/records.h"
#include "fuzz/support/check.h"
#include "fuzz/support/input.h"
#include "fuzz/support/memory.h"

namespace stepwell::fuzz {
namespace {

using format::FrameHeader;
using format::kFrameHeaderBytes;
using format::kSlotBytes;

constexpr size_t kPayloadBytesAt = 12;
constexpr size_t kPayloadCrcAt = 96;

void FixSum(std::string* bytes, size_t size) {
  if (bytes->size() < size) return;
  auto* at = reinterpret_cast<std::byte*>(bytes->data());
  format::StoreLittle(at + size - 4, format::Crc32c({at, size - 4}));
}

void Frame(std::string bytes, bool fix) {
  if (fix && bytes.size() >= kFrameHeaderBytes) {
    auto* at = reinterpret_cast<std::byte*>(bytes.data());
    const size_t length = bytes.size() - kFrameHeaderBytes;
    format::StoreLittle(at + kPayloadBytesAt, static_cast<uint32_t>(length));
    format::StoreLittle(at + kPayloadCrcAt, format::Crc32c({at + kFrameHeaderBytes, length}));
    FixSum(&bytes, kFrameHeaderBytes);
  }
  const auto header = format::DecodeFrameHeader(AsBytes(bytes));
  if (!header.ok()) return;
  const ConstBytes payload = AsBytes(bytes).subspan(kFrameHeaderBytes);
  const Status good = format::CheckFramePayload(*header, payload);
  Check(good.ok() || good.code() == StatusCode::kDataLoss, good.ToString());
  if (!good.ok()) return;
  uint32_t crc = 0;
  const std::string again = format::EncodeFrame(*header, AsText(payload), 4096, &crc);
  Check(again.size() % 4096 == 0, "a frame does not end on its block's border");
  const auto second = format::DecodeFrameHeader(AsBytes(again).first(kFrameHeaderBytes));
  Check(second.ok() && second->crc == crc, "an encoded frame does not decode");
  FrameHeader wanted = *header;
  wanted.crc = crc;  // reserved bytes that are not zero are not kept
  Check(*second == wanted, "a frame header changed on the way");
}

void Slot(std::string bytes, bool fix) {
  if (fix) FixSum(&bytes, kSlotBytes);
  const auto slot = format::DecodeSlot(AsBytes(bytes));
  if (!slot.ok()) return;
  const auto encoded = format::EncodeSlot(*slot);
  const auto second = format::DecodeSlot(encoded);
  Check(second.ok() && *second == *slot, "a slot changed on the way");
}

}  // namespace
}  // namespace stepwell::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stepwell::fuzz;
  const MemoryLimit limit(size, {16384, 4}, {size_t{64} << 10, 32});
  Input input(data, size);
  const uint8_t mode = input.Byte();
  const bool fix = (mode & 1) != 0;
  if ((mode & 2) == 0) {
    Frame(std::string(input.rest_text()), fix);
  } else {
    Slot(std::string(input.rest_text()), fix);
  }
  return 0;
}
