// SPDX-License-Identifier: Apache-2.0
// A checkpoint against the step that it became. Orbax's have no checksums, so a second read is all
// that can tell a flip on the way in.
#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "db/import/import.h"
#include "db/import/source.h"
#include "db/read/restore_plan.h"
#include "format/codec.h"
#include "format/dtype.h"
#include "format/endian.h"
#include "format/grid.h"
#include "format/piece.h"

namespace stepwell::db {
namespace {

using format::LeafKind;
using format::LeafRecord;

constexpr int kDepthMax = 8;

// So that the second read is of the disk. Best effort: what is dirty or mapped stays cached.
void DropCache(io::FileSystem* file_system, const std::string& path, int depth) {
  const auto names = file_system->List(path);
  if (names.ok()) {
    for (const std::string& name : *names) {
      if (depth < kDepthMax) DropCache(file_system, StrCat(path, "/", name), depth + 1);
    }
    return;
  }
  const auto file = file_system->Open(path, {});
  if (!file.ok() || (*file)->descriptor() < 0) return;
  (void)posix_fadvise((*file)->descriptor(), 0, 0, POSIX_FADV_DONTNEED);
}

// Compares elements. Types that use only some bits of a byte compare only those.
bool SameElements(ConstBytes a, ConstBytes b, const format::DTypeInfo& dtype) {
  if (dtype.value_bits == 0) return a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0;
  const auto mask = static_cast<std::byte>((1U << dtype.value_bits) - 1);
  return std::equal(a.begin(), a.end(), b.begin(),
                    [mask](std::byte x, std::byte y) { return (x & mask) == (y & mask); });
}

class Comparison {
 public:
  Comparison(StepReader* reader, const std::string& source) : reader_(reader), source_(source) {}

  Status Run(const SaveRequest& request) {
    far_ = request.far.get();
    const format::StepRecord& step = reader_->step();
    if (request.metadata_json != step.metadata_json || request.metrics_json != step.metrics_json) {
      return Differs("the metadata");
    }
    STEPWELL_ASSIGN_OR_RETURN(const auto leaves, reader_->Leaves(""));
    std::map<std::string_view, const LeafRecord*> stored;
    for (const LeafRecord& leaf : leaves) stored.emplace(leaf.key, &leaf);
    size_t count = 0;
    for (const ItemInput& item : request.items) {
      for (const LeafInput& leaf : item.leaves) {
        const auto found = stored.find(leaf.record.key);
        if (found == stored.end()) return Differs(LeafName(leaf.record));
        STEPWELL_RETURN_IF_ERROR(Compare(leaf, *found->second));
        ++count;
      }
    }
    return count == stored.size() ? OkStatus() : Differs("the number of leaves");
  }

 private:
  Status Differs(const std::string& what) const {
    return DataLossError(StrCat(what, " differs between step ", reader_->step().step,
                                " and a second read of ", source_));
  }

  Status Compare(const LeafInput& leaf, const LeafRecord& stored) {
    const bool same_kind = leaf.record.kind == stored.kind && leaf.record.shape == stored.shape &&
                           leaf.record.value_type == stored.value_type;
    if (!same_kind) return Differs(LeafName(stored));
    if (stored.kind == LeafKind::kValue) return CompareValue(leaf, stored);
    if (stored.kind != LeafKind::kArray) return OkStatus();
    if (leaf.record.dtype != stored.dtype) return Differs(LeafName(stored));
    return leaf.payloads.empty() ? CompareArray(leaf, stored) : ComparePayloads(leaf, stored);
  }

  Status CompareValue(const LeafInput& leaf, const LeafRecord& stored) {
    std::string value = stored.inline_value;
    if (stored.chunk_count > 0) {
      if (stored.logical_bytes != leaf.value.size()) return Differs(LeafName(stored));
      value.resize(stored.logical_bytes);
      LoadRequest request;
      request.leaf = &stored;
      request.out = reinterpret_cast<std::byte*>(value.data());
      STEPWELL_RETURN_IF_ERROR(reader_->Load({&request, 1}).status());
    }
    return value == leaf.value ? OkStatus() : Differs(LeafName(stored));
  }

  Status CompareArray(const LeafInput& leaf, const LeafRecord& stored) {
    if (leaf.shards.empty()) {
      return CompareBox(stored, format::WholeArray(stored.shape), leaf.data);
    }
    for (const ShardInput& shard : leaf.shards) {
      STEPWELL_RETURN_IF_ERROR(far_->Start({&*shard.far, 1}));
      std::vector<FarSource::Copy> read;
      STEPWELL_RETURN_IF_ERROR(far_->Wait({&*shard.far, 1}, &read));
      format::Box box{shard.origin, shard.origin};
      for (size_t axis = 0; axis < shard.shape.size(); ++axis) box.stop[axis] += shard.shape[axis];
      const Status status = CompareBox(stored, box, read.front().data);
      STEPWELL_RETURN_IF_ERROR(far_->Release({&*shard.far, 1}));
      STEPWELL_RETURN_IF_ERROR(status);
    }
    return OkStatus();
  }

  // `read`: the box, in C order.
  Status CompareBox(const LeafRecord& stored, const format::Box& box, const std::byte* read) {
    const format::DTypeInfo* const dtype = format::FindDType(stored.dtype);
    const uint64_t bytes = format::ChunkBytes(format::Extents(box), dtype->item_bytes);
    if (buffer_.size() < bytes) buffer_.resize(bytes);
    LoadRequest request;
    request.leaf = &stored;
    request.box = box;
    request.out = buffer_.data();
    STEPWELL_RETURN_IF_ERROR(reader_->Load({&request, 1}).status());
    const ConstBytes loaded = ConstBytes(buffer_).first(bytes);
    if (SameElements(loaded, {read, bytes}, *dtype)) return OkStatus();
    return Differs(LeafName(stored));
  }

  // Chunks that were saved as they are: the second read has checked its own against their CRCs.
  Status ComparePayloads(const LeafInput& leaf, const LeafRecord& stored) {
    if (stored.chunks.size() != leaf.payloads.size()) return Differs(LeafName(stored));
    for (size_t i = 0; i < leaf.payloads.size(); ++i) {
      const ConstBytes payload = leaf.payloads[i];
      const auto crc = format::LoadLittle<uint32_t>(payload.last(format::kCrcBytes).data());
      if (stored.chunks[i].stored_bytes != payload.size() || stored.chunks[i].crc != crc) {
        return Differs(StrCat(LeafName(stored), ", chunk ", i));
      }
    }
    return OkStatus();
  }

  StepReader* const reader_;
  const std::string& source_;
  FarSource* far_ = nullptr;  // of arrays that are read box by box
  std::vector<std::byte> buffer_;
};

}  // namespace

Status VerifyImport(StoreReader& store, uint64_t step, const std::string& path,
                    const ImportOptions& options, io::FileSystem* file_system) {
  VerifyOptions verify;
  verify.step = step;
  STEPWELL_ASSIGN_OR_RETURN(const VerifyReport report, store.Verify(verify));
  if (!report.problems.empty()) return DataLossError(report.problems.front().message);
  DropCache(file_system, path, 0);
  STEPWELL_ASSIGN_OR_RETURN(const auto checkpoint, OrbaxCheckpoint::Open(file_system, path));
  STEPWELL_ASSIGN_OR_RETURN(const SaveRequest request, ImportRequest(checkpoint, step, options));
  STEPWELL_ASSIGN_OR_RETURN(const auto reader, store.Read(step));
  return Comparison(reader.get(), path).Run(request);
}

}  // namespace stepwell::db
