// SPDX-License-Identifier: Apache-2.0
// Complete Cap'n Proto messages of one segment, written and read without copies. This is the border
// at which Cap'n Proto's exceptions end: nothing that includes this header lets one out. Below it
// the records inside messages (records_value.cc), of which the payloads of frames consist
// (records_frame.cc).
//
// A message is the standard stream framing: uint32 0 (one segment), uint32 words, then the words.
#pragma once

#include <capnp/message.h>
#include <kj/exception.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "format/endian.h"
#include "format/records.h"
#include "format/schema/record.capnp.h"
#include "io/bytes.h"
#include "io/result.h"

namespace stepwell::format::internal {

inline constexpr size_t kWordBytes = sizeof(capnp::word);
inline constexpr int kNestingMax = 16;

// ---- sizes, in words, of what a message holds ------------------------------------------------
inline constexpr size_t TextWords(size_t bytes) { return (bytes + 1 + 7) / 8; }
inline constexpr size_t DataWords(size_t bytes) { return (bytes + 7) / 8; }
template <typename Schema>
constexpr size_t StructWords() {
  return Schema::_capnpPrivate::dataWordSize + Schema::_capnpPrivate::pointerCount;
}
// Without what the elements point to. An empty list has its tag, too.
template <typename Schema>
constexpr size_t ListWords(size_t count) {
  return 1 + count * StructWords<Schema>();
}

// ---- text and data -----------------------------------------------------------------------------
inline capnp::Text::Reader ToText(const std::string& text) {
  return capnp::Text::Reader(text.c_str(), text.size());
}
inline capnp::Data::Reader ToData(std::string_view bytes) {
  return capnp::Data::Reader(reinterpret_cast<const kj::byte*>(bytes.data()), bytes.size());
}
inline std::string FromText(capnp::Text::Reader text) { return {text.begin(), text.size()}; }
inline std::string FromData(capnp::Data::Reader data) {
  return {reinterpret_cast<const char*>(data.begin()), data.size()};
}

// Thrown and caught within EncodeMessage and DecodeMessage.
struct BadMessage {
  std::string what;
};
inline void Require(bool condition, const char* what) {
  if (!condition) [[unlikely]]
    throw BadMessage{what};
}

inline Status MessageError(std::string_view kind, std::string_view what) {
  return DataLossError(StrCat("bad ", kind, ": ", what));
}

// `words` is an upper bound of the message's size with its root (StructWords of the root + 1).
// fill(builder) sets the fields.
template <typename Schema, typename Fill>
std::string EncodeMessage(size_t words, const Fill& fill) {
  // The bound keeps the string on the heap, where it is aligned for words.
  std::string out(std::max<size_t>(words + 1, 4) * kWordBytes, '\0');
  auto* begin = reinterpret_cast<capnp::word*>(out.data());
  size_t used = 0;
  {
    capnp::FlatMessageBuilder builder(
        kj::ArrayPtr<capnp::word>(begin + 1, out.size() / kWordBytes - 1));
    fill(builder.initRoot<Schema>());
    used = builder.getSegmentsForOutput()[0].size();
  }
  StoreLittle(reinterpret_cast<std::byte*>(out.data()), uint32_t{0});
  StoreLittle(reinterpret_cast<std::byte*>(out.data()) + 4, static_cast<uint32_t>(used));
  out.resize((used + 1) * kWordBytes);
  return out;
}

// The words of a framed message, copied only where they are not aligned.
class MessageWords {
 public:
  explicit MessageWords(ConstBytes bytes) : bytes_(bytes) {
    if (bytes.size() < 2 * kWordBytes || bytes.size() % kWordBytes != 0) return;  // words() throws
    const std::byte* data = bytes.data();
    if (reinterpret_cast<uintptr_t>(data) % kWordBytes != 0) {
      if (bytes.size() <= sizeof(scratch_)) {
        std::memcpy(scratch_, data, bytes.size());
        data = scratch_;
      } else {
        heap_ = std::make_unique<capnp::word[]>(bytes.size() / kWordBytes);
        std::memcpy(static_cast<void*>(heap_.get()), data, bytes.size());
        data = reinterpret_cast<const std::byte*>(heap_.get());
      }
    }
    begin_ = reinterpret_cast<const capnp::word*>(data) + 1;
  }
  // Throws BadMessage when the frame is not one segment of exactly this size.
  kj::ArrayPtr<const capnp::word> words() const {
    Require(begin_ != nullptr, "not a message");
    const size_t words = bytes_.size() / kWordBytes - 1;
    Require(LoadLittle<uint32_t>(bytes_.data()) == 0, "more than one segment");
    Require(LoadLittle<uint32_t>(bytes_.data() + 4) == words, "length differs");
    return {begin_, words};
  }

