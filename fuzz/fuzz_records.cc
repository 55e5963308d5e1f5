// SPDX-License-Identifier: Apache-2.0
// Every record and every frame payload of format/records.h: the first byte picks the decoder, the
// rest is the message. What decodes must survive encoding and decoding again.
#include <array>

#include "format/key.h"
#include "format/records.h"
#include "fuzz/support/check.h"
#include "fuzz/support/input.h"
#include "fuzz/support/memory.h"

namespace stepwell::fuzz {
namespace {

using namespace format;  // NOLINT(google-build-using-namespace)

template <typename T, typename View>
void RoundTrip(const char* what, Result<T> (*decode)(ConstBytes), std::string (*encode)(View),
               ConstBytes bytes) {
  const Result<T> first = decode(bytes);
  if (!first.ok()) {
    Check(first.status().code() == StatusCode::kDataLoss, what, ": ", first.status().ToString());
    return;
  }
  const std::string encoded = encode(*first);
  const Result<T> second = decode(AsBytes(encoded));
  Check(second.ok(), what, " cannot be read back: ", second.status().ToString());
  Check(*second == *first, what, " changed on the way");
  Check(encode(*second) == encoded, what, " has two encodings");
}

void LeafValue(ConstBytes bytes) {
  const auto first = DecodeLeafValue("key", bytes);
  if (!first.ok()) return;
  const auto second = DecodeLeafValue("key", AsBytes(EncodeLeafValue(*first)));
  Check(second.ok() && *second == *first, "a leaf value changed on the way");
}

using Decoder = void (*)(ConstBytes);

// In the order of make_corpus.cc.
constexpr std::array<Decoder, 12> kDecoders = {
    [](ConstBytes b) { RoundTrip("step record", DecodeStepRecord, EncodeStepRecord, b); },
    LeafValue,
    [](ConstBytes b) { RoundTrip("chunk record", DecodeChunkRecord, EncodeChunkRecord, b); },
    [](ConstBytes b) { RoundTrip("segment header", DecodeSegmentHeader, EncodeSegmentHeader, b); },
    [](ConstBytes b) { RoundTrip("catalog", DecodeCatalog, EncodeCatalog, b); },
    [](ConstBytes b) { RoundTrip("epoch", DecodeEpoch, EncodeEpoch, b); },
    [](ConstBytes b) { RoundTrip("records", DecodeRecords, EncodeRecords, b); },
    [](ConstBytes b) { RoundTrip("commit", DecodeCommit, EncodeCommit, b); },
    [](ConstBytes b) { RoundTrip("delete", DecodeDelete, EncodeDelete, b); },
    [](ConstBytes b) { RoundTrip("meta", DecodeMeta, EncodeMeta, b); },
    [](ConstBytes b) { RoundTrip("footer", DecodeFooter, EncodeFooter, b); },
    [](ConstBytes b) { RoundTrip("trailer", DecodeTrailer, EncodeTrailer, b); },
};

}  // namespace
}  // namespace stepwell::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stepwell::fuzz;
  const MemoryLimit limit(size, {size_t{64} << 10, 256}, {size_t{256} << 10, 2048});
  Input input(data, size);
  kDecoders[input.Byte() % kDecoders.size()](input.rest());
  return 0;
}
