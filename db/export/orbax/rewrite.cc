// SPDX-License-Identifier: Apache-2.0
#include "db/export/orbax/rewrite.h"

#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "db/export/orbax/numbers.h"
#include "format/codec.h"
#include "format/grid.h"

namespace stepwell::db {
namespace {

// Loaded at once, so that what several chunks need is hardly ever read twice.
constexpr uint64_t kRewriteBytesMax = uint64_t{32} << 20;

class ArrayRewriter {
 public:
  ArrayRewriter(const LoadArrays& load, const ExportArray& array, io::File* out, uint64_t* end)
      : load_(load), array_(array), out_(out), end_(end) {}

  // Appends every chunk; `rewritten` gets their records.
  Status Run(const std::function<Status()>& go_on, format::LeafRecord* rewritten) {
    const format::Shape& shape = array_.zarr.shape;
    const format::Shape& chunk_shape = array_.zarr.chunk_shape;
    const uint64_t item_bytes = format::FindDType(array_.leaf->dtype)->item_bytes;
    chunk_bytes_ = format::ChunkBytes(chunk_shape, item_bytes);
    if (chunk_bytes_ > format::kPayloadLogicalMax) {
      return DataLossError("a chunk of an impossible size");
    }
    strides_ = format::CStrides(chunk_shape, item_bytes);
    const uint64_t chunks = format::ChunkCount(shape, chunk_shape);
    const uint64_t batch = std::clamp<uint64_t>(kRewriteBytesMax / chunk_bytes_, 1, chunks + 1);
    for (uint64_t begin = 0; begin < chunks; begin += batch) {
      STEPWELL_RETURN_IF_ERROR(go_on());
      const uint64_t end = std::min(begin + batch, chunks);
      STEPWELL_RETURN_IF_ERROR(Load(begin, end));
      for (uint64_t i = begin; i < end; ++i) {
        const ConstBytes chunk(loaded_.data() + (i - begin) * chunk_bytes_, chunk_bytes_);
        STEPWELL_RETURN_IF_ERROR(Append(chunk, rewritten));
      }
    }
    return OkStatus();
  }

 private:
  // Whole chunks, edges padded with zeros.
  Status Load(uint64_t begin, uint64_t end) {
    const format::LeafRecord& leaf = *array_.leaf;
    const format::Shape& chunk_shape = array_.zarr.chunk_shape;
    loaded_.assign((end - begin) * chunk_bytes_, std::byte{0});
    std::vector<LoadRequest> requests;
    for (uint64_t i = begin; i < end; ++i) {
      LoadRequest& request = requests.emplace_back();
      request.leaf = &leaf;
      request.box.start = format::ChunkOrigin(i, leaf.shape, chunk_shape);
      for (size_t axis = 0; axis < leaf.shape.size(); ++axis) {
        request.box.stop.push_back(
            std::min(request.box.start[axis] + chunk_shape[axis], leaf.shape[axis]));
      }
      request.out = loaded_.data() + (i - begin) * chunk_bytes_;
      request.strides_bytes = strides_;
    }
    return load_(requests);
  }

  Status Append(ConstBytes chunk, format::LeafRecord* rewritten) {
    const uint64_t item_bytes = format::FindDType(array_.zarr.dtype)->item_bytes;
    if (item_bytes != format::FindDType(array_.leaf->dtype)->item_bytes) {
      wide_.resize(chunk.size() * item_bytes);  // the narrow one is of a byte
      WidenElements(array_.leaf->dtype, chunk, wide_);
      chunk = wide_;
    }
    stored_.resize(format::PayloadBytesMax(array_.codec, chunk.size()));
    STEPWELL_ASSIGN_OR_RETURN(const format::Payload payload,
                              format::EncodePayload(array_.codec, item_bytes, chunk, stored_));
    STEPWELL_RETURN_IF_ERROR(out_->WriteAt(*end_, ConstBytes(stored_.data(), payload.size_bytes)));
    format::ChunkRecord& record = rewritten->chunks.emplace_back();
    record.offset_bytes = *end_;
    record.stored_bytes = static_cast<uint32_t>(payload.size_bytes);
    record.crc = payload.crc;
    *end_ += payload.size_bytes;
    return OkStatus();
  }

  const LoadArrays& load_;
  const ExportArray& array_;
  io::File* const out_;
  uint64_t* const end_;  // of what is written
  uint64_t chunk_bytes_ = 0;
  std::vector<int64_t> strides_;
  std::vector<std::byte> loaded_;
  std::vector<std::byte> wide_;
  std::vector<std::byte> stored_;
};

}  // namespace

Status RewriteItem(const LoadArrays& load, const std::string& file,
                   const std::function<Status()>& go_on, ExportFolder* folder, ExportItem* item,
                   std::deque<format::LeafRecord>* records) {
  std::unique_ptr<io::File> out;
  uint64_t end = 0;
  for (ExportArray& array : item->arrays) {
    if (!array.rewrite) continue;
    if (out == nullptr) {
      STEPWELL_ASSIGN_OR_RETURN(out, folder->NewFile(file));
    }
    format::LeafRecord& rewritten = records->emplace_back();
    ArrayRewriter rewriter(load, array, out.get(), &end);
    STEPWELL_RETURN_IF_ERROR(rewriter.Run(go_on, &rewritten));
    array.leaf = &rewritten;
  }
  return out == nullptr ? OkStatus() : folder->Finish(out.get());
}

}  // namespace stepwell::db
