// SPDX-License-Identifier: Apache-2.0
// One fixed example of everything that has an encoding: what the golden files were made from.
// Never change an example of a released format version; add new ones.
#pragma once

#include <string>
#include <vector>

#include "format/frame.h"
#include "format/key.h"
#include "format/pushed.h"
#include "format/records.h"

namespace stepwell::format {

Id128 ExampleId(uint8_t first);
FramePlace ExamplePlace(uint64_t segment);
ChunkRecord ExampleChunk();
LeafRecord ExampleArray();
// A step of a pushed run, with all kinds of leaves; its last chunk is a difference.
PushedStep ExamplePushedStep();
PushedStep ExampleTaintedPush();
LeafRecord ExampleValue();
LeafRecord ExampleNode();
// The value of an NNX Variable.
LeafRecord ExampleVariable();
// With statistics, without chunks.
LeafRecord ExampleStatistics();
StepRecord ExampleStep();
// These come from a store that is a part of a group.
LeafRecord ExamplePartial();
Commit ExamplePrepared();
Decided ExampleDecided();
StoreSlot ExamplePartSlot();
SegmentHeader ExampleSegmentHeader();
Catalog ExampleCatalog();
Catalog ExampleCatalogChange();
Catalog ExampleCatalogEntries();
EpochRecord ExampleEpoch();
Commit ExampleCommit();
Commit ExampleStatisticsCommit();
// With enough leaves to be packed.
Commit ExamplePackedCommit();
Catalog ExampleStatisticsCatalog();
Delete ExampleDelete();
Meta ExampleMeta();
Commit ExampleTaintedCommit();
Catalog ExampleTaintedCatalog();
Meta ExampleTaintMeta();
Commit ExampleVerifiedCommit();
Catalog ExampleVerifiedCatalog();
PushedStep ExampleTimedPush();
Commit ExampleTimedCommit();
Catalog ExampleTimedCatalog();
Meta ExampleVerifiedMeta();
Footer ExampleFooter();
Trailer ExampleTrailer();
StoreSlot ExampleSlot();   // of format 4
StoreSlot ExampleSlot5();  // of format 5
FrameHeader ExampleFrameHeader();
KeyPath ExamplePath();
KeyPath ExampleLiteralPath();
// 64 x 16 float32: 0.5, 1.0, 1.5 ...
std::string ExampleLogical();
// An older content of the same chunk: every third float was slightly less.
std::string ExampleBase();
std::string ExamplePayload(CodecId codec);

SegmentHeader ExamplePartHeader();
LossRecord ExampleLoss();
StoreSlot ExampleTipSlot();
// A frame of records, with its copy behind it, in blocks of 4 KiB.
std::string ExampleRecordsRun();

struct Golden {
  std::string name;
  std::string bytes;
  bool
      canonical;  // encoding is the same for ever; compressed bytes depend on the library's version
  std::string version = "v4";  // the first that has it
};
std::vector<Golden> MakeGolden();

}  // namespace stepwell::format
