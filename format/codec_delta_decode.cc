// SPDX-License-Identifier: Apache-2.0
// Applies deltas in place. Nothing of a stream is trusted: every number is compared with what is
// left of the stream and of the chunk, and the memory that decoding takes is bounded by that of one
// span.
#include <algorithm>
#include <bit>

#include "format/codec_delta.h"

namespace stepwell::format::delta {
namespace {

struct SpanHead {
  Method method = Method::kGaps;
  uint8_t field_bits = 0;
  uint32_t items = 0;
  uint32_t changed = 0;
};

Result<SpanHead> ReadHead(Reader* in, size_t items_left) {
  SpanHead head;
  STEPWELL_RETURN_IF_ERROR(in->Little(&head.method));
  STEPWELL_RETURN_IF_ERROR(in->Little(&head.field_bits));
  STEPWELL_RETURN_IF_ERROR(in->Little(&head.items));
  STEPWELL_RETURN_IF_ERROR(in->Little(&head.changed));
  if (head.method > Method::kAll) {
    return BadDelta(StrCat("method ", static_cast<int>(head.method)));
  }
  if (std::find(std::begin(kFieldBits), std::end(kFieldBits), head.field_bits) ==
      std::end(kFieldBits)) {
    return BadDelta(StrCat("fields of ", int{head.field_bits}, " bits"));
  }
  if (head.items == 0 || head.items > std::min(items_left, kSpanItemsMax)) {
    return BadDelta(StrCat("a span of ", head.items, " elements, ", items_left, " are left"));
  }
  const bool all = head.method == Method::kAll;
  if (head.changed > head.items || (all && head.changed != head.items)) {
    return BadDelta(StrCat(head.changed, " changed of ", head.items, " elements"));
  }
  return head;
}

// Unpacks fields to a byte each; `fields` has room for whole bytes of them.
void UnpackFields(const std::byte* packed, size_t bytes, unsigned bits, std::byte* fields) {
  if (bits == 4) {
    for (size_t i = 0; i < bytes; ++i) {
      const auto byte = std::to_integer<unsigned>(packed[i]);
      StoreLittle(fields + 2 * i, static_cast<uint16_t>((byte | byte << 4) & 0x0F0F));
    }
  } else {
    for (size_t i = 0; i < bytes; ++i) {
      const auto byte = std::to_integer<uint32_t>(packed[i]);
      StoreLittle(fields + 4 * i, (byte | byte << 6 | byte << 12 | byte << 18) & 0x03030303u);
    }
  }
}

// Decodes the differences of one span after the other.
template <typename T>
class ValueReader {
 public:
  // For spans of up to `items`.
  ValueReader(size_t items, Reader* in) : in_(in) {
    const size_t padded = WordCount(items) * kWordBits;
    values_ = std::make_unique_for_overwrite<T[]>(padded + 1);
    bytes_ = std::make_unique_for_overwrite<std::byte[]>(padded);
  }

  // Returns as many differences as elements changed, and a zero, valid until the next call.
  Result<const T*> Read(const SpanHead& head) {
    const size_t count = head.changed;
    if (count > 0 && head.field_bits > 0) {
      const T smallest = head.method == Method::kAll ? 0 : 1;
      STEPWELL_RETURN_IF_ERROR(ReadFields(count, head.field_bits, smallest));
    } else if (count > 0) {
      STEPWELL_RETURN_IF_ERROR(ReadPlanes(values_.get(), count));
    }
    values_[count] = 0;
    return values_.get();
  }

 private:
  Status ReadFields(size_t count, unsigned bits, T smallest) {
    const size_t padded = WordCount(count) * kWordBits;
    if (fields_ == nullptr || fields_bytes_ < padded) {
      fields_ = std::make_unique_for_overwrite<std::byte[]>(padded);
      fields_bytes_ = padded;
    }
    std::byte* const fields = fields_.get();
    if (bits == 8) {
      STEPWELL_RETURN_IF_ERROR(in_->Section({fields, count}));
    } else {
      const size_t bytes = FieldBytes(count, bits);
      STEPWELL_RETURN_IF_ERROR(in_->Section({bytes_.get(), bytes}));
      UnpackFields(bytes_.get(), bytes, bits, fields);
    }
    std::memset(fields + count, 0, padded - count);
    T* const values = values_.get();
    for (size_t i = 0; i < count; ++i) {
      values[i] = static_cast<T>(std::to_integer<T>(fields[i]) + smallest);
    }
    return ReadExceptions(count, AllOnes(bits));
  }

