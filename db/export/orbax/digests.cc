// SPDX-License-Identifier: Apache-2.0
#include "db/export/orbax/digests.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <set>
#include <span>
#include <utility>

#include "db/export/orbax/numbers.h"
#include "format/codec.h"
#include "format/crc32c.h"
#include "format/endian.h"
#include "format/orbax/json.h"
#include "format/orbax/orbax_files.h"
#include "io/buffer.h"
#include "io/small_file.h"

namespace stepwell::db {
namespace {

using format::orbax::Json;

constexpr std::string_view kFirstLine = "stepwell digests 2 crc32c";
constexpr std::string_view kFirstLineV1 = "stepwell digests 1 crc32c";
constexpr uint64_t kDigestsBytesMax = uint64_t{1} << 30;
constexpr uint64_t kMetadataBytesMax = uint64_t{16} << 20;
constexpr size_t kReadBytes = size_t{4} << 20;

std::string Hex(uint32_t crc) {
  char text[9];
  std::snprintf(text, sizeof(text), "%08x", crc);
  return text;
}

std::string Quoted(const std::string& name) {
  return Json(name).dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
}

uint32_t TailOf(ConstBytes bytes) {
  std::array<std::byte, format::kCrcBytes> tail{};
  std::copy(bytes.begin(), bytes.end(), tail.begin());
  return format::LoadLittle<uint32_t>(tail.data());
}

// The words of a line, one after the other.
class Words {
 public:
  explicit Words(std::string_view line) : rest_(line) {}

  std::string_view Next() {
    const size_t end = std::min(rest_.find(' '), rest_.size());
    const std::string_view word = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    return word;
  }
  template <typename Number>
  bool Next(Number* out, int base = 10) {
    return ParseInteger(Next(), out, base);
  }
  bool Rest(std::string* name) const {
    const Json json = Json::parse(rest_, nullptr, /*allow_exceptions=*/false);
    if (!json.is_string()) return false;
    *name = json.get<std::string>();
    return true;
  }
  bool empty() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

// A name that leads out of the checkpoint is none of an export's.
bool IsBelow(const std::string& name) {
  if (name.empty() || name.front() == '/') return false;
  const std::string slashed = StrCat("/", name, "/");
  return slashed.find("/../") == std::string::npos && slashed.find('\0') == std::string::npos;
}

bool DecodeLine(std::string_view line, ExportDigests* digests) {
  Words words(line);
  if (line.starts_with("step ") && !digests->step) {
    words.Next();
    return words.Next(&digests->step.emplace()) && *digests->step <= INT64_MAX && words.empty();
  }
  if (line.starts_with("file ")) {
    words.Next();
    FileDigest& file = digests->files.emplace_back();
    return words.Next(&file.crc, 16) && words.Next(&file.tail, 16) && words.Next(&file.bytes) &&
           words.Rest(&file.name) && IsBelow(file.name);
  }
  if (line.starts_with("item files ")) {
    words.Next();
    words.Next();
    std::string& folder = digests->file_items.emplace_back();
    return words.Rest(&folder) && IsBelow(folder);
  }
  if (line.starts_with("item left-out ")) {
    words.Next();
    words.Next();
    return words.Rest(&digests->left_out.emplace_back());
  }
  if (line.starts_with("data ")) {
    words.Next();
    DataDigest& data = digests->data.emplace_back();
    return words.Next(&data.bytes) && words.Rest(&data.name) && IsBelow(data.name);
  }
  if (digests->data.empty()) return false;
  DataDigest& data = digests->data.back();
  ChunkDigest chunk;
  if (!words.Next(&chunk.offset_bytes) || !words.Next(&chunk.stored_bytes) ||
      !words.Next(&chunk.crc, 16) || !words.empty()) {
    return false;
  }
  const uint64_t after =
      data.chunks.empty() ? 0 : data.chunks.back().offset_bytes + data.chunks.back().stored_bytes;
  if (chunk.offset_bytes < after || chunk.stored_bytes < format::kCrcBytes ||
      chunk.offset_bytes > data.bytes || chunk.stored_bytes > data.bytes - chunk.offset_bytes) {
    return false;
  }
  data.chunks.push_back(chunk);
  return true;
}

// `*problem` says that the file is missing (then this is null), or has another size.
Result<std::unique_ptr<io::File>> OpenToCheck(io::FileSystem* file_system, const std::string& path,
                                              uint64_t bytes, std::string* problem) {
  auto file = file_system->Open(path, {});
  if (file.status().code() == StatusCode::kNotFound) {
    *problem = "the file is missing";
    return std::unique_ptr<io::File>();
  }
  STEPWELL_RETURN_IF_ERROR(file.status());
  STEPWELL_ASSIGN_OR_RETURN(const io::FileInfo info, (*file)->Info());
  if (info.size_bytes != bytes) {
    *problem = StrCat("the file has ", info.size_bytes, " bytes, expected ", bytes);
  }
  return file;
}

// Reads one data file. It reads far ahead, because chunks lie together.
class DataReader {
 public:
  explicit DataReader(io::File* file) : file_(file) {}

