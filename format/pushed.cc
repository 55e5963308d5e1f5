// SPDX-License-Identifier: Apache-2.0
#include "format/pushed.h"

#include <kj/encoding.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "format/crc32c.h"
#include "format/endian.h"
#include "format/hash.h"
#include "format/key.h"
#include "format/records_internal.h"
#include "format/schema/pushed.capnp.h"

namespace stepwell::format {
namespace {

using internal::DecodeMessage;
using internal::EncodeMessage;
using internal::ListWords;
using internal::Require;
using internal::StructWords;

constexpr char kMagic[8] = {'\x89', 'S', 'W', 'P', 'U', 'S', 'H', '\n'};
constexpr size_t kVersionAt = 8;
constexpr size_t kHeadBytesAt = 16;
constexpr size_t kLeavesBytesAt = 24;
constexpr size_t kHeadHashAt = 32;
constexpr size_t kLeavesHashAt = 48;
constexpr size_t kHeaderCrcAt = 64;
static_assert(kHeaderCrcAt + 2 * sizeof(uint32_t) == kPushedHeaderBytes);
constexpr uint64_t kStepMax = INT64_MAX;

std::string EncodeHead(const StepRecord* step, std::span<const DataObject> objects) {
  size_t words = 1 + StructWords<schema::PushedHead>() +
                 ListWords<schema::DataObject>(objects.size()) +
                 objects.size() * internal::DataWords(sizeof(Sha256));
  if (step != nullptr) words += StructWords<schema::Step>() + internal::StepTailWords(*step);
  return EncodeMessage<schema::PushedHead>(words, [&](schema::PushedHead::Builder out) {
    if (step != nullptr) internal::WriteStep(*step, out.initStep());
    auto list = out.initObjects(static_cast<uint32_t>(objects.size()));
    for (uint32_t i = 0; i < list.size(); ++i) {
      list[i].setSha256(capnp::Data::Reader(objects[i].sha256.data(), sizeof(Sha256)));
      list[i].setSalt(objects[i].salt);
      list[i].setSizeBytes(objects[i].size_bytes);
    }
  });
}

std::string EncodeLeaves(const PushedStep& step) {
  size_t words = 1 + StructWords<schema::PushedLeaves>() +
                 ListWords<schema::Leaf>(step.leaves.size()) + 2 * step.base_hashes.size();
  for (const LeafRecord& leaf : step.leaves) words += internal::LeafTailWords(leaf, true);
  return EncodeMessage<schema::PushedLeaves>(words, [&](schema::PushedLeaves::Builder out) {
    auto leaves = out.initLeaves(static_cast<uint32_t>(step.leaves.size()));
    for (uint32_t i = 0; i < leaves.size(); ++i) {
      internal::WriteLeaf(step.leaves[i], true, leaves[i]);
    }
    auto hashes = out.initBaseHashes(static_cast<uint32_t>(2 * step.base_hashes.size()));
    for (uint32_t i = 0; i < step.base_hashes.size(); ++i) {
      hashes.set(2 * i, step.base_hashes[i].low);
      hashes.set(2 * i + 1, step.base_hashes[i].high);
    }
  });
}

void StoreHash(const Hash128& hash, std::byte* at) {
  StoreLittle(at, hash.low);
  StoreLittle(at + sizeof(uint64_t), hash.high);
}
Hash128 LoadHash(const std::byte* at) {
  return {LoadLittle<uint64_t>(at), LoadLittle<uint64_t>(at + sizeof(uint64_t))};
}

std::string Framed(const std::string& head, const std::string& leaves) {
  std::string out(kPushedHeaderBytes, '\0');
  auto* at = reinterpret_cast<std::byte*>(out.data());
  std::memcpy(at, kMagic, sizeof(kMagic));
  StoreLittle(at + kVersionAt, kPushedVersion);
  StoreLittle(at + kHeadBytesAt, uint64_t{head.size()});
  StoreLittle(at + kLeavesBytesAt, uint64_t{leaves.size()});
  StoreHash(HashOf(AsBytes(head)), at + kHeadHashAt);
  if (!leaves.empty()) StoreHash(HashOf(AsBytes(leaves)), at + kLeavesHashAt);
  StoreLittle(at + kHeaderCrcAt, Crc32c({at, kHeaderCrcAt}));
  return out + head + leaves;
}

// A part of the file, whose hash must be right.
Result<ConstBytes> PartOf(ConstBytes bytes, uint64_t offset, uint64_t size, const Hash128& hash,
                          const char* what) {
  if (bytes.size() < offset || bytes.size() - offset < size) {
    return DataLossError(StrCat(what, " is cut short at ", bytes.size(), " bytes"));
  }
  const ConstBytes part = bytes.subspan(offset, size);
  if (HashOf(part) != hash) return DataLossError(StrCat("the checksum of ", what, " is wrong"));
  return part;
}

void ReadHead(schema::PushedHead::Reader in, PushedHead* head) {
  if (in.hasStep()) {
    StepRecord& step = head->step.emplace();
    internal::ReadStep(in.getStep(), &step);
    Require(step.step <= kStepMax, "step number out of range");
    Require(!step.group && step.extents.empty(), "a step that is tied to a store");
  }
  uint64_t sum = 0;
  internal::ReadList(in.getObjects(), &head->objects,
                     [&sum](schema::DataObject::Reader object, DataObject* out) {
                       Require(object.getSha256().size() == sizeof(Sha256), "SHA-256 of odd size");
                       std::memcpy(out->sha256.data(), object.getSha256().begin(), sizeof(Sha256));
                       out->salt = object.getSalt();
                       out->size_bytes = object.getSizeBytes();
                       Require(out->size_bytes > 0, "an object without bytes");
                       Require(!__builtin_add_overflow(sum, out->size_bytes, &sum) &&
                                   sum <= static_cast<uint64_t>(INT64_MAX),
                               "sizes out of range");
                     });
}

// Records are checked one by one when they are read; this is what they owe the list.
void CheckLeaves(const PushedStep& step) {
  size_t bases = 0;
  const LeafRecord* before = nullptr;
  for (const LeafRecord& leaf : step.leaves) {
    Require(before == nullptr || before->key < leaf.key, "leaves out of order");
    before = &leaf;
    Require(!leaf.partial && leaf.pieces.empty(), "a part of a leaf");
    Require(leaf.first_chunk == 0 && leaf.chunks.size() == leaf.chunk_count, "chunks are missing");
    for (const ChunkRecord& chunk : leaf.chunks) {
      Require(chunk.hash.known(), "a chunk without a hash");
      bases += chunk.bases.size();
      EachPayload(chunk, [&step](const StoredPayload& payload) {
        Require(payload.segment < step.objects.size(), "a payload in an object that is not named");
        const uint64_t size = step.objects[payload.segment].size_bytes;
        Require(payload.offset_bytes <= size && payload.stored_bytes <= size - payload.offset_bytes,
                "a payload beyond its object's end");
      });
    }
  }
  Require(step.base_hashes.size() == bases, "hashes of other bases");
  for (const Hash128& hash : step.base_hashes) Require(hash.known(), "a base without a hash");
}

Result<PushedHead> DecodeHeadOf(const PushedHeader& header, ConstBytes bytes) {
  STEPWELL_ASSIGN_OR_RETURN(
      const ConstBytes part,
      PartOf(bytes, kPushedHeaderBytes, header.head_bytes, header.head_hash, "the head of a list"));
  STEPWELL_ASSIGN_OR_RETURN(PushedHead head, (DecodeMessage<schema::PushedHead, PushedHead>(
                                                 "head of a list", part, ReadHead)));
  if (head.step.has_value() == (header.leaves_bytes == 0)) {
    return DataLossError("bad head of a list: neither that of a step nor a marker");
  }
  return head;
}

}  // namespace

std::string DataObjectName(const DataObject& object) {
  const auto hex = [](const auto& bytes) {
    const auto* const begin = reinterpret_cast<const kj::byte*>(bytes.data());
    return kj::encodeHex(kj::arrayPtr(begin, bytes.size()));
  };
  const std::string salt = EncodeStep(object.salt);  // big-endian
  return StrCat(hex(object.sha256).cStr(), "-", hex(salt).cStr());
}

std::string EncodePushMarker(std::span<const DataObject> objects) {
  return Framed(EncodeHead(nullptr, objects), "");
}

std::string EncodePushedStep(const PushedStep& step) {
  return Framed(EncodeHead(&*step.step, step.objects), EncodeLeaves(step));
}

Result<PushedHeader> DecodePushedHeader(ConstBytes bytes) {
  if (bytes.size() < kPushedHeaderBytes) {
    return DataLossError(StrCat("a list that is cut short at ", bytes.size(), " bytes"));
  }
  const std::byte* at = bytes.data();
  if (std::memcmp(at, kMagic, sizeof(kMagic)) != 0 ||
      LoadLittle<uint32_t>(at + kHeaderCrcAt) != Crc32c({at, kHeaderCrcAt})) {
    return DataLossError("not a list, or its header is damaged");
  }
  const auto version = LoadLittle<uint32_t>(at + kVersionAt);
  if (version != kPushedVersion) {
    return UnimplementedError(StrCat("the list is of version ", version,
                                     "; this version of Stepwell reads ", kPushedVersion));
  }
  PushedHeader header;
  header.head_bytes = LoadLittle<uint64_t>(at + kHeadBytesAt);
  header.leaves_bytes = LoadLittle<uint64_t>(at + kLeavesBytesAt);
  header.head_hash = LoadHash(at + kHeadHashAt);
  header.leaves_hash = LoadHash(at + kLeavesHashAt);
  if (header.head_bytes > kPushedPartBytesMax || header.leaves_bytes > kPushedPartBytesMax) {
    return DataLossError("a list whose sizes are out of range");
  }
  return header;
}

Result<PushedHead> DecodePushedHead(ConstBytes bytes) {
  STEPWELL_ASSIGN_OR_RETURN(const PushedHeader header, DecodePushedHeader(bytes));
  return DecodeHeadOf(header, bytes);
}

Result<PushedStep> DecodePushedStep(ConstBytes bytes) {
  STEPWELL_ASSIGN_OR_RETURN(const PushedHeader header, DecodePushedHeader(bytes));
  if (bytes.size() != header.size_bytes()) {
    return DataLossError(
        StrCat("a list of ", bytes.size(), " bytes that says ", header.size_bytes()));
  }
  STEPWELL_ASSIGN_OR_RETURN(PushedHead head, DecodeHeadOf(header, bytes));
  if (!head.step) return DataLossError("a marker where a list is expected");
  STEPWELL_ASSIGN_OR_RETURN(
      const ConstBytes part,
      PartOf(bytes, kPushedHeaderBytes + header.head_bytes, header.leaves_bytes, header.leaves_hash,
             "the leaves of a list"));
  return DecodeMessage<schema::PushedLeaves, PushedStep>(
      "leaves of a list", part, [&head](schema::PushedLeaves::Reader in, PushedStep* step) {
        static_cast<PushedHead&>(*step) = std::move(head);
        internal::ReadList(in.getLeaves(), &step->leaves,
                           [](schema::Leaf::Reader leaf, LeafRecord* out) {
                             internal::ReadLeaf(leaf, true, out);
                           });
        const auto hashes = in.getBaseHashes();
        Require(hashes.size() % 2 == 0, "half a hash");
        step->base_hashes.resize(hashes.size() / 2);
        for (uint32_t i = 0; i < step->base_hashes.size(); ++i) {
          step->base_hashes[i] = {hashes[2 * i], hashes[2 * i + 1]};
        }
        CheckLeaves(*step);
      });
}

}  // namespace stepwell::format
