// SPDX-License-Identifier: Apache-2.0
#include "tests/format/support/examples.h"

#include <algorithm>
#include <cstring>

namespace stepwell::format {

Id128 ExampleId(uint8_t first) {
  Id128 id{};
  for (size_t i = 0; i < id.size(); ++i) id[i] = static_cast<uint8_t>(first + i);
  return id;
}

FramePlace ExamplePlace(uint64_t segment) {
  FramePlace place;
  place.segment = segment;
  place.offset_bytes = segment * 65536;
  place.length_bytes = 1234;
  place.crc = 0xDEADBEEF;
  return place;
}

KeyPath ExamplePath() {
  using Type = PathComponent::Type;
  return {{Type::kKey, 0, "layer.0"},
          {Type::kIntKey, -7, ""},
          {Type::kIndex, 3, ""},
          {Type::kAttribute, 0, "kernel"}};
}

KeyPath ExampleLiteralPath() {
  return {PathComponent::Literal("(1, 'a')"), PathComponent::Literal("None")};
}

ChunkRecord ExampleChunk() {
  ChunkRecord chunk;
  chunk.segment = 7;
  chunk.offset_bytes = 1 << 20;
  chunk.stored_bytes = 4100;
  chunk.logical_bytes = 4096;
  chunk.crc = 0x12345678;
  chunk.codec = CodecId::kBloscLz4;
  return chunk;
}

LeafRecord ExampleArray() {
  LeafRecord leaf;
  leaf.key = EncodeLeafKey("params", ExamplePath()).value();
  leaf.kind = LeafKind::kArray;
  leaf.value_type = ValueType::kJaxArray;
  leaf.dtype = DType::kFloat32;
  leaf.shape = {192, 16};
  leaf.chunk_shape = {64, 16};
  leaf.weak_type = true;
  leaf.prng_impl = "threefry2x32";
  leaf.sharding_json = R"({"sharding_type":"SingleDeviceSharding"})";
  leaf.logical_bytes = 12288;
  leaf.chunk_count = 3;
  leaf.chunks = {ExampleChunk(), ExampleChunk(), ExampleChunk()};
  leaf.chunks[1].offset_bytes += 8192;
  leaf.chunks[1].codec = CodecId::kRaw;
  leaf.chunks[1].referenced = true;
  leaf.chunks[1].hash = {0x2122232425262728, 0x3132333435363738};
  leaf.chunks[2].codec = CodecId::kDelta;
  leaf.chunks[2].hash = {0x4142434445464748, 0x5152535455565758};
  leaf.chunks[2].bases = {leaf.chunks[1], leaf.chunks[0]};
  leaf.chunks[2].bases[1].codec = CodecId::kDelta;
  leaf.chunks[2].bases[1].stored_bytes = 77;
  return leaf;
}

LeafRecord ExampleValue() {
  LeafRecord leaf;
  leaf.key = EncodeLeafKey("params", {{PathComponent::Type::kKey, 0, "step"}}).value();
  leaf.kind = LeafKind::kValue;
  leaf.value_type = ValueType::kInt;
  leaf.inline_value = "12000";
  leaf.logical_bytes = 5;
  return leaf;
}

LeafRecord ExampleNode() {
  LeafRecord leaf;
  leaf.key = EncodeItem("params");
  leaf.kind = LeafKind::kNode;
  leaf.value_type = ValueType::kNone;
  leaf.container = ContainerKind::kNamedTuple;
  leaf.type_name = "optax._src.transform.ScaleByAdamState";
  leaf.child_count = 2;
  return leaf;
}

LeafRecord ExampleVariable() {
  LeafRecord leaf = ExampleArray();
  leaf.chunks.clear();
  leaf.variable_types = "flax.nnx.variablelib.Param";
  return leaf;
}

StepRecord ExampleStep() {
  StepRecord step;
  step.step = 12000;
  step.commit = 41;
  step.time_ns = 1'700'000'000'123'456'789;
  step.metadata_json = R"({"note":"a"})";
  step.metrics_json = R"({"loss":0.25})";
  step.items = {{"params", ItemKind::kTree, 2, 8197, 8200}, {"dataset", ItemKind::kJson, 1, 9, 9}};
  step.leaf_count = 3;
  step.chunk_count = 2;
  step.logical_bytes = 8206;
  step.stored_bytes = 8209;
  step.referenced_bytes = 9000;
  step.extents = {{7, 12288, 8200, 12288, 0, 0, {}},
                  {8, 8192, 9, 4096, 8192, 0, {}},
                  {9, 20480, 9000, 0, 0, 9000, {0x0102030405060708, 0x1112131415161718}}};
  return step;
}

LeafRecord ExamplePartial() {
  LeafRecord leaf = ExampleArray();
  leaf.shape = {64, 17};
  leaf.chunk_shape = {16, 16};
  leaf.logical_bytes = 64 * 17 * sizeof(float);
  leaf.partial = true;
  leaf.pieces = {{{16, 0}, {16, 16}, {16, 16}, 0}, {{0, 16}, {16, 1}, {16, 1}, 1}};
  leaf.chunk_count = 2;
  leaf.chunks.resize(2);
  leaf.first_chunk = 0;
  return leaf;
}

namespace {

GroupRecord ExampleGroup() {
  GroupRecord group;
  group.group_id = ExampleId(0x10);
  group.part = 3;
  group.state = GroupState::kPrepared;
  group.save_id = ExampleId(0x20);
  group.parts = {0, 1, 3, 70000};
  return group;
}

}  // namespace

Commit ExamplePrepared() {
  Commit commit = ExampleCommit();
  commit.step.group = ExampleGroup();
  commit.kills.clear();
  commit.records = {ExamplePartial()};
  return commit;
}

Decided ExampleDecided() {
  Decided decided;
  decided.group = ExampleGroup();
  decided.group.state = GroupState::kDecided;
  decided.group.decision_number = 77;
  decided.commit = 41;
  decided.committed = true;
  decided.kills = {11, 12};
  decided.steps = {1000, 2000};
  return decided;
}

StoreSlot ExamplePartSlot() {
  StoreSlot slot = ExampleSlot();
  slot.group_id = ExampleId(0x30);
  slot.part = 3;
  return slot;
}

StoreSlot ExampleSlot5() {
  StoreSlot slot = ExampleSlot();
  slot.format_version = 5;
  return slot;
}

SegmentHeader ExampleSegmentHeader() {
  SegmentHeader header;
  header.store_id = ExampleId(0x10);
  header.segment = 7;
  header.nonce = ExampleId(0x80);
  header.created_ns = 1'700'000'000'000'000'000;
  return header;
}

Catalog ExampleCatalog() {
  Catalog catalog;
  catalog.epoch = 3;
  catalog.last_commit = 42;
  catalog.last_place = ExamplePlace(6);
  LiveCommit live;
  live.step = ExampleStep();
  live.step.metadata_json.clear();
  live.step.metrics_json.clear();
  live.place = ExamplePlace(5);
  live.step.pinned = true;
  catalog.live = {live};
  catalog.segments = {{5, ExampleId(0x50), 268435456}, {6, ExampleId(0x60), 0}};
  return catalog;
}

Catalog ExampleCatalogChange() {
  Catalog catalog = ExampleCatalog();
  catalog.last_commit = 50;
  catalog.previous = ExamplePlace(4);
  catalog.gone = {7, 9};
  catalog.segments_gone = {2};
  catalog.pages = {ExamplePlace(8), ExamplePlace(9)};
  catalog.live_count = 12;
  return catalog;
}

Catalog ExampleCatalogEntries() {
  Catalog entries;
  entries.live = ExampleCatalog().live;
  entries.segments = ExampleCatalog().segments;
  return entries;
}

EpochRecord ExampleEpoch() { return {4, 42, ExamplePlace(6)}; }

Commit ExampleCommit() {
  Commit commit;
  commit.step = ExampleStep();
  commit.kills = {11, 12};
  commit.blocks = {{ExamplePlace(7), EncodeItem("params"), 5}};
  commit.records = {ExampleNode(), ExampleArray(), ExampleValue()};
  return commit;
}

LeafRecord ExampleStatistics() {
  LeafRecord leaf = ExampleArray();
  leaf.chunks.clear();
  leaf.statistics = {.elements = 3072,
                     .nonfinite = 2,
                     .min = -1.5,
                     .max = 65504,
                     .sum = 0.1,
                     .sum_of_squares = 1e300,
                     .changed = 1024,
                     .changed_count = ChangedCount::kAtMost};
  return leaf;
}

Commit ExampleStatisticsCommit() {
  Commit commit = ExampleCommit();
  commit.step.items[0].nonfinite = 2;
  commit.records[1].statistics = ExampleStatistics().statistics;
  return commit;
}

Catalog ExampleStatisticsCatalog() {
  Catalog catalog = ExampleCatalog();
  catalog.live[0].step.items[0].nonfinite = 2;
  return catalog;
}

Delete ExampleDelete() { return {{11, 12}, {1000, 2000}}; }

Commit ExampleTaintedCommit() {
  Commit commit = ExampleStatisticsCommit();
  commit.step.taint = "loss spike";
  return commit;
}

Catalog ExampleTaintedCatalog() {
  Catalog catalog = ExampleStatisticsCatalog();
  catalog.live[0].step.taint = "loss spike";
  return catalog;
}

PushedStep ExampleTaintedPush() {
  PushedStep pushed = ExamplePushedStep();
  pushed.step->taint = "loss spike";
  return pushed;
}

Meta ExampleTaintMeta() {
  return {{{11, std::nullopt, "loss spike"}, {12, std::nullopt, ""}, {13, true, "both"}}};
}

Commit ExampleVerifiedCommit() {
  Commit commit = ExampleTaintedCommit();
  commit.step.verified = true;
  return commit;
}

Catalog ExampleVerifiedCatalog() {
  Catalog catalog = ExampleTaintedCatalog();
  catalog.live[0].step.verified = true;
  return catalog;
}

PushedStep ExampleTimedPush() {
  PushedStep pushed = ExampleTaintedPush();
  pushed.step->save_ns = 12'345'678;
  return pushed;
}

Commit ExampleTimedCommit() {
  Commit commit = ExampleVerifiedCommit();
  commit.step.save_ns = 12'345'678;
  return commit;
}

Catalog ExampleTimedCatalog() {
  Catalog catalog = ExampleVerifiedCatalog();
  catalog.live[0].step.save_ns = 12'345'678;
  return catalog;
}

Meta ExampleVerifiedMeta() {
  return {{{.commit = 11, .verified = true},
           {.commit = 12, .verified = false},
           {.commit = 13, .pinned = true, .taint = "all", .verified = true}}};
}

Meta ExampleMeta() { return {{{11, true}, {12, false}, {13, std::nullopt}}}; }

Footer ExampleFooter() {
  return {{{static_cast<uint16_t>(FrameKind::kSegmentHeader), 40, ExamplePlace(7)},
           {static_cast<uint16_t>(FrameKind::kCommit), 41, ExamplePlace(8)}}};
}

Trailer ExampleTrailer() { return {ExamplePlace(7), 41, 42}; }

StoreSlot ExampleSlot() {
  StoreSlot slot;
  slot.format_version = 4;
  slot.sequence = 99;
  slot.store_id = ExampleId(0x10);
  slot.clean = true;
  slot.epoch = 4;
  slot.durable_commit = 43;
  slot.durable_place = ExamplePlace(7);
  slot.catalog_place = ExamplePlace(6);
  return slot;
}

FrameHeader ExampleFrameHeader() {
  FrameHeader header;
  header.kind = FrameKind::kDelete;
  header.nonce = ExampleId(0x80);
  header.epoch = 4;
  header.commit = 44;
  header.previous = ExamplePlace(7);
  header.previous_commit = 43;
  header.durable_through = 42;
  return header;
}

std::string ExampleLogical() {
  std::string bytes(size_t{64} * 16 * sizeof(float), '\0');
  for (size_t i = 0; i < bytes.size() / sizeof(float); ++i) {
    const float value = 0.5F * static_cast<float>(i + 1);
    std::memcpy(bytes.data() + i * sizeof(float), &value, sizeof(value));
  }
  return bytes;
}

std::string ExampleBase() {
  std::string bytes = ExampleLogical();
  for (size_t at = 0; at < bytes.size(); at += 3 * sizeof(float)) {
    float value = 0;
    std::memcpy(&value, bytes.data() + at, sizeof(value));
    value *= 1 - 0x1p-20F;
    std::memcpy(bytes.data() + at, &value, sizeof(value));
  }
  return bytes;
}

std::string ExamplePayload(CodecId codec) {
  const std::string logical = ExampleLogical();
  std::string out(PayloadBytesMax(codec, logical.size()), '\0');
  const MutableBytes room(reinterpret_cast<std::byte*>(out.data()), out.size());
  const Result<Payload> payload =
      FindCodec(codec)->needs_base
          ? EncodeDelta({sizeof(float), true}, AsBytes(ExampleBase()), AsBytes(logical), room)
          : EncodePayload(codec, sizeof(float), AsBytes(logical), room);
  out.resize(payload.value().size_bytes);
  return out;
}

SegmentHeader ExamplePartHeader() {
  SegmentHeader header = ExampleSegmentHeader();
  header.part = 3;
  header.group_id = ExampleId(0x70);
  return header;
}

LossRecord ExampleLoss() { return {41, 43, 1'700'000'000'000'000'000, "offset 8192", false}; }

Commit ExamplePackedCommit() {
  Commit commit = ExampleCommit();
  commit.records.clear();
  for (int layer = 100; layer < 112; ++layer) {
    LeafRecord record = ExampleArray();
    KeyPath path = ExamplePath();
    path.push_back({PathComponent::Type::kKey, 0, StrCat("layer_", layer)});
    record.key = EncodeLeafKey("params", path).value();
    record.chunks.front().offset_bytes += 4096 * static_cast<uint64_t>(layer);
    commit.records.push_back(record);
  }
  return commit;
}

StoreSlot ExampleTipSlot() {
  StoreSlot slot = ExampleSlot();
  slot.tip = EncodeFrame(ExampleFrameHeader(), EncodeDelete(ExampleDelete()), 1, nullptr);
  return slot;
}

std::string ExampleRecordsRun() {
  const std::string payload = EncodeRecords(ExampleCommit().records);
  FrameHeader header = ExampleFrameHeader();
  header.kind = FrameKind::kRecords;
  FramePlace place = ExamplePlace(7);
  place.length_bytes = static_cast<uint32_t>(kFrameHeaderBytes + payload.size());
  std::string run(AlignUp(BytesWithCopy(place.length_bytes), 4096), '\0');
  const MutableBytes bytes(reinterpret_cast<std::byte*>(run.data()), run.size());
  EncodeFrameTo(header, payload, bytes, &place.crc);
  EncodeOwnCopy(place, header.nonce, bytes);
  return run;
}

PushedStep ExamplePushedStep() {
  PushedStep pushed;
  pushed.step = ExampleCommit().step;
  pushed.step->group.reset();
  pushed.step->extents.clear();
  for (uint8_t i = 0; i < 2; ++i) {
    DataObject& object = pushed.objects.emplace_back();
    for (size_t j = 0; j < object.sha256.size(); ++j) {
      object.sha256[j] = static_cast<uint8_t>(16 * i + 7 * j);
    }
    object.salt = 0x0123456789abcdef + i;
    object.size_bytes = uint64_t{2} << 20;
  }
  pushed.leaves = {ExampleArray(), ExampleValue(), ExampleNode()};
  uint64_t number = 1;
  for (ChunkRecord& chunk : pushed.leaves[0].chunks) {
    chunk.hash = {number, ~number};
    EachPayload(chunk, [&number](StoredPayload& payload) { payload.segment = number % 2; });
    number += 2;
    for (size_t i = 0; i < chunk.bases.size(); ++i) {
      pushed.base_hashes.push_back({number, number * number});
      ++number;
    }
  }
  std::ranges::sort(pushed.leaves, {}, &LeafRecord::key);
  return pushed;
}

std::vector<Golden> MakeGolden() {
  const std::array<std::byte, kSlotBytes> slot = EncodeSlot(ExampleSlot());
  const std::array<std::byte, kSlotBytes> part_slot = EncodeSlot(ExamplePartSlot());
  const std::array<std::byte, kSlotBytes> tip_slot = EncodeSlot(ExampleTipSlot());
  std::vector<Golden> golden = {
      {"leaf_array", EncodeLeafValue(ExampleArray()), false},
      {"leaf_value", EncodeLeafValue(ExampleValue()), false},
      {"leaf_node", EncodeLeafValue(ExampleNode()), false},
      {"leaf_variable", EncodeLeafValue(ExampleVariable()), false},
      {"leaf_partial", EncodeLeafValue(ExamplePartial()), false},
      {"segment_header", EncodeSegmentHeader(ExampleSegmentHeader()), true},
      {"segment_header_of_part", EncodeSegmentHeader(ExamplePartHeader()), true},
      {"catalog_base", EncodeCatalog(ExampleCatalog()), false},
      {"catalog_change", EncodeCatalog(ExampleCatalogChange()), false},
      {"catalog_page", EncodeCatalogPage(ExampleCatalogEntries()).value(), false},
      {"epoch", EncodeEpoch(ExampleEpoch()), true},
      {"records", EncodeRecords(ExampleCommit().records), false},
      {"commit", EncodeCommit(ExampleCommit()), false},
      {"prepared", EncodeCommit(ExamplePrepared()), false},
      {"decided", EncodeDecided(ExampleDecided()), true},
      {"delete", EncodeDelete(ExampleDelete()), true},
      {"meta", EncodeMeta(ExampleMeta()), false},
      {"loss", EncodeLoss(ExampleLoss()), true},
      {"footer", EncodeFooter(ExampleFooter()), true},
      {"trailer", EncodeTrailer(ExampleTrailer()), true},
      {"slot", std::string(AsText(slot)), true},
      {"slot_part", std::string(AsText(part_slot)), true},
      {"slot_tip", std::string(AsText(tip_slot)), true},
      {"frame", EncodeFrame(ExampleFrameHeader(), EncodeDelete(ExampleDelete()), 4096, nullptr),
       true},
      {"records_with_copy", ExampleRecordsRun(), false},
      // Messages of before statistics are shorter: these have taken their places.
      {"leaf_statistics", EncodeLeafValue(ExampleStatistics()), true},
      {"commit_statistics", EncodeCommit(ExampleStatisticsCommit()), false},
      {"catalog_statistics", EncodeCatalog(ExampleStatisticsCatalog()), false},
      {"pushed_step", EncodePushedStep(ExamplePushedStep()), false},
      // So are messages of before taints.
      {"commit_taint", EncodeCommit(ExampleTaintedCommit()), false},
      {"catalog_taint", EncodeCatalog(ExampleTaintedCatalog()), false},
      {"meta_taint", EncodeMeta(ExampleTaintMeta()), true},
      {"pushed_step_taint", EncodePushedStep(ExampleTaintedPush()), false},
      {"pushed_step_timed", EncodePushedStep(ExampleTimedPush()), true},
      {"commit_verified", EncodeCommit(ExampleVerifiedCommit()), false},
      {"catalog_verified", EncodeCatalog(ExampleVerifiedCatalog()), false},
      {"commit_timed", EncodeCommit(ExampleTimedCommit()), false},
      {"catalog_timed", EncodeCatalog(ExampleTimedCatalog()), true},
      {"meta_verified", EncodeMeta(ExampleVerifiedMeta()), true},
      {"push_marker", EncodePushMarker(ExamplePushedStep().objects), true},
      {"leaf_key", EncodeLeafKey("params", ExamplePath()).value(), true},
      {"leaf_key_literal", EncodeLeafKey("params", ExampleLiteralPath()).value(), true},
      {"slot", std::string(AsText(EncodeSlot(ExampleSlot5()))), true, "v5"},
      {"commit_packed", EncodeCommit(ExamplePackedCommit()), false, "v5"},
      {"records_packed", EncodeRecords(ExamplePackedCommit().records), false, "v5"},
  };
  for (const CodecInfo& codec : Codecs()) {
    golden.push_back(
        {StrCat("payload_", codec.name), ExamplePayload(codec.id), codec.id == CodecId::kRaw});
  }
  return golden;
}

}  // namespace stepwell::format
