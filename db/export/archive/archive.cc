// SPDX-License-Identifier: Apache-2.0
// The order of an export to a file: plan, claim the temporary file, stream, sync, rename.
#include "db/export/archive/archive.h"

#include <cstring>
#include <utility>
#include <vector>

#include <stepwell/npy.h>

#include "db/export/archive/plan.h"
#include "db/export/orbax/folder.h"
#include "db/export/orbax/numbers.h"
#include "format/archive.h"
#include "format/piece.h"
#include "io/open_disk.h"

namespace stepwell::db {
namespace {

// Bounds the elements in memory at a time, in their stored form.
constexpr uint64_t kBatchBytesMax = uint64_t{32} << 20;
constexpr size_t kBatchPiecesMax = 4096;
// Below that, writes are collected.
constexpr size_t kCollectedBytes = size_t{1} << 20;

// Appends, and changes what it appended.
class Output {
 public:
  explicit Output(io::File* file) : file_(file) {}

  uint64_t end() const { return written_ + pending_.size(); }

  Status Append(ConstBytes bytes) {
    if (pending_.size() + bytes.size() > kCollectedBytes) STEPWELL_RETURN_IF_ERROR(Flush());
    if (bytes.size() < kCollectedBytes) {
      pending_ += AsText(bytes);
      return OkStatus();
    }
    STEPWELL_RETURN_IF_ERROR(file_->WriteAt(written_, bytes));
    written_ += bytes.size();
    return OkStatus();
  }
  Status Append(std::string_view text) { return Append(AsBytes(text)); }

  // Within one Append.
  Status Change(uint64_t at, std::string_view text) {
    if (at < written_) return file_->WriteAt(at, AsBytes(text));
    std::memcpy(pending_.data() + (at - written_), text.data(), text.size());
    return OkStatus();
  }

  Status Flush() {
    if (pending_.empty()) return OkStatus();
    STEPWELL_RETURN_IF_ERROR(file_->WriteAt(written_, AsBytes(pending_)));
    written_ += pending_.size();
    pending_.clear();
    return OkStatus();
  }

 private:
  io::File* const file_;
  uint64_t written_ = 0;
  std::string pending_;
};

// Writes what a format has around the arrays' bytes. Calls come in the file's order.
class ArchiveWriter {
 public:
  ArchiveWriter(ArchiveFormat format, Output* out)
      : is_npz_(format == ArchiveFormat::kNpz), out_(out) {}

  Status Begin(const ArchivePlan& plan) {
    if (is_npz_) return OkStatus();
    std::vector<format::SafetensorsTensor> tensors;
    uint64_t end = 0;
    for (const ArchiveArray& array : plan.arrays) {
      tensors.push_back({array.name, array.dtype, array.shape, end, end + array.size_bytes});
      end += array.size_bytes;
    }
    STEPWELL_ASSIGN_OR_RETURN(const std::string header,
                              format::EncodeSafetensorsHeader(tensors, plan.metadata));
    return out_->Append(header);
  }

  Status BeginArray(const ArchiveArray& array) {
    if (!is_npz_) return OkStatus();
    const std::string header = EncodeNpyHeader(NpyDescr(array.dtype), array.shape);
    members_.push_back(
        {array.name + ".npy", header.size() + array.size_bytes, out_->end(), /*crc=*/0});
    STEPWELL_RETURN_IF_ERROR(out_->Append(format::EncodeZipLocalHeader(members_.back())));
    return Data(AsBytes(header));
  }

  Status Data(ConstBytes bytes) {
    if (is_npz_) members_.back().crc = format::ExtendCrc32(members_.back().crc, bytes);
    return out_->Append(bytes);
  }

  Status EndArray() {
    if (!is_npz_) return OkStatus();
    const format::ZipMember& member = members_.back();
    return out_->Change(member.offset_bytes + format::kZipCrcOffset,
                        AsText(std::as_bytes(std::span(&member.crc, 1))));
  }

  Status End() {
    return is_npz_ ? out_->Append(format::EncodeZipEnd(members_, out_->end())) : OkStatus();
  }

 private:
  const bool is_npz_;
  Output* const out_;
  std::vector<format::ZipMember> members_;  // of an .npz
};

// A part of an array that is loaded at once.
struct Piece {
  const ArchiveArray* array = nullptr;
  format::Box box;
  uint64_t stored_bytes = 0;  // its elements before widening
  bool first = false;         // of its array
  bool last = false;
};

class Streamer {
 public:
  Streamer(StepReader* reader, const ArchivePlan& plan, const ArchiveOptions& options,
           ArchiveWriter* writer)
      : reader_(reader), plan_(plan), options_(options), writer_(writer) {
    for (const ArchiveArray& array : plan.arrays) total_bytes_ += array.size_bytes;
  }

  Status Run() {
    STEPWELL_RETURN_IF_ERROR(Progress());
    STEPWELL_RETURN_IF_ERROR(writer_->Begin(plan_));
    for (const ArchiveArray& array : plan_.arrays) STEPWELL_RETURN_IF_ERROR(Add(array));
    STEPWELL_RETURN_IF_ERROR(WriteBatch());
    return writer_->End();
  }

 private:
  Status Progress() const {
    if (!options_.progress || options_.progress(done_bytes_, total_bytes_)) return OkStatus();
    return CancelledError("the export was cancelled");
  }