  Status ReadExceptions(size_t count, uint8_t all_ones) {
    uint32_t exceptions = 0;
    STEPWELL_RETURN_IF_ERROR(in_->Little(&exceptions));
    if (exceptions > count) return BadDelta("more exceptions than changes");
    const auto rests = std::make_unique_for_overwrite<T[]>(exceptions);
    STEPWELL_RETURN_IF_ERROR(ReadPlanes(rests.get(), exceptions));
    T* const values = values_.get();
    size_t added = 0;
    for (size_t first = 0; first < count; first += kWordBits) {
      uint64_t word = EqualWord(fields_.get() + first, all_ones);
      if (CountBits(word) > exceptions - added) return BadDelta("more exceptions than it says");
      for (; word != 0; word &= word - 1) {
        T& value = values[first + static_cast<size_t>(std::countr_zero(word))];
        value = static_cast<T>(value + rests[added++]);
      }
    }
    return added == exceptions ? OkStatus() : BadDelta("fewer exceptions than it says");
  }

  Status ReadPlanes(T* values, size_t count) {
    const std::byte* const bytes = bytes_.get();
    for (size_t plane = 0; plane < sizeof(T); ++plane) {
      STEPWELL_RETURN_IF_ERROR(in_->Section({bytes_.get(), count}));
      for (size_t i = 0; plane == 0 && i < count; ++i) values[i] = std::to_integer<T>(bytes[i]);
      for (size_t i = 0; plane > 0 && i < count; ++i) {
        values[i] = static_cast<T>(values[i] | std::to_integer<T>(bytes[i]) << (8 * plane));
      }
    }
    return OkStatus();
  }

  Reader* const in_;
  std::unique_ptr<T[]> values_;
  std::unique_ptr<std::byte[]> bytes_;   // of one section
  std::unique_ptr<std::byte[]> fields_;  // a byte each
  size_t fields_bytes_ = 0;
};

template <typename T, bool kSignMagnitude>
void Apply(std::byte* items, size_t index, T zigzag) {
  StoreLittle(items + index * sizeof(T),
              Applied<T, kSignMagnitude>(ItemAt<T>(items, index), zigzag));
}

// Applies the values to the elements whose bits are set, and returns those behind them.
template <typename T, bool kSignMagnitude>
const T* ApplyWord(uint64_t word, size_t count, std::byte* items, const T* values) {
  constexpr unsigned kManyBits = 20;  // from here on looking at each bit is faster
  if (CountBits(word) < kManyBits) {
    for (; word != 0; word &= word - 1) {
      Apply<T, kSignMagnitude>(items, static_cast<size_t>(std::countr_zero(word)), *values++);
    }
    return values;
  }
  T expanded[kWordBits];
  for (size_t i = 0; i < count; ++i) {
    const T bit = static_cast<T>(word >> i & 1);
    expanded[i] = static_cast<T>(*values & static_cast<T>(-bit));
    values += bit;
  }
  for (size_t i = 0; i < count; ++i) Apply<T, kSignMagnitude>(items, i, expanded[i]);
  return values;
}

template <typename T, bool kSignMagnitude>
class Decoder {
 public:
  // `items` is the base.
  Decoder(std::byte* items, size_t count, Reader* in)
      : items_(items), count_(count), in_(in), values_(std::min(count, kSpanItemsMax), in) {}

  Status Run() {
    for (size_t at = 0; at < count_;) {
      STEPWELL_ASSIGN_OR_RETURN(const SpanHead head, ReadHead(in_, count_ - at));
      STEPWELL_RETURN_IF_ERROR(ApplySpan(head, items_ + at * sizeof(T)));
      at += head.items;
    }
    return OkStatus();
  }

 private:
  Status ApplySpan(const SpanHead& head, std::byte* items) {
    if (head.method == Method::kGaps) return ApplyGaps(head, items);
    if (head.method == Method::kBitmap) return ApplyBitmap(head, items);
    STEPWELL_ASSIGN_OR_RETURN(const T* const values, values_.Read(head));
    for (size_t i = 0; i < head.items; ++i) Apply<T, kSignMagnitude>(items, i, values[i]);
    return OkStatus();
  }

