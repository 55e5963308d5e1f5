// SPDX-License-Identifier: Apache-2.0
// Applies deltas in place. Nothing of a stream is trusted: every number is compared with what is
// left of the stream and of the chunk, and the memory that decoding takes is bounded by that of one
// span.
#include <zstd.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "format/codec_delta.h"

namespace stepwell::format::delta {
namespace {

Status BadDelta(std::string_view what) { return DataLossError(StrCat("bad delta: ", what)); }

struct FreeDecoder {
  void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
};

class Reader {
 public:
  explicit Reader(ConstBytes stream) : left_(stream) {}
  bool empty() const { return left_.empty(); }

  template <typename U>
  Status Little(U* value) {
    STEPWELL_ASSIGN_OR_RETURN(const ConstBytes bytes, Bytes(sizeof(*value)));
    *value = LoadLittle<U>(bytes.data());
    return OkStatus();
  }
  Result<ConstBytes> Bytes(size_t count) {
    if (left_.size() < count) return BadDelta("cut short");
    const ConstBytes bytes = left_.first(count);
    left_ = left_.subspan(count);
    return bytes;
  }
  // Fills all of `out`.
  Status Section(MutableBytes out);

 private:
  Status ZstdSection(MutableBytes out);

  ConstBytes left_;
  std::unique_ptr<ZSTD_DCtx, FreeDecoder> context_;
};

Status Reader::Section(MutableBytes out) {
  if (out.empty()) return OkStatus();
  uint8_t kind = 0;
  STEPWELL_RETURN_IF_ERROR(Little(&kind));
  switch (static_cast<delta::Section>(kind)) {
    case Section::kRaw: {
      STEPWELL_ASSIGN_OR_RETURN(const ConstBytes bytes, Bytes(out.size()));
      std::memcpy(out.data(), bytes.data(), out.size());
      return OkStatus();
    }
    case Section::kConstant: {
      uint8_t value = 0;
      STEPWELL_RETURN_IF_ERROR(Little(&value));
      std::memset(out.data(), value, out.size());
      return OkStatus();
    }
    case Section::kZstd:
      return ZstdSection(out);
  }
  return BadDelta(StrCat("section of kind ", int{kind}));
}

Status Reader::ZstdSection(MutableBytes out) {
  uint32_t frame_bytes = 0;
  STEPWELL_RETURN_IF_ERROR(Little(&frame_bytes));
  STEPWELL_ASSIGN_OR_RETURN(const ConstBytes frame, Bytes(frame_bytes));
  // Neither a skippable frame nor one of the formats before version 1, which libzstd may know; one
  // frame and nothing behind it.
  if (frame.size() < sizeof(kZstdMagic) || LoadLittle<uint32_t>(frame.data()) != kZstdMagic ||
      ZSTD_findFrameCompressedSize(frame.data(), frame.size()) != frame.size()) {
    return BadDelta("no zstd frame");
  }
  if (ZSTD_getFrameContentSize(frame.data(), frame.size()) != out.size()) {
    return BadDelta("a zstd frame of another size");
  }
  if (context_ == nullptr) context_.reset(ZSTD_createDCtx());
  if (context_ == nullptr) return ResourceExhaustedError("zstd: no memory for a decoder");
  const size_t size =
      ZSTD_decompressDCtx(context_.get(), out.data(), out.size(), frame.data(), frame.size());
  if (ZSTD_isError(size) != 0) return BadDelta(ZSTD_getErrorName(size));
  return size == out.size() ? OkStatus() : BadDelta("a zstd frame of another size");
}

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

template <typename T, bool kSignMagnitude>
class Decoder {
 public:
  // `items` is the base.
  Decoder(std::byte* items, size_t count, Reader* in) : items_(items), count_(count), in_(in) {
    const size_t span_max = std::min(count, kSpanItemsMax);
    bytes_ = std::make_unique_for_overwrite<std::byte[]>(span_max);
    values_ = std::make_unique_for_overwrite<T[]>(span_max);
  }

  Status Run() {
    for (size_t at = 0; at < count_;) {
      STEPWELL_ASSIGN_OR_RETURN(const SpanHead head, ReadHead(in_, count_ - at));
      STEPWELL_RETURN_IF_ERROR(ApplySpan(head, items_ + at * sizeof(T)));
      at += head.items;
    }
    return OkStatus();
  }

 private:
  Status ApplySpan(const SpanHead& head, std::byte* span) {
    switch (head.method) {
      case Method::kGaps:
        return ApplyGaps(head, span);
      case Method::kBitmap:
        return ApplyBitmap(head, span);
      case Method::kAll:
        STEPWELL_RETURN_IF_ERROR(ReadValues(head, 0));
        for (size_t i = 0; i < head.items; ++i) Apply(span, i, values_[i]);
        return OkStatus();
    }
    return OkStatus();
  }

