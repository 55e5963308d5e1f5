// SPDX-License-Identifier: Apache-2.0
// Chunk, leaf and step records within messages.
#include <algorithm>

#include "format/endian.h"
#include "format/key.h"
#include "format/piece.h"
#include "format/records_internal.h"

namespace stepwell::format {
namespace internal {
namespace {

void WriteNumbers(const Shape& numbers, capnp::List<uint64_t>::Builder out) {
  for (uint32_t i = 0; i < out.size(); ++i) out.set(i, numbers[i]);
}

// A leaf's first record must describe it completely and consistently: restore trusts it.
void CheckArray(const LeafRecord& record) {
  const DTypeInfo* dtype = FindDType(record.dtype);
  Require(dtype != nullptr, "unknown dtype");
  Require(record.shape.size() <= kRankMax, "rank too high");
  Require(record.shape.size() == record.chunk_shape.size(), "chunk shape of another rank");
  Require(ElementCount(record.shape, dtype->item_bytes).ok(), "shape too large");
  for (const uint64_t extent : record.chunk_shape) Require(extent >= 1, "chunk extent 0");
  Require(record.shard_shape.empty() || record.shard_shape.size() == record.shape.size(),
          "shard shape of another rank");
  const uint64_t chunk_bytes = ChunkBytes(record.chunk_shape, dtype->item_bytes);
  Require(chunk_bytes <= kPayloadLogicalMax, "chunk too large");
  if (record.partial) {
    Require(CheckPieces(record).ok(), "pieces that contradict the leaf");
    return;
  }
  Require(record.pieces.empty(), "pieces of a leaf that is not partial");
  Require(record.chunk_count == ChunkCount(record.shape, record.chunk_shape),
          "chunk count does not match the grid");
  for (const ChunkRecord& chunk : record.chunks) {
    Require(chunk.logical_bytes == chunk_bytes, "chunk of another size than the grid's");
  }
}

// Readers take memory for a value before they read its chunks.
void CheckValue(const LeafRecord& record) {
  uint64_t bytes_max = 0;
  Require(!__builtin_mul_overflow(record.chunk_count, kPayloadLogicalMax, &bytes_max) &&
              !__builtin_add_overflow(bytes_max, record.inline_value.size(), &bytes_max),
          "chunk count out of range");
  Require(record.logical_bytes <= bytes_max, "value longer than its chunks");
}

void CheckLeaf(const LeafRecord& record) {
  Require(record.kind >= LeafKind::kArray && record.kind <= LeafKind::kNode, "unknown leaf kind");
  Require(record.value_type <= ValueType::kComplex, "unknown value type");
  Require(record.container <= ContainerKind::kObject, "unknown container kind");
  Require(record.inline_value.size() <= kInlineValueBytesMax, "inline value too long");
  if (record.first_chunk > 0) return;  // goes on with a leaf: only key and chunks count
  Require(record.chunks.size() <= record.chunk_count, "more chunks than counted");
  Require(record.kind == LeafKind::kArray || (!record.partial && record.pieces.empty()),
          "pieces of what is not an array");
  if (record.kind == LeafKind::kArray) CheckArray(record);
  if (record.kind == LeafKind::kValue) CheckValue(record);
}

}  // namespace

Id128 ReadId(capnp::Data::Reader data, const char* what) {
  Id128 id{};
  Require(data.size() == id.size(), what);
  std::memcpy(id.data(), data.begin(), id.size());
  return id;
}

namespace {

// `out` is a Payload, or a Chunk, which has the same fields.
template <typename Builder>
void WritePayload(const StoredPayload& record, Builder out) {
  out.setSegment(record.segment);
  out.setOffset(record.offset_bytes);
  out.setStoredBytes(record.stored_bytes);
  out.setCrc(record.crc);
  out.setCodec(static_cast<uint16_t>(record.codec));
  out.setReferenced(record.referenced);
}

// An unknown codec is met when a payload is decoded: other leaves stay readable.
template <typename Reader>
void ReadPayload(Reader in, StoredPayload* record) {
  record->segment = in.getSegment();
  record->offset_bytes = in.getOffset();
  record->stored_bytes = in.getStoredBytes();
  record->crc = in.getCrc();
  record->codec = static_cast<CodecId>(in.getCodec());
  record->referenced = in.getReferenced();
  Require(record->stored_bytes >= kCrcBytes, "payload shorter than its CRC");
  Require(record->offset_bytes <= UINT64_MAX - record->stored_bytes, "offset out of range");
}

// A keyframe, then differences, of which the chunk's own payload is the last. An unknown codec may
// have bases for a reason of its own.
void CheckBases(const ChunkRecord& record) {
  const auto needs_base = [](const StoredPayload& payload, bool otherwise) {
    const CodecInfo* const info = FindCodec(payload.codec);
    return info == nullptr ? otherwise : info->needs_base;
  };
  Require(needs_base(record, !record.bases.empty()) == !record.bases.empty(),
          "bases that the codec does not ask for");
  for (const StoredPayload& base : record.bases) {
    const bool is_first = &base == &record.bases.front();
    Require(needs_base(base, !is_first) != is_first, "a difference without a keyframe");
  }
}

}  // namespace

void WriteChunk(const ChunkRecord& record, schema::Chunk::Builder out) {
  WritePayload(record, out);
  out.setLogicalBytes(record.logical_bytes);
  out.setHashLow(record.hash.low);
  out.setHashHigh(record.hash.high);
  if (record.bases.empty()) return;
  auto bases = out.initBases(static_cast<uint32_t>(record.bases.size()));
  for (uint32_t i = 0; i < bases.size(); ++i) WritePayload(record.bases[i], bases[i]);
}

void ReadChunk(schema::Chunk::Reader in, ChunkRecord* record) {
  ReadPayload(in, record);
  record->logical_bytes = in.getLogicalBytes();
  record->hash = {in.getHashLow(), in.getHashHigh()};
  Require(in.getBases().size() <= kBasesMax, "too many bases");
  ReadList(in.getBases(), &record->bases, ReadPayload<schema::Payload::Reader>);
  Require(record->logical_bytes <= kPayloadLogicalMax, "chunk too large");
  CheckBases(*record);
}

namespace {

void WritePiece(const PieceRecord& piece, schema::Piece::Builder out) {
  const auto rank = static_cast<uint32_t>(piece.origin.size());
  out.setFirstChunk(piece.first_chunk);
  if (rank == 0) return;
  WriteNumbers(piece.origin, out.initOrigin(rank));
  WriteNumbers(piece.shape, out.initShape(rank));
  WriteNumbers(piece.chunk_shape, out.initChunkShape(rank));
}

void ReadPiece(schema::Piece::Reader in, PieceRecord* piece) {
  ReadNumbers(in.getOrigin(), &piece->origin);
  ReadNumbers(in.getShape(), &piece->shape);
  ReadNumbers(in.getChunkShape(), &piece->chunk_shape);
  piece->first_chunk = in.getFirstChunk();
}

}  // namespace

namespace {

void WriteStatistics(const LeafStatistics& statistics, schema::Statistics::Builder out) {
  out.setElements(statistics.elements);
  out.setNonfinite(statistics.nonfinite);
  out.setMin(statistics.min);
  out.setMax(statistics.max);
  out.setSum(statistics.sum);
  out.setSumOfSquares(statistics.sum_of_squares);
  out.setChanged(statistics.changed);
  out.setChangedCount(static_cast<uint16_t>(statistics.changed_count));
}

// What a newer version may know of changes, this one does not.
LeafStatistics ReadStatistics(schema::Statistics::Reader in) {
  LeafStatistics statistics{.elements = in.getElements(),
                            .nonfinite = in.getNonfinite(),
                            .min = in.getMin(),
                            .max = in.getMax(),
                            .sum = in.getSum(),
                            .sum_of_squares = in.getSumOfSquares()};
  Require(statistics.nonfinite <= statistics.elements, "more elements not finite than there are");
  const uint16_t count = in.getChangedCount();
  if (count == 0 || count > static_cast<uint16_t>(ChangedCount::kExact)) return statistics;
  statistics.changed_count = static_cast<ChangedCount>(count);
  statistics.changed = in.getChanged();
  Require(statistics.changed <= statistics.elements, "more elements changed than there are");
  return statistics;
}

}  // namespace

size_t LeafTailWords(const LeafRecord& record, bool whole) {
  size_t words = TextWords(record.type_name.size()) + record.shape.size() +
                 record.chunk_shape.size() + record.shard_shape.size() +
                 TextWords(record.prng_impl.size()) + TextWords(record.sharding_json.size()) +
                 TextWords(record.variable_types.size()) + DataWords(record.inline_value.size());
  for (const ChunkRecord& chunk : record.chunks) {
    if (whole && !chunk.bases.empty()) words += ListWords<schema::Payload>(chunk.bases.size());
  }
  if (!record.pieces.empty()) words += ListWords<schema::Piece>(record.pieces.size());
  for (const PieceRecord& piece : record.pieces) words += 3 * piece.origin.size();
  if (record.statistics) words += StructWords<schema::Statistics>();
  if (!whole) return words;
  return words + DataWords(record.key.size()) + ListWords<schema::Chunk>(record.chunks.size());
}

void WriteLeaf(const LeafRecord& record, bool whole, schema::Leaf::Builder out) {
  out.setKind(static_cast<uint16_t>(record.kind));
  out.setValueType(static_cast<uint16_t>(record.value_type));
  out.setContainer(static_cast<uint16_t>(record.container));
  out.setDtype(static_cast<uint16_t>(record.dtype));
  out.setPartial(record.partial);
  out.setWeakType(record.weak_type);
  if (!record.type_name.empty()) out.setTypeName(ToText(record.type_name));
  if (!record.variable_types.empty()) out.setVariableTypes(ToText(record.variable_types));
  out.setChildCount(record.child_count);
  const auto rank = static_cast<uint32_t>(record.shape.size());
  if (rank > 0) WriteNumbers(record.shape, out.initShape(rank));
  const auto chunk_rank = static_cast<uint32_t>(record.chunk_shape.size());
  if (chunk_rank > 0) WriteNumbers(record.chunk_shape, out.initChunkShape(chunk_rank));
  const auto shard_rank = static_cast<uint32_t>(record.shard_shape.size());
  if (shard_rank > 0) WriteNumbers(record.shard_shape, out.initShardShape(shard_rank));
  if (!record.prng_impl.empty()) out.setPrngImpl(ToText(record.prng_impl));
  if (!record.sharding_json.empty()) out.setShardingJson(ToText(record.sharding_json));
  if (!record.inline_value.empty()) out.setInlineValue(ToData(record.inline_value));
  out.setLogicalBytes(record.logical_bytes);
  out.setChunkCount(record.chunk_count);
  if (!record.pieces.empty()) {
    auto pieces = out.initPieces(static_cast<uint32_t>(record.pieces.size()));
    for (uint32_t i = 0; i < pieces.size(); ++i) WritePiece(record.pieces[i], pieces[i]);
  }
  if (record.statistics) WriteStatistics(*record.statistics, out.initStatistics());
  if (!whole) return;
  out.setFirstChunk(record.first_chunk);
  out.setKey(ToData(record.key));
  if (record.chunks.empty()) return;
  auto chunks = out.initChunks(static_cast<uint32_t>(record.chunks.size()));
  for (uint32_t i = 0; i < chunks.size(); ++i) WriteChunk(record.chunks[i], chunks[i]);
}

void ReadLeaf(schema::Leaf::Reader in, bool whole, LeafRecord* record) {
  const auto narrow = [](uint16_t number) {  // on to an enum of 8 bits
    Require(number <= UINT8_MAX, "unknown kind or type");
    return static_cast<uint8_t>(number);
  };
  record->kind = static_cast<LeafKind>(narrow(in.getKind()));
  record->value_type = static_cast<ValueType>(narrow(in.getValueType()));
  record->container = static_cast<ContainerKind>(narrow(in.getContainer()));
  record->dtype = static_cast<DType>(in.getDtype());
  record->partial = in.getPartial();
  record->weak_type = in.getWeakType();
  record->type_name = FromText(in.getTypeName());
  record->variable_types = FromText(in.getVariableTypes());
  record->child_count = in.getChildCount();
  ReadNumbers(in.getShape(), &record->shape);
  ReadNumbers(in.getChunkShape(), &record->chunk_shape);
  ReadNumbers(in.getShardShape(), &record->shard_shape);
  record->prng_impl = FromText(in.getPrngImpl());
  record->sharding_json = FromText(in.getShardingJson());
  record->inline_value = FromData(in.getInlineValue());
  record->logical_bytes = in.getLogicalBytes();
  record->chunk_count = in.getChunkCount();
  ReadList(in.getPieces(), &record->pieces, ReadPiece);
  if (in.hasStatistics()) record->statistics = ReadStatistics(in.getStatistics());
  if (whole) {
    record->first_chunk = in.getFirstChunk();
    record->key = FromData(in.getKey());
    Require(!record->key.empty(), "leaf without a key");
    ReadList(in.getChunks(), &record->chunks, ReadChunk);
  }
  CheckLeaf(*record);
}

size_t GroupTailWords(const GroupRecord& record) {
  return 2 * DataWords(sizeof(Id128)) + DataWords(record.parts.size() * sizeof(uint32_t));
}

void WriteGroup(const GroupRecord& record, schema::Group::Builder out) {
  out.setGroupId(ToData(record.group_id));
  out.setPart(record.part);
  out.setState(static_cast<uint16_t>(record.state));
  out.setSaveId(ToData(record.save_id));
  auto parts = out.initParts(static_cast<uint32_t>(record.parts.size()));
  for (uint32_t i = 0; i < parts.size(); ++i) parts.set(i, record.parts[i]);
  out.setDecisionNumber(record.decision_number);
}

void ReadGroup(schema::Group::Reader in, GroupRecord* record) {
  record->group_id = ReadId(in.getGroupId(), "group id is not 16 bytes");
  record->part = in.getPart();
  const uint16_t state = in.getState();
  Require(state == 1 || state == 2, "group of an unknown state");
  record->state = static_cast<GroupState>(state);
  record->save_id = ReadId(in.getSaveId(), "save id is not 16 bytes");
  const auto parts = in.getParts();
  record->parts.reserve(std::min<size_t>(parts.size(), kPartStoresMax));
  Require(parts.size() <= kPartStoresMax, "too many parts");
  for (const uint32_t part : parts) record->parts.push_back(part);
  Require(!record->parts.empty() && record->parts.front() == 0, "a group without part 0");
  const auto not_ascending = [](uint32_t a, uint32_t b) { return a >= b; };
  Require(std::adjacent_find(record->parts.begin(), record->parts.end(), not_ascending) ==
              record->parts.end(),
          "parts out of order");
  Require(std::binary_search(record->parts.begin(), record->parts.end(), record->part),
          "a part that is not of its group");
  record->decision_number = in.getDecisionNumber();
}

size_t StepTailWords(const StepRecord& record) {
  size_t words = TextWords(record.taint.size()) + TextWords(record.metadata_json.size()) +
                 TextWords(record.metrics_json.size()) +
                 ListWords<schema::Item>(record.items.size()) +
                 ListWords<schema::Extent>(record.extents.size());
  for (const ItemRecord& item : record.items) words += TextWords(item.name.size());
  if (record.group) words += StructWords<schema::Group>() + GroupTailWords(*record.group);
  return words;
}

void WriteStep(const StepRecord& record, schema::Step::Builder out) {
  out.setStep(record.step);
  out.setCommit(record.commit);
  out.setTimeNs(record.time_ns);
  out.setSaveNs(record.save_ns);
  out.setPinned(record.pinned);
  if (!record.taint.empty()) out.setTaint(ToText(record.taint));
  out.setVerified(record.verified);
  if (!record.metadata_json.empty()) out.setMetadataJson(ToText(record.metadata_json));
  if (!record.metrics_json.empty()) out.setMetricsJson(ToText(record.metrics_json));
  if (!record.items.empty()) {
    auto items = out.initItems(static_cast<uint32_t>(record.items.size()));
    for (uint32_t i = 0; i < items.size(); ++i) {
      const ItemRecord& item = record.items[i];
      items[i].setName(ToText(item.name));
      items[i].setKind(static_cast<uint16_t>(item.kind));
      items[i].setLeafCount(item.leaf_count);
      items[i].setLogicalBytes(item.logical_bytes);
      items[i].setStoredBytes(item.stored_bytes);
      items[i].setNonfinite(item.nonfinite);
    }
  }
  out.setLeafCount(record.leaf_count);
  out.setChunkCount(record.chunk_count);
  out.setLogicalBytes(record.logical_bytes);
  out.setReferencedBytes(record.referenced_bytes);
  out.setStoredBytes(record.stored_bytes);
  if (record.group) WriteGroup(*record.group, out.initGroup());
  if (record.extents.empty()) return;
  auto extents = out.initExtents(static_cast<uint32_t>(record.extents.size()));
  for (uint32_t i = 0; i < extents.size(); ++i) {
    const SegmentExtent& extent = record.extents[i];
    extents[i].setSegment(extent.segment);
    extents[i].setEndBytes(extent.end_bytes);
    extents[i].setStoredBytes(extent.stored_bytes);
    extents[i].setBlockBytes(extent.block_bytes);
    extents[i].setFrameBytes(extent.frame_bytes);
    extents[i].setReferencedBytes(extent.referenced_bytes);
    extents[i].setPlacesLow(extent.places.low);
    extents[i].setPlacesHigh(extent.places.high);
  }
}

void ReadStep(schema::Step::Reader in, StepRecord* record) {
  record->step = in.getStep();
  record->commit = in.getCommit();
  record->time_ns = in.getTimeNs();
  record->save_ns = in.getSaveNs();
  record->pinned = in.getPinned();
  record->taint = FromText(in.getTaint());
  record->verified = in.getVerified();
  record->metadata_json = FromText(in.getMetadataJson());
  record->metrics_json = FromText(in.getMetricsJson());
  ReadList(in.getItems(), &record->items, [](schema::Item::Reader item, ItemRecord* out) {
    out->name = FromText(item.getName());
    const uint16_t kind = item.getKind();
    Require(kind >= 1 && kind <= 3, "unknown item kind");
    out->kind = static_cast<ItemKind>(kind);
    out->leaf_count = item.getLeafCount();
    out->logical_bytes = item.getLogicalBytes();
    out->stored_bytes = item.getStoredBytes();
    out->nonfinite = item.getNonfinite();
  });
  record->leaf_count = in.getLeafCount();
  record->chunk_count = in.getChunkCount();
  record->logical_bytes = in.getLogicalBytes();
  record->referenced_bytes = in.getReferencedBytes();
  record->stored_bytes = in.getStoredBytes();
  ReadList(in.getExtents(), &record->extents,
           [](schema::Extent::Reader extent, SegmentExtent* out) {
             out->segment = extent.getSegment();
             out->end_bytes = extent.getEndBytes();
             out->stored_bytes = extent.getStoredBytes();
             out->block_bytes = extent.getBlockBytes();
             out->frame_bytes = extent.getFrameBytes();
             out->referenced_bytes = extent.getReferencedBytes();
             out->places = {extent.getPlacesLow(), extent.getPlacesHigh()};
           });
  if (in.hasGroup()) ReadGroup(in.getGroup(), &record->group.emplace());
  Require(record->commit > 0, "commit number 0");
}

}  // namespace internal

using internal::DecodeMessage;
using internal::EncodeMessage;
using internal::StructWords;

std::optional<CodecId> LeafRecord::codec() const {
  if (chunks.empty()) return CodecId::kRaw;
  const CodecId first = chunks.front().codec;
  const auto is_other = [first](const ChunkRecord& chunk) { return chunk.codec != first; };
  if (std::any_of(chunks.begin(), chunks.end(), is_other)) return std::nullopt;
  return first;
}

bool ApplyChange(const MetaChange& change, StepRecord* record) {
  bool differs = false;
  const auto set = [&differs](const auto& to, auto* field) {
    if (!to || *to == *field) return;
    *field = *to;
    differs = true;
  };
  set(change.pinned, &record->pinned);
  set(change.taint, &record->taint);
  set(change.verified, &record->verified);
  return differs;
}

std::string EncodeLeafValue(const LeafRecord& record) {
  const size_t words = 1 + StructWords<schema::Leaf>() + internal::LeafTailWords(record, false);
  return EncodeMessage<schema::Leaf>(
      words, [&](schema::Leaf::Builder out) { internal::WriteLeaf(record, false, out); });
}

Result<LeafRecord> DecodeLeafValue(std::string_view key, ConstBytes bytes) {
  return DecodeMessage<schema::Leaf, LeafRecord>(
      "leaf record", bytes, [key](schema::Leaf::Reader in, LeafRecord* record) {
        internal::ReadLeaf(in, false, record);
        record->key = key;
      });
}

std::string LeafName(const LeafRecord& leaf) {
  const Result<LeafKey> key = DecodeLeafKey(leaf.key);
  if (!key.ok()) return "(a leaf with a damaged key)";
  const std::string path = PathToText(key->path);
  return path.empty() ? key->item : StrCat(key->item, "/", path);
}

}  // namespace stepwell::format