  Status Add(const ArchiveArray& array) {
    if (array.leaf == nullptr || array.size_bytes == 0) {
      return AddPiece({&array, {}, 0, true, true});
    }
    const uint64_t item_bytes = format::FindDType(array.leaf->dtype)->item_bytes;
    ArrayBoxes boxes(array.shape, array.leaf->chunk_shape, item_bytes, kBatchBytesMax);
    std::optional<format::Box> box = boxes.Next();
    for (bool first = true; box; first = false) {
      const uint64_t bytes = format::ChunkBytes(format::Extents(*box), item_bytes);
      Piece piece{&array, *std::move(box), bytes, first, false};
      box = boxes.Next();
      piece.last = !box;
      STEPWELL_RETURN_IF_ERROR(AddPiece(std::move(piece)));
    }
    return OkStatus();
  }

  Status AddPiece(Piece piece) {
    if (pieces_.size() == kBatchPiecesMax || batch_bytes_ + piece.stored_bytes > kBatchBytesMax) {
      STEPWELL_RETURN_IF_ERROR(WriteBatch());
    }
    batch_bytes_ += piece.stored_bytes;
    pieces_.push_back(std::move(piece));
    return OkStatus();
  }

  Status WriteBatch() {
    if (elements_.size() < batch_bytes_) elements_.resize(batch_bytes_);
    std::vector<LoadRequest> requests;
    uint64_t at = 0;
    for (const Piece& piece : pieces_) {
      if (piece.stored_bytes == 0) continue;
      requests.push_back({piece.array->leaf, piece.box, elements_.data() + at, {}});
      at += piece.stored_bytes;
    }
    if (!requests.empty()) STEPWELL_RETURN_IF_ERROR(reader_->Load(requests).status());
    at = 0;
    for (const Piece& piece : pieces_) {
      STEPWELL_RETURN_IF_ERROR(
          WritePiece(piece, ConstBytes(elements_.data() + at, piece.stored_bytes)));
      at += piece.stored_bytes;
    }
    pieces_.clear();
    batch_bytes_ = 0;
    return Progress();
  }

  Status WritePiece(const Piece& piece, ConstBytes elements) {
    const ArchiveArray& array = *piece.array;
    if (piece.first) STEPWELL_RETURN_IF_ERROR(writer_->BeginArray(array));
    if (array.leaf == nullptr) {
      elements = AsBytes(array.element);
    } else if (array.convert() && !elements.empty()) {
      const uint64_t narrow = format::FindDType(array.leaf->dtype)->item_bytes;
      widened_.resize(elements.size() / narrow * format::FindDType(array.dtype)->item_bytes);
      WidenElements(array.leaf->dtype, elements, widened_);
      elements = widened_;
    }
    if (!elements.empty()) STEPWELL_RETURN_IF_ERROR(writer_->Data(elements));
    done_bytes_ += elements.size();
    return piece.last ? writer_->EndArray() : OkStatus();
  }

  StepReader* const reader_;
  const ArchivePlan& plan_;
  const ArchiveOptions& options_;
  ArchiveWriter* const writer_;
  uint64_t total_bytes_ = 0;
  uint64_t done_bytes_ = 0;
  std::vector<Piece> pieces_;
  uint64_t batch_bytes_ = 0;
  std::vector<std::byte> elements_;
  std::vector<std::byte> widened_;
};

Status Write(StepReader* reader, const ArchivePlan& plan, const ArchiveOptions& options,
             io::File* file) {
  uint64_t data_bytes = 0;
  for (const ArchiveArray& array : plan.arrays) data_bytes += array.size_bytes;
  // A disk that is full says so now.
  if (data_bytes > 0) STEPWELL_RETURN_IF_ERROR(file->Allocate(0, data_bytes));
  Output output(file);
  ArchiveWriter writer(options.format, &output);
  STEPWELL_RETURN_IF_ERROR(Streamer(reader, plan, options, &writer).Run());
  return output.Flush();
}

}  // namespace

Result<ExportReport> ExportArchive(StoreReader& store, uint64_t step,
                                   const std::string& destination, const ArchiveOptions& options) {
  if (destination.empty()) return InvalidArgumentError("an export needs a destination");
  io::FileSystem* const file_system =
      options.file_system != nullptr ? options.file_system : store.export_file_system();
  STEPWELL_RETURN_IF_ERROR(CheckOutside(file_system, store.path(), destination));
  STEPWELL_ASSIGN_OR_RETURN(const auto reader, store.Read(step));
  STEPWELL_ASSIGN_OR_RETURN(const auto leaves, reader->Leaves(options.subtree_key));
  if (!options.subtree_key.empty() && leaves.empty()) {
    return InvalidArgumentError(StrCat("step ", step, " has nothing at this path"));
  }
  STEPWELL_ASSIGN_OR_RETURN(ArchivePlan plan, PlanArchive(reader->step(), leaves, options));
  STEPWELL_ASSIGN_OR_RETURN(const auto file, ExportTemporary::Create(file_system, destination));
  if (const uint32_t mode = ExportFileMode(store, 0); mode != 0) {
    STEPWELL_RETURN_IF_ERROR(file_system->SetMode(file->file()->path(), mode));
  }
  STEPWELL_RETURN_IF_ERROR(Write(reader.get(), plan, options, file->file()));
  ExportReport report = std::move(plan.report);
  STEPWELL_ASSIGN_OR_RETURN(report.written_bytes, file->Commit());
  report.apparent_bytes = report.written_bytes;
  report.path = destination;
  report.mode = ExportMode::kCopy;
  return report;
}

}  // namespace stepwell::db
