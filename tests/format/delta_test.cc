// SPDX-License-Identifier: Apache-2.0
// Deltas give back every bit, take less where little changed, and never more than was allowed.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "format/codec.h"
#include "format/codec_delta.h"
#include "format/crc32c.h"
#include "format/dtype.h"
#include "format/endian.h"
#include "tests/prng.h"

namespace stepwell::format {
namespace {

using Bytes = std::vector<std::byte>;

constexpr DeltaType kTypes[] = {{1, false}, {1, true}, {2, false}, {2, true},
                                {4, false}, {4, true}, {8, false}, {8, true}};

// Empty: it did not fit.
Bytes Encode(DeltaType type, const Bytes& base, const Bytes& now, size_t room) {
  Bytes out(room, std::byte{0xA5});
  const Result<Payload> payload = EncodeDelta(type, base, now, out);
  EXPECT_TRUE(payload.ok()) << payload.status().ToString();
  if (!payload.ok()) return {};
  out.resize(payload->size_bytes);
  EXPECT_TRUE(out.empty() || CheckPayload(out, payload->crc).ok());
  return out;
}
Bytes Encode(DeltaType type, const Bytes& base, const Bytes& now) {
  return Encode(type, base, now, PayloadBytesMax(CodecId::kDelta, now.size()));
}

void ExpectGives(const Bytes& payload, const Bytes& base, const Bytes& now) {
  ASSERT_FALSE(payload.empty());
  Bytes chunk = base;
  const Status status = DecodePayload(CodecId::kDelta, payload, chunk);
  ASSERT_TRUE(status.ok()) << status.ToString();
  ASSERT_TRUE(chunk == now);
}

void ExpectRoundTrip(DeltaType type, const Bytes& base, const Bytes& now) {
  ExpectGives(Encode(type, base, now), base, now);
}

// Adds a small number, in either direction, to about `share` of the elements; they are taken as
// integers here, so that floats move by a few units in the last place, across zero and infinity,
// too.
Bytes Changed(Prng& prng, const Bytes& base, size_t item_bytes, double share) {
  Bytes now = base;
  const auto below = static_cast<uint64_t>(share * 1e6);
  for (size_t at = 0; at + item_bytes <= now.size(); at += item_bytes) {
    if (prng.Below(1000000) >= below) continue;
    uint64_t value = 0;
    std::memcpy(&value, &now[at], item_bytes);
    value += prng.Coin() ? 1 + prng.Below(3) : -(1 + prng.Below(prng.OneIn(9) ? 5000 : 2));
    std::memcpy(&now[at], &value, item_bytes);
  }
  return now;
}

TEST(DeltaTest, TypesAreThoseOfTheElements) {
  size_t sign_magnitude = 0;
  for (const DTypeInfo& info : AllDTypes()) {
    const DeltaType type = DeltaTypeOf(info);
    const bool is_complex = info.name.starts_with("complex");
    EXPECT_EQ(type.item_bytes, info.item_bytes / (is_complex ? 2 : 1)) << info.name;
    // The sign of -1 is the top bit, and the magnitude that of 1.
    const bool is_float = info.name.starts_with("float") || info.name.starts_with("bfloat");
    const bool no_top_sign = info.name == "float8_e8m0fnu" || info.name == "float4_e2m1fn";
    EXPECT_EQ(type.sign_magnitude, is_complex || (is_float && !no_top_sign)) << info.name;
    sign_magnitude += type.sign_magnitude ? 1 : 0;
  }
  EXPECT_EQ(sign_magnitude, 13u);
  EXPECT_EQ(DeltaTypeOf(*FindDType(DType::kBFloat16)), (DeltaType{2, true}));
  EXPECT_EQ(DeltaTypeOf(*FindDType(DType::kComplex128)), (DeltaType{8, true}));
  EXPECT_EQ(DeltaType(), (DeltaType{1, false}));
}

TEST(DeltaTest, OrderedIsItsOwnInverseAndKeepsTheOrder) {
  for (uint32_t pattern = 0; pattern < 0x10000; ++pattern) {
    const auto value = static_cast<uint16_t>(pattern);
    ASSERT_EQ(delta::Ordered(delta::Ordered(value)), value);
  }
  const float ascending[] = {
      -std::numeric_limits<float>::infinity(), -1.5F, -1e-40F, -0.0F, 0.0F, 1e-40F, 1.5F,
      std::numeric_limits<float>::infinity()};
  for (size_t i = 1; i < std::size(ascending); ++i) {
    const auto before = delta::Ordered(std::bit_cast<uint32_t>(ascending[i - 1]));
    const auto after = delta::Ordered(std::bit_cast<uint32_t>(ascending[i]));
    EXPECT_LT(static_cast<int32_t>(before), static_cast<int32_t>(after)) << ascending[i];
  }
  EXPECT_EQ((delta::Difference<uint32_t, true>(0, std::bit_cast<uint32_t>(-0.0F))), 1u);
}

TEST(DeltaTest, RoundTripsAtEveryLengthAndDensity) {
  Prng prng(1);
  for (const DeltaType type : kTypes) {
    for (const size_t size :
         {0u, 1u, 2u, 3u, 7u, 8u, 63u, 64u, 65u, 127u, 1000u, 4099u, 65536u, 150001u, 1048576u}) {
      for (const double share : {0.0, 0.001, 0.01, 0.14, 0.16, 0.5, 0.89, 0.91, 1.0}) {
        if (size > 70000 && share != 0.01 && share != 0.5 && share != 1) continue;
        Bytes base = prng.Bytes(size);
        // The low bits of equal neighbours: something that fits even where all elements change.
        if (prng.Coin()) std::fill(base.begin(), base.end(), std::byte{0x3F});
        const Bytes now = Changed(prng, base, type.item_bytes, share);
        const Bytes payload = Encode(type, base, now);
        if (payload.empty()) {
          EXPECT_TRUE(share > 0 && size > 0) << "an equal chunk does not fit";
          EXPECT_TRUE(type.item_bytes == 1 || size < 16) << size << " " << share;
          continue;
        }
        ExpectGives(payload, base, now);
        if (testing::Test::HasFatalFailure()) {
          FAIL() << int{type.item_bytes} << " " << size << " " << share;
        }
      }
    }
  }
}

TEST(DeltaTest, RoundTripsOfUnrelatedBytesThatFitAreExact) {
  Prng prng(2);
  for (const DeltaType type : kTypes) {
    for (int i = 0; i < 100; ++i) {
      const size_t size = prng.Below(3000);
      const Bytes base = prng.Bytes(size);
      Bytes now = prng.Bytes(size);
      for (std::byte& byte : now) byte &= static_cast<std::byte>(prng.OneIn(2) ? 0xFF : 0x11);
      const Bytes payload = Encode(type, base, now, size + 100);
      if (!payload.empty()) ExpectGives(payload, base, now);
    }
  }
}

// All pairs of patterns of one byte, and of the special ones of wider floats.
TEST(DeltaTest, EveryPatternBecomesEveryOther) {
  Bytes base;
  Bytes now;
  for (int from = 0; from < 256; ++from) {
    for (int to = 0; to < 256; ++to) {
      // Between them are what does not change, so that the delta fits.
      for (int i = 0; i < 8; ++i) {
        base.push_back(static_cast<std::byte>(from));
        now.push_back(static_cast<std::byte>(i == 3 ? to : from));
      }
    }
  }
  ExpectRoundTrip({1, false}, base, now);
  ExpectRoundTrip({1, true}, base, now);
}

template <typename T>
void SpecialsRoundTrip(std::vector<T> specials) {
  Bytes base;
  Bytes now;
  const auto append = [](Bytes* to, T value) {
    to->resize(to->size() + sizeof(T));
    StoreLittle(to->data() + to->size() - sizeof(T), value);
  };
  for (const size_t unchanged : {0u, 1u, 30u, 300u}) {
    for (const T from : specials) {
      for (const T to : specials) {
        for (size_t i = 0; i < unchanged; ++i) append(&base, from);
        for (size_t i = 0; i < unchanged; ++i) append(&now, from);
        append(&base, from);
        append(&now, to);
      }
    }
  }
  ExpectRoundTrip({sizeof(T), true}, base, now);
  ExpectRoundTrip({sizeof(T), false}, base, now);
}

// Zeros, the smallest and greatest subnormal and normal numbers, infinities, NaNs with payloads.
TEST(DeltaTest, SpecialValuesAreExact) {
  SpecialsRoundTrip<uint16_t>({0x0000, 0x8000, 0x0001, 0x8001, 0x007F, 0x0080, 0x8080, 0x7F7F,
                               0xFF7F, 0x7F80, 0xFF80, 0x7F81, 0xFFC0, 0x7FFF, 0xFFFF});
  SpecialsRoundTrip<uint32_t>({0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007FFFFF,
                               0x00800000, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000,
                               0x7F800001, 0xFFC12345, 0x7FFFFFFF, 0xFFFFFFFF});
  SpecialsRoundTrip<uint64_t>({0, 1, 0x8000000000000000, 0x8000000000000001, 0x000FFFFFFFFFFFFF,
                               0x0010000000000000, 0x7FEFFFFFFFFFFFFF, 0x7FF0000000000000,
                               0xFFF0000000000000, 0x7FF0000000000001, 0xFFF8000012345678,
                               0x7FFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF});
}

// An array of which a few rows change, an all-zero one that becomes random, and the reverse.
TEST(DeltaTest, ChangesInRunsRoundTrip) {
  Prng prng(3);
  for (const DeltaType type : kTypes) {
    const Bytes base = prng.Bytes(1200000);
    Bytes now = base;
    for (size_t row = 0; row < 40; ++row) {
      const size_t at = prng.Below(1200000 - 3000);
      for (size_t i = at; i < at + 3000; ++i) now[i] = static_cast<std::byte>(prng.Next());
    }
    const Bytes payload = Encode(type, base, now);
    ExpectGives(payload, base, now);
    EXPECT_LT(payload.size(), 170000u) << int{type.item_bytes};
    const Bytes zeros(base.size());
    const Bytes back = Encode(type, base, zeros, 2 * base.size());
    if (!back.empty()) ExpectGives(back, base, zeros);
    Bytes sevens = zeros;
    std::fill(sevens.begin(), sevens.end(), std::byte{7});
    ExpectRoundTrip(type, zeros, sevens);
    EXPECT_LT(Encode(type, zeros, sevens).size(), 2000u);
  }
}

// The bounds are below what was measured (bench/delta_bench.cc), not at it.
TEST(DeltaTest, TakesWhatChanged) {
  Prng prng(4);
  const Bytes base = prng.Bytes(1 << 20);
  const auto ratio = [&](double share) {
    const Bytes payload = Encode({2, true}, base, Changed(prng, base, 2, share));
    return static_cast<double>(base.size()) / static_cast<double>(payload.size());
  };
  EXPECT_GT(ratio(0), 20000);
  EXPECT_GT(ratio(0.0047), 150);
  EXPECT_GT(ratio(0.012), 70);
  EXPECT_GT(ratio(0.033), 30);
  EXPECT_GT(ratio(0.08), 15);
  EXPECT_GT(ratio(0.2), 7);
  EXPECT_GT(ratio(0.4), 4);
}

// Weights of floats that all moved a little, as an optimizer moves them.
TEST(DeltaTest, StepsOfDenseFloatsPay) {
  Prng prng(8);
  const auto uniform = [&] { return static_cast<float>(prng.Below(2001)) / 1000 - 1; };
  Bytes base(1 << 20);
  Bytes now(1 << 20);
  for (size_t at = 0; at < base.size(); at += sizeof(float)) {
    const float weight = 0.02F * (uniform() + uniform());
    StoreLittle(&base[at], weight);
    StoreLittle(&now[at], weight + 1e-4F * uniform());
  }
  const Bytes payload = Encode({4, true}, base, now);
  ExpectGives(payload, base, now);
  EXPECT_LT(payload.size(), base.size() * 4 / 5);
}

// Sections that do not fit any more are given up in the middle.
TEST(DeltaTest, DenseOnesWriteNothingBeyondTheirRoomEither) {
  Prng prng(9);
  for (const DeltaType type : kTypes) {
    for (const double share : {0.3, 0.7, 1.0}) {
      const Bytes base = prng.Bytes(40000);
      const Bytes now = Changed(prng, base, type.item_bytes, share);
      for (int i = 0; i < 50; ++i) {
        const size_t room = prng.Below(40000);
        Bytes memory(room + 64, std::byte{0xA5});
        const Result<Payload> payload =
            EncodeDelta(type, base, now, MutableBytes(memory).first(room));
        ASSERT_TRUE(payload.ok());
        ASSERT_LE(payload->size_bytes, room);
        EXPECT_TRUE(std::all_of(memory.begin() + static_cast<ptrdiff_t>(room), memory.end(),
                                [](std::byte byte) { return byte == std::byte{0xA5}; }));
        memory.resize(payload->size_bytes);
        if (!memory.empty()) ExpectGives(memory, base, now);
      }
    }
  }
}

TEST(DeltaTest, WritesNothingBeyondItsRoom) {
  Prng prng(5);
  for (const DeltaType type : kTypes) {
    const Bytes base = prng.Bytes(20000);
    const Bytes now = Changed(prng, base, type.item_bytes, 0.05);
    const size_t needed = Encode(type, base, now).size();
    ASSERT_GT(needed, 0u);
    for (const size_t room : {size_t{0}, size_t{1}, size_t{4}, size_t{6}, size_t{20}, needed / 2,
                              needed - 1, needed, needed + 1}) {
      Bytes memory(room + 64, std::byte{0xA5});
      const Result<Payload> payload =
          EncodeDelta(type, base, now, MutableBytes(memory).first(room));
      ASSERT_TRUE(payload.ok());
      EXPECT_LE(payload->size_bytes, room);
      EXPECT_EQ(payload->size_bytes == 0, room < needed) << room << " of " << needed;
      EXPECT_TRUE(std::all_of(memory.begin() + static_cast<ptrdiff_t>(room), memory.end(),
                              [](std::byte byte) { return byte == std::byte{0xA5}; }));
    }
  }
}

TEST(DeltaTest, UnrelatedBytesDoNotFit) {
  Prng prng(6);
  for (const DeltaType type : kTypes) {
    const Bytes base = prng.Bytes(1 << 20);
    EXPECT_TRUE(Encode(type, base, prng.Bytes(1 << 20), 1 << 20).empty());
  }
}

TEST(DeltaTest, AppliedTwiceFromOneBaseIsTheSame) {
  Prng prng(7);
  const Bytes base = prng.Bytes(100000);
  const Bytes now = Changed(prng, base, 4, 0.1);
  const Bytes payload = Encode({4, true}, base, now);
  ExpectGives(payload, base, now);
  ExpectGives(payload, base, now);
  EXPECT_EQ(payload, Encode({4, true}, base, now));
}

TEST(DeltaTest, BadArgumentsAreRefused) {
  const Bytes bytes(100);
  Bytes out(1000);
  const auto refused = [&](DeltaType type, ConstBytes base, ConstBytes now) {
    return EncodeDelta(type, base, now, out).status().code() == StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused({4, true}, bytes, ConstBytes(bytes).first(96)));
  for (const int item_bytes : {0, 3, 5, 16, 255}) {
    EXPECT_TRUE(refused({static_cast<uint8_t>(item_bytes), true}, bytes, bytes)) << item_bytes;
  }
  EXPECT_EQ(EncodePayload(CodecId::kDelta, 4, bytes, out).status().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace stepwell::format