 private:
  static constexpr size_t kScratchWords = 64;  // most small messages fit
  ConstBytes bytes_;
  const capnp::word* begin_ = nullptr;
  alignas(8) std::byte scratch_[kScratchWords * kWordBytes];
  std::unique_ptr<capnp::word[]> heap_;
};

// Calls read(root), which may traverse so many times the message: twice what it copies, so that
// nothing can be amplified by pointers to one place. Throws BadMessage or kj::Exception, as read
// may.
inline constexpr size_t kTraversalsToCopy = 2;
template <typename Schema, typename Read>
void ReadMessage(ConstBytes bytes, const Read& read, size_t traversals_max = kTraversalsToCopy) {
  const MessageWords message(bytes);
  const kj::ArrayPtr<const capnp::word> words = message.words();
  capnp::ReaderOptions options;
  options.traversalLimitInWords = traversals_max * words.size() + 64;
  options.nestingLimit = kNestingMax;
  const kj::ArrayPtr<const capnp::word> segments[] = {words};
  capnp::SegmentArrayMessageReader reader(kj::arrayPtr(segments, 1), options);
  Require(!reader.getRoot<capnp::AnyPointer>().isNull(), "no root");
  read(reader.getRoot<Schema>());
}

// The same with read(root, value) as a Result.
template <typename Schema, typename Value, typename Read>
Result<Value> DecodeMessage(std::string_view kind, ConstBytes bytes, const Read& read,
                            size_t traversals_max = kTraversalsToCopy) {
  try {
    Value value;
    ReadMessage<Schema>(
        bytes, [&](typename Schema::Reader in) { read(in, &value); }, traversals_max);
    return value;
  } catch (const BadMessage& error) {
    return MessageError(kind, error.what);
  } catch (const kj::Exception& error) {
    return MessageError(kind, std::string_view(error.getDescription().cStr()));
  }
}

// Reads a list of structs into a vector. The count is held against the bytes that there are before
// memory is taken for it: each element has at least one word.
template <typename List, typename Value, typename Read>
void ReadList(List list, std::vector<Value>* values, const Read& read) {
  // Elements of a legitimate list are checked by `read`; a huge count of empty ones fails at the
  // first, so only the reservation is bounded here.
  constexpr size_t kReserveMax = size_t{1} << 16;
  values->reserve(std::min<size_t>(list.size(), kReserveMax));
  for (auto element : list) read(element, &values->emplace_back());
}

template <typename List>
void ReadNumbers(List list, std::vector<uint64_t>* values) {
  values->resize(list.size());
  for (uint32_t i = 0; i < list.size(); ++i) (*values)[i] = list[i];
}

// ---- records ----
// *Words: upper bound of what a record takes outside its own struct. Read*: throw as above.

Id128 ReadId(capnp::Data::Reader data, const char* what);
inline capnp::Data::Reader ToData(const Id128& id) {
  return capnp::Data::Reader(id.data(), id.size());
}

void WriteChunk(const ChunkRecord& record, schema::Chunk::Builder out);
void ReadChunk(schema::Chunk::Reader in, ChunkRecord* record);

// `whole`: with key and chunks, as in frames.
size_t LeafTailWords(const LeafRecord& record, bool whole);
void WriteLeaf(const LeafRecord& record, bool whole, schema::Leaf::Builder out);
void ReadLeaf(schema::Leaf::Reader in, bool whole, LeafRecord* record);

size_t GroupTailWords(const GroupRecord& record);
void WriteGroup(const GroupRecord& record, schema::Group::Builder out);
void ReadGroup(schema::Group::Reader in, GroupRecord* record);

size_t StepTailWords(const StepRecord& record);
void WriteStep(const StepRecord& record, schema::Step::Builder out);
void ReadStep(schema::Step::Reader in, StepRecord* record);

}  // namespace stepwell::format::internal
