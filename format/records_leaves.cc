// SPDX-License-Identifier: Apache-2.0
#include "format/records_leaves.h"

#include <zstd.h>

#include <new>
#include <utility>

#include "format/frame.h"
#include "format/key.h"
#include "format/zstd_frame.h"

namespace stepwell::format {
namespace internal {
namespace {

// Below this a message shares its block with its copy anyway.
constexpr size_t kPlainBytesMin = 1024;
// What a frame makes of memory stays in proportion to its bytes.
constexpr uint64_t kExpansionMax = 256;
// Higher levels take longer than the disk needs for the bytes that they save.
constexpr int kLevel = 1;

size_t LeavesWords(std::span<const LeafRecord> records) {
  size_t words = ListWords<schema::Leaf>(records.size());
  for (const LeafRecord& record : records) words += LeafTailWords(record, true);
  return words;
}

// Returns an empty string where zstd does not shorten `plain`, or lacks memory.
std::string Pack(std::string_view plain) {
  std::string packed(plain.size(), '\0');
  const size_t size =
      ZSTD_compress(packed.data(), packed.size(), plain.data(), plain.size(), kLevel);
  if (ZSTD_isError(size) != 0 || plain.size() > kExpansionMax * size) return {};
  packed.resize(size);
  return packed;
}

}  // namespace

LeavesToWrite::LeavesToWrite(std::span<const LeafRecord> leaves)
    : leaves_(leaves), list_words_(LeavesWords(leaves)) {
  const size_t words = 1 + StructWords<schema::Records>() + list_words_;
  if (words * kWordBytes < kPlainBytesMin) return;
  const std::string plain =
      EncodeMessage<schema::Records>(words, [this](schema::Records::Builder out) {
        WriteList(out.initLeaves(static_cast<uint32_t>(leaves_.size())));
      });
  plain_bytes_ = plain.size();
  // What is longer is refused as a frame, and would be by readers.
  if (plain_bytes_ >= kPlainBytesMin && plain_bytes_ <= kFramePayloadBytesMax) {
    packed_ = Pack(plain);
  }
}

size_t LeavesToWrite::words() const {
  if (packed_.empty()) return list_words_;
  return StructWords<schema::PackedLeaves>() + DataWords(packed_.size());
}

void LeavesToWrite::WriteList(capnp::List<schema::Leaf>::Builder out) const {
  for (uint32_t i = 0; i < out.size(); ++i) WriteLeaf(leaves_[i], true, out[i]);
}

void ReadLeaves(LeafList in, std::vector<LeafRecord>* records) {
  ReadList(in, records,
           [](schema::Leaf::Reader leaf, LeafRecord* record) { ReadLeaf(leaf, true, record); });
}

std::string Unpack(schema::PackedLeaves::Reader in) {
  const capnp::Data::Reader frame = in.getFrame();
  const uint64_t size = in.getPlainBytes();
  Require(size > 0 && size <= kFramePayloadBytesMax && size <= kExpansionMax * frame.size(),
          "packed leaves of an impossible size");
  std::string plain(size, '\0');
  const ZstdDecoder decoder(ZSTD_createDCtx());
  if (decoder == nullptr) throw std::bad_alloc();
  const Status status = ZstdFrameDecode(
      decoder.get(), {reinterpret_cast<const std::byte*>(frame.begin()), frame.size()},
      std::as_writable_bytes(std::span(plain)));
  if (!status.ok()) throw BadMessage{status.message()};
  return plain;
}

}  // namespace internal

namespace {

using internal::DecodeMessage;
using internal::LeafList;
using internal::LeavesToWrite;

// Counts the elements at the front whose keys are below `key`. The list ascends.
uint32_t CountBelow(LeafList in, std::string_view key) {
  uint32_t low = 0;
  uint32_t high = in.size();
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    const capnp::Data::Reader at = in[middle].getKey();
    if (std::string_view(reinterpret_cast<const char*>(at.begin()), at.size()) < key) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// The records of `Schema`'s leaves that are in the range. The search for it may look at 32 keys for
// each end, any of which may be most of the message, and copies none; so it is a pass of its own.
template <typename Schema>
Result<std::vector<LeafRecord>> DecodeListIn(std::string_view kind, ConstBytes bytes,
                                             const KeyRange& range) {
  constexpr size_t kTraversalsToSearch = 2 * 33;
  using Places = std::pair<uint32_t, uint32_t>;
  STEPWELL_ASSIGN_OR_RETURN(const Places places,
                            (DecodeMessage<Schema, Places>(
                                kind, bytes,
                                [&range](typename Schema::Reader in, Places* found) {
                                  internal::Require(!in.hasPacked(), "packed twice");
                                  const auto leaves = in.getLeaves();
                                  found->first = CountBelow(leaves, range.first);
                                  found->second = range.end.empty() ? leaves.size()
                                                                    : CountBelow(leaves, range.end);
                                },
                                kTraversalsToSearch)));
  return DecodeMessage<Schema, std::vector<LeafRecord>>(
      kind, bytes, [&places](typename Schema::Reader in, std::vector<LeafRecord>* records) {
        const auto leaves = in.getLeaves();
        for (uint32_t i = places.first; i < places.second; ++i) {
          internal::ReadLeaf(leaves[i], true, &records->emplace_back());
        }
      });
}

template <typename Schema>
Result<std::vector<LeafRecord>> DecodeLeavesIn(std::string_view kind, ConstBytes bytes,
                                               const KeyRange& range) {
  STEPWELL_ASSIGN_OR_RETURN(const std::string plain,
                            (DecodeMessage<Schema, std::string>(
                                kind, bytes, [](typename Schema::Reader in, std::string* unpacked) {
                                  *unpacked = internal::UnpackLeaves(in);
                                })));
  if (plain.empty()) return DecodeListIn<Schema>(kind, bytes, range);
  return DecodeListIn<schema::Records>(kind, AsBytes(plain), range);
}

}  // namespace

KeyRange KeysBelow(std::string_view key_prefix) {
  return {std::string(key_prefix), PrefixEnd(std::string(key_prefix))};
}

// Components begin with a byte >= 1 (key.cc).
KeyRange KeyAlone(std::string_view key) { return {std::string(key), std::string(key) + '\x01'}; }

std::string EncodeRecords(std::span<const LeafRecord> records) {
  const LeavesToWrite leaves(records);
  const size_t words = 1 + internal::StructWords<schema::Records>() + leaves.words();
  return internal::EncodeMessage<schema::Records>(
      words, [&leaves](schema::Records::Builder out) { leaves.Write(out); });
}

Result<std::vector<LeafRecord>> DecodeRecords(ConstBytes bytes) {
  return DecodeMessage<schema::Records, std::vector<LeafRecord>>(
      "records", bytes, [](schema::Records::Reader in, std::vector<LeafRecord>* records) {
        internal::WithLeaves(in,
                             [records](LeafList leaves) { internal::ReadLeaves(leaves, records); });
      });
}

Result<std::vector<LeafRecord>> DecodeRecordsIn(ConstBytes bytes, const KeyRange& range) {
  return DecodeLeavesIn<schema::Records>("records", bytes, range);
}

Result<std::vector<LeafRecord>> DecodeCommitRecordsIn(ConstBytes bytes, const KeyRange& range) {
  return DecodeLeavesIn<schema::Commit>("commit", bytes, range);
}

}  // namespace stepwell::format
