// SPDX-License-Identifier: Apache-2.0
// Every decoder against every truncation and many mutations: no crash, no huge allocation, and
// nothing but kDataLoss (sanitizer builds see the rest).
#include <gtest/gtest.h>
#include <zstd.h>

#include <algorithm>
#include <functional>
#include <map>

#include "format/endian.h"
#include "tests/format/support/examples.h"
#include "tests/prng.h"

namespace stepwell::format {
namespace {

using Decoder = std::function<Status(ConstBytes)>;

template <typename T>
Decoder Wrap(Result<T> (*decode)(ConstBytes)) {
  return [decode](ConstBytes bytes) { return decode(bytes).status(); };
}

const std::map<std::string, Decoder>& Decoders() {
  static const auto* decoders = new std::map<std::string, Decoder>{
      {"leaf_array", [](ConstBytes b) { return DecodeLeafValue("k", b).status(); }},
      {"segment_header", Wrap(DecodeSegmentHeader)},
      {"catalog_base", Wrap(DecodeCatalog)},
      {"catalog_change", Wrap(DecodeCatalog)},
      {"catalog_page", Wrap(DecodeCatalogPage)},
      {"epoch", Wrap(DecodeEpoch)},
      // Parts of frames, too: what they skip may be anything.
      {"records",
       [](ConstBytes b) {
         DecodeRecordsIn(b, KeysBelow("k")).status().IgnoreError("only the whole must fail");
         return DecodeRecords(b).status();
       }},
      {"commit",
       [](ConstBytes b) {
         DecodeCommitHead(b).status().IgnoreError("only the whole must fail");
         DecodeCommitRecordsIn(b, KeyAlone("k")).status().IgnoreError("only the whole must fail");
         return DecodeCommit(b).status();
       }},
      {"commit_packed", Wrap(DecodeCommit)},
      {"records_packed", Wrap(DecodeRecords)},
      {"delete", Wrap(DecodeDelete)},
      {"prepared", Wrap(DecodeCommit)},
      {"decided", Wrap(DecodeDecided)},
      {"meta", Wrap(DecodeMeta)},
      {"footer", Wrap(DecodeFooter)},
      {"trailer", Wrap(DecodeTrailer)},
  };
  return *decoders;
}

std::string BytesOf(const std::string& name) {
  for (const Golden& golden : MakeGolden()) {
    if (golden.name == name) return golden.bytes;
  }
  ADD_FAILURE() << name;
  return {};
}

void ExpectDataLoss(const Status& status, const std::string& name) {
  EXPECT_EQ(status.code(), StatusCode::kDataLoss) << name;
  EXPECT_EQ(status.message().rfind("bad ", 0), 0U) << status.message();
}

TEST(HostileTest, EveryTruncationIsDataLoss) {
  for (const auto& [name, decode] : Decoders()) {
    const std::string bytes = BytesOf(name);
    EXPECT_TRUE(decode(AsBytes(bytes)).ok()) << name;
    for (size_t length = 0; length < bytes.size(); ++length) {
      ExpectDataLoss(decode(AsBytes(bytes).first(length)), name);
      // With a frame that matches the length, too.
      if (length % 8 == 0 && length >= 16) {
        std::string cut = bytes.substr(0, length);
        StoreLittle(reinterpret_cast<std::byte*>(cut.data()) + 4,
                    static_cast<uint32_t>(length / 8 - 1));
        const Status status = decode(AsBytes(cut));
        if (!status.ok()) ExpectDataLoss(status, name);
      }
    }
    ExpectDataLoss(decode(AsBytes(bytes + std::string(8, '\0'))), name);
  }
}

TEST(HostileTest, MutationsNeverCrash) {
  Prng prng(1);
  for (const auto& [name, decode] : Decoders()) {
    const std::string bytes = BytesOf(name);
    for (size_t at = 0; at < bytes.size(); ++at) {
      for (const int value : {0x00, 0x01, 0x7F, 0x80, 0xFF, -1}) {
        std::string bad = bytes;
        bad[at] = static_cast<char>(value >= 0 ? static_cast<uint64_t>(value) : prng.Below(256));
        const Status status = decode(AsBytes(bad));
        if (!status.ok()) ExpectDataLoss(status, name);
      }
    }
    for (int i = 0; i < 1000; ++i) {
      std::string bad = bytes;
      for (uint64_t k = 2 + prng.Below(4); k > 0; --k) {
        bad[8 + prng.Below(bad.size() - 8)] = static_cast<char>(prng.Below(256));
      }
      const Status status = decode(AsBytes(bad));
      if (!status.ok()) ExpectDataLoss(status, name);
    }
  }
}

TEST(HostileTest, MessagesWithoutRootOrWithManySegmentsAreRefused) {
  for (const auto& [name, decode] : Decoders()) {
    std::string empty(16, '\0');
    empty[4] = 1;
    EXPECT_EQ(decode(AsBytes(empty)).code(), StatusCode::kDataLoss) << name;
    std::string many(16, '\xFF');
    EXPECT_EQ(decode(AsBytes(many)).code(), StatusCode::kDataLoss) << name;
  }
}

// A list of 2^29 - 1 structs of no size takes 16 bytes: it must not become gigabytes.
TEST(HostileTest, ListsOfNothingAreNotAmplified) {
  for (const uint32_t elements : {uint32_t{1000}, (uint32_t{1} << 29) - 1}) {
    std::string bytes(8 * 5, '\0');
    auto* at = reinterpret_cast<std::byte*>(bytes.data());
    StoreLittle(at + 4, uint32_t{4});
    StoreLittle(at + 8, uint64_t{1} << 48);         // root: no data, one pointer, right behind
    StoreLittle(at + 16, uint64_t{0x7} << 32 | 1);  // list, inline composite, no words
    StoreLittle(at + 24, uint64_t{elements} << 2);  // tag: structs without data and pointers
    const Status status = DecodeRecords(AsBytes(bytes)).status();
    ExpectDataLoss(status, "records");
    ExpectDataLoss(DecodeFooter(AsBytes(bytes)).status(), "footer");
  }
}

// A Records message whose leaves are packed in `frame`, with `leaves` elements beside them.
std::string PackedRecords(std::string_view frame, uint64_t plain_bytes, uint64_t leaves = 0) {
  const size_t words = 5 + (frame.size() + 7) / 8;
  std::string bytes(8 + 8 * words, '\0');
  auto* at = reinterpret_cast<std::byte*>(bytes.data());
  StoreLittle(at + 4, static_cast<uint32_t>(words));
  StoreLittle(at + 8, uint64_t{2} << 48);                       // root: two pointers
  if (leaves > 0) StoreLittle(at + 16, leaves << 35 | 1);       // a list of elements of no size
  StoreLittle(at + 24, uint64_t{1} << 48 | uint64_t{1} << 32);  // packed: a word and a pointer
  StoreLittle(at + 32, plain_bytes);
  StoreLittle(at + 40, uint64_t{frame.size()} << 35 | uint64_t{2} << 32 | 1);  // bytes
  std::copy(frame.begin(), frame.end(), bytes.begin() + 48);
  return bytes;
}

std::string Zstd(std::string_view bytes) {
  std::string frame(ZSTD_compressBound(bytes.size()), '\0');
  frame.resize(ZSTD_compress(frame.data(), frame.size(), bytes.data(), bytes.size(), 1));
  return frame;
}

TEST(HostileTest, PackedLeavesAreOneFrameOfTheirSize) {
  std::vector<LeafRecord> few = ExamplePackedCommit().records;
  few.resize(1);
  const std::string plain = EncodeRecords(few);
  const std::string frame = Zstd(plain);
  const std::string good = PackedRecords(frame, plain.size());
  const Result<std::vector<LeafRecord>> decoded = DecodeRecords(AsBytes(good));
  ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
  EXPECT_TRUE(*decoded == few);
  EXPECT_TRUE(DecodeRecordsIn(AsBytes(good), KeysBelow("")).value() == few);

  const std::string zeros(size_t{1} << 20, '\0');
  const std::string skipped("\x50\x2a\x4d\x18\0\0\0\0", 8);
  const std::vector<std::string> bad = {
      PackedRecords(frame, plain.size() + 8),
      PackedRecords(frame, plain.size() - 8),
      PackedRecords(frame, 0),
      PackedRecords(frame, uint64_t{1} << 40),
      PackedRecords(frame, ~uint64_t{0}),
      PackedRecords("", 0),
      PackedRecords("", 8),
      PackedRecords(frame + "x", plain.size()),
      PackedRecords(frame + frame, 2 * plain.size()),
      PackedRecords(skipped + frame, plain.size()),
      PackedRecords(frame.substr(0, frame.size() - 1), plain.size()),
      PackedRecords(frame, plain.size(), /*leaves=*/3),
      PackedRecords(Zstd(good), good.size()),    // packed twice
      PackedRecords(Zstd(zeros), zeros.size()),  // more than 256 times the frame
      PackedRecords(Zstd(""), 0)};
  for (size_t i = 0; i < bad.size(); ++i) {
    ExpectDataLoss(DecodeRecords(AsBytes(bad[i])).status(), StrCat("records ", i));
    ExpectDataLoss(DecodeRecordsIn(AsBytes(bad[i]), KeysBelow("")).status(), StrCat("in ", i));
  }
}

TEST(HostileTest, FramesAndSlotsOfRandomBytesAreRefused) {
  Prng prng(2);
  for (int i = 0; i < 2000; ++i) {
    std::vector<std::byte> bytes = prng.Bytes(kSlotBytes);
    EXPECT_FALSE(DecodeSlot(bytes).ok());
    EXPECT_FALSE(DecodeFrameHeader(ConstBytes(bytes).first(prng.Below(300))).ok());
  }
}

}  // namespace
}  // namespace stepwell::format
