// SPDX-License-Identifier: Apache-2.0
// Frame headers, whole frames, copies of frames, and the slots of STEPWELL. The first byte picks
// which, and whether checksums are made right first, so that what lies behind them is reached too.
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

// Lays out the copy as it lies behind another frame, of a segment whose nonce is zero.
void Copy(std::string bytes, bool fix) {
  constexpr size_t kCrcAt = 64;
  if (fix) FixSum(&bytes, kCrcAt + format::kCrcBytes);
  const auto header = format::DecodeFrameCopyHeader(AsBytes(bytes), {});
  if (!header.ok()) return;
  format::FrameCopy copy;
  copy.place = header->place;
  copy.bytes = bytes.substr(format::kCopyHeaderBytes, header->length_bytes);
  std::string again(format::FrameCopySpace(copy.bytes.size()), '\0');
  format::EncodeFrameCopy(copy, {}, {reinterpret_cast<std::byte*>(again.data()), again.size()});
  const auto second = format::DecodeFrameCopyHeader(AsBytes(again), {});
  Check(second.ok() && second->place == header->place &&
            second->length_bytes == copy.bytes.size() &&
            second->crc == format::Crc32c(AsBytes(copy.bytes)),
        "a copy's header changed on the way");
  const auto frame = format::OpenFrameCopy(copy);
  if (!frame.ok()) return;
  Check(frame->header.crc == copy.place.crc, "a copy of another frame is opened");
  Check(!frame->whole || format::CheckFramePayload(frame->header, AsBytes(frame->payload)).ok(),
        "a whole copy with another payload");
}

}  // namespace
}  // namespace stepwell::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stepwell::fuzz;
  const MemoryLimit limit(size, {16384, 4}, {size_t{64} << 10, 32});
  Input input(data, size);
  const uint8_t mode = input.Byte();
  const bool fix = (mode & 1) != 0;
  if ((mode & 4) != 0) {
    Copy(std::string(input.rest_text()), fix);
  } else if ((mode & 2) == 0) {
    Frame(std::string(input.rest_text()), fix);
  } else {
    Slot(std::string(input.rest_text()), fix);
  }
  return 0;
}
