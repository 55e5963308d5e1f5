// SPDX-License-Identifier: Apache-2.0
// Internals of the delta codec, for codec_delta*.cc and their tests. FORMAT.md, section 7,
// "Deltas", has the stream.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <type_traits>

#include "format/codec.h"
#include "format/endian.h"
#include "io/bytes.h"

namespace stepwell::format::delta {

// Tells which elements of a span changed.
enum class Method : uint8_t { kGaps = 0, kBitmap = 1, kAll = 2 };
// Holds bytes whose number is known from elsewhere.
enum class SectionKind : uint8_t { kRaw = 0, kZstd = 1, kConstant = 2 };

// So far a delta may be longer than the chunk, so that tiny chunks have deltas, too.
inline constexpr size_t kOverheadBytesMax = 64;
inline constexpr uint8_t kGapGoesOn = 255;  // that many unchanged elements, and more

// Decoders refuse longer spans, so that what they need besides `out` is bounded.
inline constexpr size_t kSpanItemsMax = size_t{1} << 19;
// Spans with many changes are short: what coding them needs stays in the second-level cache.
inline constexpr size_t kDenseSpanItems = size_t{1} << 16;
// Up to this share of changed elements gaps are shorter than a bitmap, and faster.
constexpr bool FewChanged(size_t changed, size_t items) { return changed * 20 <= items * 3; }
inline constexpr size_t kWordBits = 64;
static_assert(kSpanItemsMax % kDenseSpanItems == 0 && kDenseSpanItems % kWordBits == 0);

// Differences are stored as they are, in byte planes, or as fields of a few bits. A field holds
// the difference less the smallest one that there can be; all ones say that the rest is in the
// planes of the exceptions.
inline constexpr uint8_t kFieldBits[] = {0, 2, 4, 8};
constexpr size_t FieldBytes(size_t count, unsigned bits) { return (count * bits + 7) / 8; }
constexpr uint8_t AllOnes(unsigned bits) { return static_cast<uint8_t>((1U << bits) - 1); }

// ---- Elements ----

// Returns the pattern of a sign-magnitude number as the two's complement integer with the same
// order, and the reverse: the map is its own inverse. Every pattern has its own integer: -0 is -1,
// +0 is 0, and NaNs lie beyond the infinities.
template <typename T>
constexpr T Ordered(T pattern) {
  using Signed = std::make_signed_t<T>;
  constexpr int kSignShift = std::numeric_limits<T>::digits - 1;
  constexpr T kMagnitude = std::numeric_limits<T>::max() >> 1;
  return static_cast<T>(pattern ^
                        (static_cast<T>(static_cast<Signed>(pattern) >> kSignShift) & kMagnitude));
}

// Returns the difference modulo 2^w as an unsigned number that is small where the difference is
// near zero, from below or above.
template <typename T, bool kSignMagnitude>
constexpr T Difference(T base, T now) {
  using Signed = std::make_signed_t<T>;
  constexpr int kSignShift = std::numeric_limits<T>::digits - 1;
  const T difference =
      kSignMagnitude ? static_cast<T>(Ordered(now) - Ordered(base)) : static_cast<T>(now - base);
  return static_cast<T>(static_cast<T>(difference << 1) ^
                        static_cast<T>(static_cast<Signed>(difference) >> kSignShift));
}
template <typename T, bool kSignMagnitude>
constexpr T Applied(T base, T zigzag) {
  const T difference = static_cast<T>(static_cast<T>(zigzag >> 1) ^ static_cast<T>(-(zigzag & 1)));
  return kSignMagnitude ? Ordered(static_cast<T>(Ordered(base) + difference))
                        : static_cast<T>(base + difference);
}

template <typename T>
T ItemAt(const std::byte* items, size_t index) {
  return LoadLittle<T>(items + index * sizeof(T));
}

// ---- Words: a bit for each of 64 elements, the first lowest ----

constexpr size_t WordCount(size_t items) { return (items + kWordBits - 1) / kWordBits; }

// `flags` are 0 or 1.
inline uint64_t WordOf(const uint8_t (&flags)[kWordBits]) {
  uint64_t word = 0;
  for (size_t i = 0; i < kWordBits; i += 8) {
    uint64_t eight;
    std::memcpy(&eight, flags + i, sizeof(eight));
    word |= (eight * 0x0102040810204080u >> 56) << i;
  }
  return word;
}

// Returns which of 64 bytes are `value`.
inline uint64_t EqualWord(const std::byte* bytes, uint8_t value) {
  uint8_t flags[kWordBits];
  for (size_t i = 0; i < kWordBits; ++i) flags[i] = bytes[i] == std::byte{value} ? 1 : 0;
  return WordOf(flags);
}

// Portable: the instruction for it is no part of what x86-64 has at least.
inline unsigned CountBits(uint64_t word) {
  word -= word >> 1 & 0x5555555555555555u;
  word = (word & 0x3333333333333333u) + (word >> 2 & 0x3333333333333333u);
  word = (word + (word >> 4)) & 0x0F0F0F0F0F0F0F0Fu;
  return static_cast<unsigned>(word * 0x0101010101010101u >> 56);
}
size_t CountBits(const uint64_t* words, size_t count);

// Sets bit i of `words` where element i differs, others are zero; WordCount(items). Returns how
// many differ. T: uint8_t to uint64_t.
template <typename T>
size_t ChangedBits(const std::byte* base, const std::byte* now, size_t items, uint64_t* words);

// A guess from a few hundred elements.
struct Estimate {
  size_t bytes = 0;  // what a delta takes at least
  bool dense = false;
};
// Returns zeros for chunks of so few elements that encoding them is as cheap.
template <typename T, bool kSignMagnitude>
Estimate EstimateDelta(const std::byte* base, const std::byte* now, size_t items);

// ---- Streams ----

// Appends to a span of fixed size. Once something does not fit it is full, and all else is dropped.
class Writer {
 public:
  explicit Writer(MutableBytes out);
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  bool full() const { return full_; }
  size_t size() const { return size_; }

  template <typename U>
  void Little(U value) {
    std::byte bytes[sizeof(value)];
    StoreLittle(bytes, value);
    Bytes(bytes);
  }
  void Bytes(ConstBytes bytes);
  void Section(ConstBytes bytes);

 private:
  bool ZstdSection(ConstBytes bytes);

  const MutableBytes out_;
  size_t size_ = 0;
  bool full_ = false;
  struct Context;
  std::unique_ptr<Context> context_;
};

// Takes from a stream that is not trusted; what is not there is kDataLoss.
class Reader {
 public:
  explicit Reader(ConstBytes stream);
  ~Reader();
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  bool empty() const { return left_.empty(); }

  template <typename U>
  Status Little(U* value) {
    STEPWELL_ASSIGN_OR_RETURN(const ConstBytes bytes, Bytes(sizeof(*value)));
    *value = LoadLittle<U>(bytes.data());
    return OkStatus();
  }
  Result<ConstBytes> Bytes(size_t count);
  // Fills all of `out`.
  Status Section(MutableBytes out);

 private:
  Status ZstdSection(MutableBytes out);

  ConstBytes left_;
  struct Context;
  std::unique_ptr<Context> context_;
};

Status BadDelta(std::string_view what);

}  // namespace stepwell::format::delta
