// SPDX-License-Identifier: Apache-2.0
// The golden files, of the examples.
#include "tests/format/support/examples.h"

namespace stepwell::format {

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
