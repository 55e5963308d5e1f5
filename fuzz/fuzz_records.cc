// SPDX-License-Identifier: Apache-2.0
// Every record and every frame payload of format/records.h, and the lists of format/pushed.h: the
// first byte picks the decoder, the rest is the message. What decodes must survive encoding and
// decoding again; the part of a list of records that is decoded alone is that part of all of them.
#include <algorithm>
#include <array>

#include "format/crc32c.h"
#include "format/endian.h"
#include "format/hash.h"
#include "format/key.h"
#include "format/pushed.h"
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

// Compressed: the bytes depend on the library's version.
void CatalogPage(ConstBytes bytes) {
  const auto first = DecodeCatalogPage(bytes);
  if (!first.ok()) return;
  const auto page = EncodeCatalogPage(*first);
  Check(page.ok(), page.status().ToString());
  const auto second = DecodeCatalogPage(AsBytes(*page));
  Check(second.ok() && *second == *first, "a page of a catalog changed on the way");
}

// Range, then the message. Of records that are not sorted a binary search finds anything.
void RecordsIn(ConstBytes bytes, bool of_commit) {
  Input input(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  KeyRange range;
  range.first = input.Text(input.Below(16));
  range.end = input.Text(input.Below(16));
  const ConstBytes message = input.rest();
  std::vector<LeafRecord> all;
  if (of_commit) {
    const auto commit = DecodeCommit(message);
    const auto head = DecodeCommitHead(message);
    Check(!commit.ok() || head.ok(), "a commit decodes, and its head does not");
    if (commit.ok()) {
      all = commit->records;
      Check(head->commit.step == commit->step && head->commit.kills == commit->kills &&
                head->commit.blocks == commit->blocks && head->commit.records.empty(),
            "the head of a commit says something else");
    }
  } else if (auto records = DecodeRecords(message); records.ok()) {
    all = std::move(*records);
  }
  const auto part =
      of_commit ? DecodeCommitRecordsIn(message, range) : DecodeRecordsIn(message, range);
  if (!part.ok()) return;
  const auto by_key = [](const LeafRecord& a, const LeafRecord& b) { return a.key < b.key; };
  if (all.empty() || !std::is_sorted(all.begin(), all.end(), by_key)) return;
  std::erase_if(all, [&](const LeafRecord& leaf) {
    return leaf.key < range.first || (!range.end.empty() && leaf.key >= range.end);
  });
  Check(*part == all, "a range of records is not that part of all of them");
}

// A list of a pushed step, or a marker, whose header is made right: its checksums, and the sizes of
// both messages, of which the first 16 bits are that of the head.
void Pushed(ConstBytes bytes) {
  std::string file(AsText(bytes));
  if (file.size() < kPushedHeaderBytes) return;
  auto* at = reinterpret_cast<std::byte*>(file.data());
  const uint64_t left = file.size() - kPushedHeaderBytes;
  const uint64_t head_bytes = std::min<uint64_t>(LoadLittle<uint16_t>(at + 16), left);
  const auto hash = [at](uint64_t offset, uint64_t size, size_t to) {
    const Hash128 found = HashOf(ConstBytes(at + offset, size));
    StoreLittle(at + to, found.low);
    StoreLittle(at + to + 8, found.high);
  };
  StoreLittle(at + 16, head_bytes);
  StoreLittle(at + 24, left - head_bytes);
  hash(kPushedHeaderBytes, head_bytes, 32);
  hash(kPushedHeaderBytes + head_bytes, left - head_bytes, 48);
  StoreLittle(at + 64, Crc32c({at, 64}));
  const auto head = DecodePushedHead(AsBytes(file));
  const auto step = DecodePushedStep(AsBytes(file));
  Check(!step.ok() || head.ok(), "a list decodes, and its head does not");
  if (head.ok() && !head->step) {
    const std::string again = EncodePushMarker(head->objects);
    Check(*DecodePushedHead(AsBytes(again)) == *head, "a marker changed on the way");
  }
  if (!step.ok()) return;
  const auto second = DecodePushedStep(AsBytes(EncodePushedStep(*step)));
  Check(second.ok() && *second == *step, "a list changed on the way");
}

using Decoder = void (*)(ConstBytes);

// In the order of make_corpus.cc.
constexpr std::array<Decoder, 16> kDecoders = {
    LeafValue,
    [](ConstBytes b) { RoundTrip("segment header", DecodeSegmentHeader, EncodeSegmentHeader, b); },
    [](ConstBytes b) { RoundTrip("catalog", DecodeCatalog, EncodeCatalog, b); },
    [](ConstBytes b) { RoundTrip("epoch", DecodeEpoch, EncodeEpoch, b); },
    [](ConstBytes b) { RoundTrip("records", DecodeRecords, EncodeRecords, b); },
    [](ConstBytes b) { RoundTrip("commit", DecodeCommit, EncodeCommit, b); },
    [](ConstBytes b) { RoundTrip("delete", DecodeDelete, EncodeDelete, b); },
    [](ConstBytes b) { RoundTrip("meta", DecodeMeta, EncodeMeta, b); },
    [](ConstBytes b) { RoundTrip("footer", DecodeFooter, EncodeFooter, b); },
    [](ConstBytes b) { RoundTrip("trailer", DecodeTrailer, EncodeTrailer, b); },
    CatalogPage,
    [](ConstBytes b) { RoundTrip("decided", DecodeDecided, EncodeDecided, b); },
    [](ConstBytes b) { RoundTrip("loss", DecodeLoss, EncodeLoss, b); },
    [](ConstBytes b) { RecordsIn(b, true); },
    [](ConstBytes b) { RecordsIn(b, false); },
    Pushed,
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
