// SPDX-License-Identifier: Apache-2.0
// Records inside messages: shared by index values (records_value.cc) and frames (records_frame.cc).
// *Words: upper bound of what a record takes outside its own struct. Read*: throw (message.h).
#pragma once

#include "format/message.h"
#include "format/records.h"
#include "format/schema/record.capnp.h"

namespace stepwell::format::internal {

Id128 ReadId(capnp::Data::Reader data, const char* what);
inline capnp::Data::Reader ToData(const Id128& id) {
  return capnp::Data::Reader(id.data(), id.size());
}

size_t ChunkTailWords(const ChunkRecord& record);
void WriteChunk(const ChunkRecord& record, schema::Chunk::Builder out);
void ReadChunk(schema::Chunk::Reader in, ChunkRecord* record);

// `whole`: with key and chunks (frames), else without (index values).
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