  // Bytes that live until the next call. Fewer only at the end of the file.
  Result<ConstBytes> Read(uint64_t offset, size_t length) {
    if (offset < begin_ || offset + length > begin_ + filled_) {
      const size_t wanted = std::max(length, kReadBytes);
      if (buffer_.size() < wanted) buffer_ = io::AlignedBuffer(wanted);
      if (!buffer_) return ResourceExhaustedError(StrCat("no memory for ", wanted, " bytes"));
      begin_ = offset;
      filled_ = 0;
      STEPWELL_ASSIGN_OR_RETURN(filled_, file_->ReadAt(offset, buffer_.bytes().first(wanted)));
      read_bytes_ += filled_;
    }
    const size_t at = offset - begin_;
    return ConstBytes(buffer_.bytes())
        .subspan(at, std::min(length, filled_ - std::min(filled_, at)));
  }
  uint64_t read_bytes() const { return read_bytes_; }

 private:
  io::File* const file_;
  io::AlignedBuffer buffer_;
  uint64_t begin_ = 0;
  size_t filled_ = 0;
  uint64_t read_bytes_ = 0;
};

Status CheckChunk(const ChunkDigest& digest, ConstBytes stored) {
  if (stored.size() != digest.stored_bytes) return DataLossError("the file ends within the chunk");
  const size_t logical = stored.size() - format::kCrcBytes;
  if (format::Crc32c(stored.first(logical)) != digest.crc) {
    return DataLossError("the checksum of the chunk does not match");
  }
  if (format::LoadLittle<uint32_t>(stored.data() + logical) == digest.crc) return OkStatus();
  return DataLossError("the checksum behind the chunk does not match");
}

// The item's folder that a file is in; "": it is in none.
std::string_view FolderOf(std::string_view name) {
  return name.substr(0, name.find('/') == std::string_view::npos ? 0 : name.find('/'));
}

std::set<std::string> FoldersOf(const ExportDigests& digests) {
  std::set<std::string> folders;
  for (const FileDigest& file : digests.files) folders.emplace(FolderOf(file.name));
  folders.erase("");
  return folders;
}

// Drops the digests of items that Orbax deleted from a copy. Orbax then removes the item's
// directory and its handler in the metadata, which differ from the exported ones. An item whose
// directory was lost still has its handler.
Status ForgetDeleted(io::FileSystem* file_system, const std::string& checkpoint,
                     ExportDigests* digests) {
  const std::string_view name = format::orbax::kCheckpointMetadataName;
  const std::string path = StrCat(checkpoint, "/", name);
  STEPWELL_ASSIGN_OR_RETURN(const auto text, io::ReadIfThere(file_system, path, kMetadataBytesMax));
  if (!text) return OkStatus();
  const auto metadata = format::orbax::DecodeCheckpointMetadata(path, *text);
  using Items = std::vector<format::orbax::ItemHandler>;
  const Items* items = metadata.ok() ? std::get_if<Items>(&metadata->handlers) : nullptr;
  if (items == nullptr) return OkStatus();  // damaged, or of one item: its digest says it
  std::set<std::string> deleted = FoldersOf(*digests);
  for (const format::orbax::ItemHandler& item : *items) deleted.erase(item.item);
  for (auto folder = deleted.begin(); folder != deleted.end();) {
    STEPWELL_ASSIGN_OR_RETURN(const auto there,
                              io::StatIfThere(file_system, StrCat(checkpoint, "/", *folder)));
    folder = there ? deleted.erase(folder) : std::next(folder);
  }
  if (deleted.empty()) return OkStatus();
  const auto is_gone = [&](const std::string& file) {
    return file == name || deleted.contains(std::string(FolderOf(file)));
  };
  std::erase_if(digests->files, [&](const FileDigest& file) { return is_gone(file.name); });
  std::erase_if(digests->data, [&](const DataDigest& data) { return is_gone(data.name); });
  std::erase_if(digests->file_items,
                [&](const std::string& each) { return deleted.contains(each); });
  return OkStatus();
}

class Verifier {
 public:
  Verifier(io::FileSystem* file_system, const std::string& checkpoint, const ExportDigests& digests,
           const std::function<bool(uint64_t, uint64_t)>& progress)
      : file_system_(file_system),
        checkpoint_(checkpoint),
        digests_(digests),
        progress_(progress) {}

