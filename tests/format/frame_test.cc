// SPDX-License-Identifier: Apache-2.0
#include "format/frame.h"

#include <gtest/gtest.h>

#include "format/crc32c.h"
#include "format/endian.h"
#include "tests/format/support/examples.h"

namespace stepwell::format {
namespace {

std::byte* Data(std::string& text) { return reinterpret_cast<std::byte*>(text.data()); }

// Rewrites the header's CRC, as an enemy could.
void Seal(std::string& frame) { StoreLittle(Data(frame) + 124, Crc32c(AsBytes(frame).first(124))); }

TEST(FrameTest, RoundTripsAndPadsWithZeros) {
  for (const size_t block : {512u, 4096u, 65536u, 3000u}) {
    for (const size_t size : {0u, 1u, 384u, 385u, 3968u, 3969u, 100000u}) {
      const std::string payload(size, 'p');
      uint32_t crc = 0;
      const std::string frame = EncodeFrame(ExampleFrameHeader(), payload, block, &crc);
      EXPECT_EQ(frame.size() % block, 0U);
      EXPECT_LT(frame.size(), kFrameHeaderBytes + size + block);
      const Result<FrameHeader> header = DecodeFrameHeader(AsBytes(frame));
      ASSERT_TRUE(header.ok()) << header.status().ToString();
      EXPECT_EQ(header->crc, crc);
      EXPECT_EQ(header->payload_bytes, size);
      EXPECT_TRUE(CheckFramePayload(*header, AsBytes(frame).subspan(kFrameHeaderBytes, size)).ok());
      EXPECT_EQ(frame.find_first_not_of('\0', kFrameHeaderBytes + size), std::string::npos);
    }
  }
}

TEST(FrameTest, ChainFramesAreThose) {
  for (uint16_t kind = 1; kind <= 13; ++kind) {
    EXPECT_EQ(IsChainFrame(static_cast<FrameKind>(kind)), kind == 3 || kind == 5 || kind == 6 ||
                                                              kind == 7 || kind == 10 ||
                                                              kind == 11 || kind == 13);
  }
}

TEST(FrameTest, WhatIsNoFrameIsNotFound) {
  EXPECT_EQ(DecodeFrameHeader({}).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(DecodeFrameHeader(AsBytes(std::string(4096, '\0'))).status().code(),
            StatusCode::kNotFound);
  EXPECT_EQ(DecodeFrameHeader(AsBytes(std::string(4096, 'x'))).status().code(),
            StatusCode::kNotFound);
}

TEST(FrameTest, EveryFlippedBitIsFound) {
  std::string frame = EncodeFrame(ExampleFrameHeader(), "payload", 512, nullptr);
  for (size_t bit = 0; bit < (kFrameHeaderBytes + 7) * 8; ++bit) {
    const auto mask = static_cast<char>(1 << (bit % 8));
    frame[bit / 8] = static_cast<char>(frame[bit / 8] ^ mask);
    const Result<FrameHeader> header = DecodeFrameHeader(AsBytes(frame));
    if (bit < 64) {
      EXPECT_EQ(header.status().code(), StatusCode::kNotFound);
    } else if (bit < kFrameHeaderBytes * 8) {
      EXPECT_EQ(header.status().code(), StatusCode::kDataLoss);
    } else {
      ASSERT_TRUE(header.ok());
      const Status status = CheckFramePayload(*header, AsBytes(frame).subspan(128, 7));
      EXPECT_EQ(status.code(), StatusCode::kDataLoss);
      EXPECT_NE(status.message().find("frame payload checksum mismatch"), std::string::npos);
    }
    frame[bit / 8] = static_cast<char>(frame[bit / 8] ^ mask);
  }
}

TEST(FrameTest, IntactHeadersOfNewerVersionsAreNotDamage) {
  for (const auto& [at, value] : {std::pair{8, 14}, {10, 3}}) {
    std::string frame = EncodeFrame(ExampleFrameHeader(), "payload", 512, nullptr);
    frame[static_cast<size_t>(at)] = static_cast<char>(value);
    Seal(frame);
    EXPECT_EQ(DecodeFrameHeader(AsBytes(frame)).status().code(), StatusCode::kUnimplemented) << at;
  }
  std::string frame = EncodeFrame(ExampleFrameHeader(), "payload", 512, nullptr);
  StoreLittle(Data(frame) + 12, uint32_t{kFramePayloadBytesMax} + 1);
  Seal(frame);
  EXPECT_EQ(DecodeFrameHeader(AsBytes(frame)).status().code(), StatusCode::kDataLoss);
  // Bytes behind the last field are ignored.
  frame = EncodeFrame(ExampleFrameHeader(), "payload", 512, nullptr);
  frame[110] = 1;
  Seal(frame);
  EXPECT_TRUE(DecodeFrameHeader(AsBytes(frame)).ok());
}

// An epoch of 2^64 - 1 once made the next one 0, and everything saved in it void.
TEST(FrameTest, NumbersThatCouldOverflowAreDamage) {
  for (uint64_t FrameHeader::*number :
       {&FrameHeader::epoch, &FrameHeader::commit, &FrameHeader::previous_commit,
        &FrameHeader::durable_through}) {
    FrameHeader header = ExampleFrameHeader();
    header.*number = uint64_t{1} << 62;
    EXPECT_TRUE(DecodeFrameHeader(AsBytes(EncodeFrame(header, "", 512, nullptr))).ok());
    header.*number = UINT64_MAX;
    EXPECT_EQ(DecodeFrameHeader(AsBytes(EncodeFrame(header, "", 512, nullptr))).status().code(),
              StatusCode::kDataLoss);
  }
  for (uint64_t StoreSlot::*number :
       {&StoreSlot::sequence, &StoreSlot::epoch, &StoreSlot::durable_commit}) {
    StoreSlot slot = ExampleSlot();
    slot.*number = UINT64_MAX;
    EXPECT_EQ(DecodeSlot(EncodeSlot(slot)).status().code(), StatusCode::kDataLoss);
  }
}

TEST(SlotTest, RoundTripsAndFindsDamage) {
  const auto bytes = EncodeSlot(ExampleSlot());
  EXPECT_TRUE(DecodeSlot(bytes).value() == ExampleSlot());
  for (size_t at = 0; at < bytes.size(); ++at) {
    auto bad = bytes;
    bad[at] ^= std::byte{0x10};
    const StatusCode code = DecodeSlot(bad).status().code();
    EXPECT_EQ(code, at < 8 ? StatusCode::kUnimplemented : StatusCode::kDataLoss) << at;
  }
  for (size_t size = 0; size < bytes.size(); size += 97) {
    EXPECT_EQ(DecodeSlot(ConstBytes(bytes).first(size)).status().code(), StatusCode::kDataLoss);
  }
  EXPECT_EQ(DecodeSlot(AsBytes(std::string(kSlotBytes, '\0'))).status().code(),
            StatusCode::kDataLoss);
}

TEST(SlotTest, OtherFormatsAreRefusedWithWhatToDo) {
  const auto refusal = [](uint32_t version) {
    auto bytes = EncodeSlot(ExampleSlot());
    StoreLittle(bytes.data() + 8, version);
    StoreLittle(bytes.data() + 4092, Crc32c(ConstBytes(bytes).first(4092)));
    const Status status = DecodeSlot(bytes).status();
    EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
    return status.message();
  };
  EXPECT_EQ(refusal(6),
            "the store has format 6, and this version of Stepwell reads up to 5; open it with a "
            "newer version");
  for (const uint32_t version : {0U, 1U, 2U, 3U}) {
    EXPECT_EQ(refusal(version),
              StrCat("the store has format ", version,
                     ", of a version of Stepwell before its first release, and this one reads "
                     "formats from 4 on; export its steps as Orbax checkpoints with the version "
                     "that wrote it, and import those"));
  }
}

}  // namespace
}  // namespace stepwell::format