  static void Apply(std::byte* span, size_t index, T zigzag) {
    StoreLittle(span + index * sizeof(T),
                Applied<T, kSignMagnitude>(ItemAt<T>(span, index), zigzag));
  }

  Status ApplyGaps(const SpanHead& head, std::byte* span) {
    uint32_t gap_bytes = 0;
    STEPWELL_RETURN_IF_ERROR(in_->Little(&gap_bytes));
    // Each stands for one element at least.
    if (gap_bytes > head.items) return BadDelta("more gaps than elements");
    const auto gaps = std::make_unique_for_overwrite<std::byte[]>(gap_bytes);
    STEPWELL_RETURN_IF_ERROR(in_->Section({gaps.get(), gap_bytes}));
    STEPWELL_RETURN_IF_ERROR(ReadValues(head, 1));
    size_t next = 0;
    size_t applied = 0;
    for (size_t i = 0; i < gap_bytes; ++i) {
      const auto gap = std::to_integer<size_t>(gaps[i]);
      next += gap;
      if (gap == kGapGoesOn) continue;
      if (next >= head.items || applied == head.changed) return BadDelta("gaps go too far");
      Apply(span, next, values_[applied]);
      ++next;
      ++applied;
    }
    return applied == head.changed ? OkStatus() : BadDelta("fewer gaps than changes");
  }

  Status ApplyBitmap(const SpanHead& head, std::byte* span) {
    const size_t words = (size_t{head.items} + 63) / 64;
    const auto bitmap = std::make_unique<uint64_t[]>(words);
    STEPWELL_RETURN_IF_ERROR(
        in_->Section({reinterpret_cast<std::byte*>(bitmap.get()), (size_t{head.items} + 7) / 8}));
    if (head.items % 64 != 0 && bitmap[words - 1] >> (head.items % 64) != 0) {
      return BadDelta("a bitmap with bits behind its end");
    }
    size_t changed = 0;
    for (size_t i = 0; i < words; ++i) changed += static_cast<size_t>(std::popcount(bitmap[i]));
    if (changed != head.changed) return BadDelta("a bitmap of another number of changes");
    STEPWELL_RETURN_IF_ERROR(ReadValues(head, 1));
    const T* value = values_.get();
    for (size_t i = 0; i < words; ++i) {
      for (uint64_t word = bitmap[i]; word != 0; word &= word - 1) {
        Apply(span, i * 64 + static_cast<size_t>(std::countr_zero(word)), *value++);
      }
    }
    return OkStatus();
  }

  // Fills values_ with as many differences as elements changed.
  Status ReadValues(const SpanHead& head, T smallest) {
    const size_t count = head.changed;
    if (count == 0) return OkStatus();
    if (head.field_bits == 0) return ReadPlanes(values_.get(), count);
    const unsigned bits = head.field_bits;
    const size_t field_bytes = FieldBytes(count, bits);
    STEPWELL_RETURN_IF_ERROR(in_->Section({bytes_.get(), field_bytes}));
    const T all_ones = static_cast<T>((1U << bits) - 1);
    size_t exceptions = 0;
    const size_t of_a_byte = 8 / bits;
    for (size_t i = 0; i < count; ++i) {
      const auto packed = std::to_integer<unsigned>(bytes_[i / of_a_byte]);
      const T field = static_cast<T>((packed >> (i % of_a_byte * bits)) & all_ones);
      exceptions += field == all_ones ? 1 : 0;
      values_[i] = field;
    }
    uint32_t stored = 0;
    STEPWELL_RETURN_IF_ERROR(in_->Little(&stored));
    if (stored != exceptions) return BadDelta("another number of exceptions");
    const auto rests = std::make_unique_for_overwrite<T[]>(exceptions);
    STEPWELL_RETURN_IF_ERROR(ReadPlanes(rests.get(), exceptions));
    const T* rest = rests.get();
    for (size_t i = 0; i < count; ++i) {
      const T field = values_[i];
      if (field == all_ones) {
        values_[i] = static_cast<T>(field + smallest + *rest++);
      } else {
        values_[i] = static_cast<T>(field + smallest);
      }
    }
    return OkStatus();
  }

  Status ReadPlanes(T* values, size_t count) {
    for (size_t plane = 0; plane < sizeof(T); ++plane) {
      STEPWELL_RETURN_IF_ERROR(in_->Section({bytes_.get(), count}));
      if (plane == 0) {
        for (size_t i = 0; i < count; ++i) values[i] = std::to_integer<T>(bytes_[i]);
      } else {
        for (size_t i = 0; i < count; ++i) {
          values[i] = static_cast<T>(values[i] | std::to_integer<T>(bytes_[i]) << (8 * plane));
        }
      }
    }
    return OkStatus();
  }

  std::byte* const items_;
  const size_t count_;
  Reader* const in_;
  std::unique_ptr<std::byte[]> bytes_;  // of one section
  std::unique_ptr<T[]> values_;
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