  Result<VerifyReport> Run() {
    for (const FileDigest& file : digests_.files) total_ += file.bytes;
    for (const DataDigest& data : digests_.data) {
      for (const ChunkDigest& chunk : data.chunks) total_ += chunk.stored_bytes;
    }
    for (const FileDigest& file : digests_.files) {
      STEPWELL_ASSIGN_OR_RETURN(auto problem, CheckFile(file_system_, checkpoint_, file));
      if (problem) report_.problems.push_back(*std::move(problem));
      ++report_.files;
      STEPWELL_RETURN_IF_ERROR(Advance(file.bytes));
    }
    for (const DataDigest& data : digests_.data) {
      STEPWELL_RETURN_IF_ERROR(CheckData(data));
      ++report_.files;
    }
    return std::move(report_);
  }

 private:
  Status Advance(uint64_t bytes) {
    report_.bytes += bytes;
    if (!progress_ || progress_(report_.bytes, total_)) return OkStatus();
    return CancelledError("verifying was cancelled");
  }

  Status CheckData(const DataDigest& data) {
    const std::string path = StrCat(checkpoint_, "/", data.name);
    const auto found = [&](uint64_t offset, std::string message) {
      VerifyProblem& problem = report_.problems.emplace_back();
      problem.file = path;
      problem.offset_bytes = offset;
      problem.message = std::move(message);
    };
    std::string wrong;
    STEPWELL_ASSIGN_OR_RETURN(const auto file, OpenToCheck(file_system_, path, data.bytes, &wrong));
    if (!wrong.empty()) found(0, wrong);
    if (file == nullptr) return OkStatus();
    DataReader reader(file.get());
    for (const ChunkDigest& chunk : data.chunks) {
      const auto bytes = reader.Read(chunk.offset_bytes, chunk.stored_bytes);
      const Status status = bytes.ok() ? CheckChunk(chunk, *bytes) : bytes.status();
      if (!status.ok()) found(chunk.offset_bytes, status.message());
      ++report_.chunks;
      STEPWELL_RETURN_IF_ERROR(Advance(chunk.stored_bytes));
    }
    return OkStatus();
  }

