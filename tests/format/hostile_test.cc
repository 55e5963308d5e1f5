// SPDX-License-Identifier: Apache-2.0
// Every decoder against every truncation and many mutations: no crash, no huge allocation, and
// nothing but kDataLoss (sanitizer builds see the rest).
#include <gtest/gtest.h>

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
      {"delete", Wrap(DecodeDelete)},
      {"prepared", Wrap(DecodeCommit)},
      {"decided", Wrap(DecodeDecided)},
      {"meta", Wrap(DecodeMeta)},
      {"footer", Wrap(DecodeFooter)},
      {"trailer", Wrap(DecodeTrailer)},
  };
  return *decoders;
}

std::string Example(const std::string& name) {
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
    const std::string bytes = Example(name);
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
    const std::string bytes = Example(name);
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
