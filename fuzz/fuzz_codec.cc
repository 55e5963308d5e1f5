// SPDX-License-Identifier: Apache-2.0
// Codec payloads: arbitrary ones decoded into chunks of arbitrary type and shape, and arbitrary
// bytes through encoder and decoder. The libraries inside are not instrumented, so inputs and
// outputs end at pages that cannot be touched.
#include <algorithm>
#include <cstring>

#include "format/codec.h"
#include "format/crc32c.h"
#include "format/dtype.h"
#include "format/endian.h"
#include "fuzz/support/check.h"
#include "fuzz/support/guarded.h"
#include "fuzz/support/input.h"
#include "fuzz/support/memory.h"
#include "tests/prng.h"

namespace stepwell::fuzz {
namespace {

using format::CodecId;

constexpr uint64_t kLogicalMax = uint64_t{1} << 20;

void Decode(CodecId codec, Input* input) {
  const uint8_t flags = input->Byte();
  uint64_t logical = input->Take<uint32_t>() % kLogicalMax;
  if ((flags & 1) != 0) {  // of a chunk: a type and a shape of rank 3
    const auto types = format::AllDTypes();
    logical = types[input->Below(types.size())].item_bytes;
    for (int axis = 0; axis < 3; ++axis) logical *= 1 + input->Below(64);
    logical = std::min(logical, kLogicalMax);
  }
  std::string body(input->rest_text());
  auto* at = reinterpret_cast<std::byte*>(body.data());
  if ((flags & 2) != 0 && codec == CodecId::kBloscLz4 && body.size() >= 16) {
    format::StoreLittle(at + 4, static_cast<uint32_t>(logical));
    format::StoreLittle(at + 12, static_cast<uint32_t>(body.size()));
  }
  const uint32_t crc = format::Crc32c(AsBytes(body));
  body.append(reinterpret_cast<const char*>(&crc), sizeof(crc));
  GuardedBytes payload(AsBytes(body));
  GuardedBytes out(logical);  // zeros, which are also the base of a delta
  Check(format::CheckPayload(payload.bytes(), crc).ok(), "a payload with its own checksum");
  Check(!format::CheckPayload(payload.bytes(), crc ^ 1).ok(), "a payload with a wrong checksum");
  const Status status = format::DecodePayload(codec, payload.bytes(), out.bytes());
  Check(status.ok() || status.code() == StatusCode::kDataLoss, status.ToString());
}

// A delta to a base that differs in as many bytes as the input says, decoded twice.
void DeltaRoundTrip(Input* input) {
  constexpr uint8_t kItemBytes[] = {1, 2, 4, 8};
  const format::DeltaType type = {kItemBytes[input->Below(4)], input->Below(2) != 0};
  const size_t repeat = 1 + input->Below(64);
  const uint64_t changed_of_256 = input->Below(257);
  const uint64_t limit_percent = 1 + input->Below(200);
  Prng prng(input->Take<uint32_t>());
  std::string logical;
  for (size_t i = 0; i < repeat && logical.size() < kLogicalMax; ++i) logical += input->rest_text();
  std::string older = logical;
  for (char& byte : older) {
    if (prng.Below(256) < changed_of_256) byte = static_cast<char>(prng.Next());
  }
  GuardedBytes base(AsBytes(older));
  GuardedBytes in(AsBytes(logical));
  const size_t bytes_max = format::PayloadBytesMax(CodecId::kDelta, logical.size());
  GuardedBytes out(bytes_max * limit_percent / 100);
  const auto payload = format::EncodeDelta(type, base.bytes(), in.bytes(), out.bytes());
  Check(payload.ok(), payload.status().ToString());
  if (payload->size_bytes == 0) {
    Check(changed_of_256 > 0 || limit_percent < 100, "an equal chunk does not fit");
    return;
  }
  Check(payload->size_bytes <= std::min(bytes_max, out.bytes().size()), "a delta is too long");
  GuardedBytes stored(ConstBytes(out.bytes().first(payload->size_bytes)));
  Check(format::CheckPayload(stored.bytes(), payload->crc).ok(), "the checksum of a delta");
  for (int i = 0; i < 2; ++i) {
    GuardedBytes chunk(AsBytes(older));
    const Status decoded = format::DecodePayload(CodecId::kDelta, stored.bytes(), chunk.bytes());
    Check(decoded.ok(), decoded.ToString());
    Check(AsText(chunk.bytes()) == logical, "other bytes came back from a delta");
  }
}

void RoundTrip(CodecId codec, Input* input) {
  const size_t item_bytes = 1 + input->Below(16);
  // Some repetition, so that there is something to compress.
  const size_t repeat = 1 + input->Below(64);
  std::string logical;
  for (size_t i = 0; i < repeat && logical.size() < kLogicalMax; ++i) logical += input->rest_text();
  if (logical.empty() && codec == CodecId::kBloscLz4) return;  // has no stream for nothing
  GuardedBytes in(AsBytes(logical));
  GuardedBytes out(format::PayloadBytesMax(codec, logical.size()));
  const auto payload = format::EncodePayload(codec, item_bytes, in.bytes(), out.bytes());
  if (format::FindCodec(codec) == nullptr) {
    Check(!payload.ok(), "an unknown codec encodes");
    return;
  }
  Check(payload.ok(), payload.status().ToString());
  GuardedBytes stored(ConstBytes(out.bytes().first(payload->size_bytes)));
  const Status good = format::CheckPayload(stored.bytes(), payload->crc);
  Check(good.ok(), good.ToString());
  GuardedBytes back(logical.size());
  const Status decoded = format::DecodePayload(codec, stored.bytes(), back.bytes());
  Check(decoded.ok(), decoded.ToString());
  Check(AsText(back.bytes()) == logical, "other bytes came back");
  Check(format::SampleRatio(in.bytes(), item_bytes) >= 0.9, "a ratio below 0.9");
}

}  // namespace
}  // namespace stepwell::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stepwell::fuzz;
  const MemoryLimit limit(size, {size_t{8} << 20, 130}, {size_t{32} << 20, 1024});
  Input input(data, size);
  const uint8_t mode = input.Byte();
  const auto codec = static_cast<CodecId>(mode >> 1 & 7);  // known and unknown ones
  if ((mode & 1) == 0) {
    Decode(codec, &input);
  } else if (codec == CodecId::kDelta) {
    DeltaRoundTrip(&input);
  } else {
    RoundTrip(codec, &input);
  }
  return 0;
}