  io::FileSystem* const file_system_;
  const std::string& checkpoint_;
  const ExportDigests& digests_;
  const std::function<bool(uint64_t, uint64_t)>& progress_;
  uint64_t total_ = 0;
  VerifyReport report_;
};

}  // namespace

FileDigest DigestOf(std::string_view name, std::string_view bytes) {
  const size_t head = bytes.size() - std::min(bytes.size(), format::kCrcBytes);
  return {std::string(name), bytes.size(), format::Crc32c(AsBytes(bytes.substr(0, head))),
          TailOf(AsBytes(bytes.substr(head)))};
}

std::string EncodeDigests(const ExportDigests& digests) {
  std::string text = StrCat(digests.step ? kFirstLine : kFirstLineV1, "\n");
  if (digests.step) text += StrCat("step ", *digests.step, "\n");
  for (const std::string& folder : digests.file_items) {
    text += StrCat("item files ", Quoted(folder), "\n");
  }
  for (const std::string& name : digests.left_out) {
    text += StrCat("item left-out ", Quoted(name), "\n");
  }
  for (const FileDigest& file : digests.files) {
    text += StrCat("file ", Hex(file.crc), " ", Hex(file.tail), " ", file.bytes, " ",
                   Quoted(file.name), "\n");
  }
  for (const DataDigest& data : digests.data) {
    text += StrCat("data ", data.bytes, " ", Quoted(data.name), "\n");
    for (const ChunkDigest& chunk : data.chunks) {
      text += StrCat(chunk.offset_bytes, " ", chunk.stored_bytes, " ", Hex(chunk.crc), "\n");
    }
  }
  return text + StrCat("end ", Hex(format::Crc32c(AsBytes(text))), "\n");
}

Result<ExportDigests> DecodeDigests(const std::string& path, std::string_view text) {
  const auto damaged = [&](std::string_view what) {
    return DataLossError(StrCat(path, ": ", what));
  };
  const size_t last = text.rfind("\nend ");
  if (last == std::string_view::npos) return damaged("the digests are cut off");
  const std::string_view body = text.substr(0, last + 1);
  if (text.substr(last + 1) != StrCat("end ", Hex(format::Crc32c(AsBytes(body))), "\n")) {
    return damaged("the digests' own checksum does not match");
  }
  ExportDigests digests;
  size_t begin = body.find('\n') + 1;
  const std::string_view first = body.substr(0, begin - 1);
  if (first != kFirstLine && first != kFirstLineV1) return damaged("unknown kind of digests");
  while (begin < body.size()) {
    const size_t end = body.find('\n', begin);
    if (!DecodeLine(body.substr(begin, end - begin), &digests)) {
      return damaged(StrCat("no digest at offset ", begin));
    }
    begin = end + 1;
  }
  return digests;
}

Result<std::optional<ExportDigests>> ReadDigests(io::FileSystem* file_system,
                                                 const std::string& checkpoint) {
  const std::string path = StrCat(checkpoint, "/", kDigestsName);
  STEPWELL_ASSIGN_OR_RETURN(const auto text, io::ReadIfThere(file_system, path, kDigestsBytesMax));
  if (!text) return std::optional<ExportDigests>();
  STEPWELL_ASSIGN_OR_RETURN(ExportDigests digests, DecodeDigests(path, *text));
  STEPWELL_RETURN_IF_ERROR(ForgetDeleted(file_system, checkpoint, &digests));
  return std::optional(std::move(digests));
}

Result<std::optional<std::string>> CarryDigests(io::FileSystem* file_system,
                                                const std::string& checkpoint,
                                                const std::vector<std::string>& items, bool is_item,
                                                const std::string& deleted,
                                                std::string_view metadata) {
  STEPWELL_ASSIGN_OR_RETURN(auto digests, ReadDigests(file_system, checkpoint));
  if (!digests) return std::optional<std::string>();
  const std::string_view metadata_name = format::orbax::kCheckpointMetadataName;
  // False: the checkpoint does not have it.
  const auto carry = [&](std::string* name) {
    const size_t slash = name->find('/');
    if (slash == std::string::npos) return !is_item && *name != metadata_name;
    if (std::find(items.begin(), items.end(), name->substr(0, slash)) == items.end()) return false;
    if (is_item) name->erase(0, slash + 1);
    return true;
  };
  std::erase_if(digests->files, [&](FileDigest& file) { return !carry(&file.name); });
  std::erase_if(digests->data, [&](DataDigest& data) { return !carry(&data.name); });
  std::erase_if(digests->file_items, [&](const std::string& folder) {
    return is_item || std::find(items.begin(), items.end(), folder) == items.end();
  });
  std::erase(digests->left_out, deleted);
  digests->files.push_back(DigestOf(metadata_name, metadata));
  return std::optional(EncodeDigests(*digests));
}

Result<std::vector<std::string>> MissingItems(io::FileSystem* file_system,
                                              const std::string& checkpoint) {
  STEPWELL_ASSIGN_OR_RETURN(const auto digests, ReadDigests(file_system, checkpoint));
  if (!digests) return std::vector<std::string>();
  std::vector<std::string> missing = digests->left_out;
  for (const std::string& folder : FoldersOf(*digests)) {
    STEPWELL_ASSIGN_OR_RETURN(const auto there,
                              io::StatIfThere(file_system, StrCat(checkpoint, "/", folder)));
    if (!there) missing.push_back(folder);
  }
  return missing;
}

Result<std::optional<VerifyProblem>> CheckFile(io::FileSystem* file_system,
                                               const std::string& checkpoint,
                                               const FileDigest& digest) {
  VerifyProblem problem;
  problem.file = StrCat(checkpoint, "/", digest.name);
  STEPWELL_ASSIGN_OR_RETURN(const auto file,
                            OpenToCheck(file_system, problem.file, digest.bytes, &problem.message));
  if (!problem.message.empty()) return std::optional(std::move(problem));
  DataReader reader(file.get());
  FileDigest found = digest;
  found.crc = 0;
  const uint64_t tail_bytes = std::min<uint64_t>(digest.bytes, format::kCrcBytes);
  const uint64_t head_bytes = digest.bytes - tail_bytes;
  for (uint64_t at = 0; at < digest.bytes;) {
    const bool is_tail = at == head_bytes;
    const uint64_t wanted = is_tail ? tail_bytes : std::min<uint64_t>(kReadBytes, head_bytes - at);
    auto read = reader.Read(at, wanted);
    if (read.ok() && read->size() < wanted) read = DataLossError("the file ends early");
    if (!read.ok()) {
      problem.offset_bytes = at;
      problem.message = read.status().message();
      return std::optional(std::move(problem));
    }
    if (is_tail) {
      found.tail = TailOf(*read);
    } else {
      found.crc = format::ExtendCrc32c(found.crc, *read);
    }
    at += wanted;
  }
  if (found == digest) return std::optional<VerifyProblem>();
  problem.message = "the checksum of the file does not match";
  return std::optional(std::move(problem));
}

Result<VerifyReport> VerifyExport(io::FileSystem* file_system, const std::string& checkpoint,
                                  const std::function<bool(uint64_t, uint64_t)>& progress) {
  STEPWELL_ASSIGN_OR_RETURN(const auto digests, ReadDigests(file_system, checkpoint));
  if (!digests) {
    return FailedPreconditionError(StrCat(checkpoint, " has no file ", kDigestsName,
                                          ": there is nothing to check it against"));
  }
  return Verifier(file_system, checkpoint, *digests, progress).Run();
}

Status CheckChunk(const ChunkDigest& digest, bool ends_in_crc, ConstBytes bytes) {
  const bool has_crc = ends_in_crc && bytes.size() >= format::kCrcBytes;
  const uint32_t crc = has_crc ? format::LoadLittle<uint32_t>(bytes.last(format::kCrcBytes).data())
                               : format::Crc32c(bytes);
  if (crc == digest.crc) return OkStatus();
  return DataLossError("the checksum of the chunk is another one than the export's");
}

}  // namespace stepwell::db