  Status ApplyGaps(const SpanHead& head, std::byte* items) {
    uint32_t gap_bytes = 0;
    STEPWELL_RETURN_IF_ERROR(in_->Little(&gap_bytes));
    // Each stands for one element at least.
    if (gap_bytes > head.items) return BadDelta("more gaps than elements");
    const auto gaps = std::make_unique_for_overwrite<std::byte[]>(gap_bytes);
    STEPWELL_RETURN_IF_ERROR(in_->Section({gaps.get(), gap_bytes}));
    STEPWELL_ASSIGN_OR_RETURN(const T* const values, values_.Read(head));
    size_t next = 0;
    size_t applied = 0;
    for (size_t i = 0; i < gap_bytes; ++i) {
      const auto gap = std::to_integer<size_t>(gaps[i]);
      next += gap;
      if (gap == kGapGoesOn) continue;
      if (next >= head.items || applied == head.changed) return BadDelta("gaps go too far");
      Apply<T, kSignMagnitude>(items, next, values[applied]);
      ++next;
      ++applied;
    }
    return applied == head.changed ? OkStatus() : BadDelta("fewer gaps than changes");
  }

  Status ApplyBitmap(const SpanHead& head, std::byte* items) {
    const size_t words = WordCount(head.items);
    const auto bitmap = std::make_unique<uint64_t[]>(words);
    STEPWELL_RETURN_IF_ERROR(
        in_->Section({reinterpret_cast<std::byte*>(bitmap.get()), (size_t{head.items} + 7) / 8}));
    const size_t in_last = head.items % kWordBits;
    if (in_last != 0 && bitmap[words - 1] >> in_last != 0) {
      return BadDelta("a bitmap with bits behind its end");
    }
    if (CountBits(bitmap.get(), words) != head.changed) {
      return BadDelta("a bitmap of another number of changes");
    }
    STEPWELL_ASSIGN_OR_RETURN(const T* values, values_.Read(head));
    for (size_t i = 0; i < words; ++i) {
      const size_t first = i * kWordBits;
      values = ApplyWord<T, kSignMagnitude>(bitmap[i], std::min(kWordBits, head.items - first),
                                            items + first * sizeof(T), values);
    }
    return OkStatus();
  }

  std::byte* const items_;
  const size_t count_;
  Reader* const in_;
  ValueReader<T> values_;
};

template <typename T>
Status DecodeItems(bool sign_magnitude, Reader* in, MutableBytes out) {
  const size_t items = out.size() / sizeof(T);
  const MutableBytes tail = out.subspan(items * sizeof(T));
  STEPWELL_ASSIGN_OR_RETURN(const ConstBytes bytes, in->Bytes(tail.size()));
  if (!tail.empty()) std::memcpy(tail.data(), bytes.data(), tail.size());
  const Status status = sign_magnitude ? Decoder<T, true>(out.data(), items, in).Run()
                                       : Decoder<T, false>(out.data(), items, in).Run();
  STEPWELL_RETURN_IF_ERROR(status);
  return in->empty() ? OkStatus() : BadDelta("bytes behind its end");
}

}  // namespace
}  // namespace stepwell::format::delta

namespace stepwell::format::internal {

Status DeltaDecode(ConstBytes stream, MutableBytes out) {
  delta::Reader in(stream);
  uint8_t item_bytes = 0;
  uint8_t sign_magnitude = 0;
  STEPWELL_RETURN_IF_ERROR(in.Little(&item_bytes));
  STEPWELL_RETURN_IF_ERROR(in.Little(&sign_magnitude));
  if (sign_magnitude > 1) return delta::BadDelta(StrCat("sign ", int{sign_magnitude}));
  switch (item_bytes) {
    case 1:
      return delta::DecodeItems<uint8_t>(sign_magnitude != 0, &in, out);
    case 2:
      return delta::DecodeItems<uint16_t>(sign_magnitude != 0, &in, out);
    case 4:
      return delta::DecodeItems<uint32_t>(sign_magnitude != 0, &in, out);
    case 8:
      return delta::DecodeItems<uint64_t>(sign_magnitude != 0, &in, out);
    default:
      return delta::BadDelta(StrCat("items of ", int{item_bytes}, " bytes"));
  }
}

}  // namespace stepwell::format::internal
