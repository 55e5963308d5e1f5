// SPDX-License-Identifier: Apache-2.0
#include "api/cli/npy.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include <stepwell/npy.h>

#include "api/cli/array_read.h"
#include "api/cli/text.h"

namespace stepwell::cli {
Result<std::unique_ptr<OutputFile>> OutputFile::Open(const std::string& path) {
  if (path.empty()) return std::unique_ptr<OutputFile>(new OutputFile("", "", STDOUT_FILENO));
  struct stat status {};
  if (stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    // A device or a pipe must not be replaced by a file.
    const int descriptor = open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (descriptor < 0) return ErrnoStatus(errno, StrCat("write ", path));
    return std::unique_ptr<OutputFile>(new OutputFile(path, "", descriptor));
  }
  const std::string part_path = StrCat(path, ".part-", getpid());
  const int descriptor =
      open(part_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (descriptor < 0) {
    // Not kNotFound: that is about stores.
    const Status error = ErrnoStatus(errno, StrCat("create ", path));
    return error.code() == StatusCode::kNotFound
               ? Status(StatusCode::kIoError, error.message(), error.os_error())
               : error;
  }
  return std::unique_ptr<OutputFile>(new OutputFile(path, part_path, descriptor));
}

OutputFile::~OutputFile() {
  if (path_.empty() || descriptor_ < 0) return;
  close(descriptor_);
  if (!part_path_.empty()) unlink(part_path_.c_str());
}

Status OutputFile::Write(std::span<const std::byte> bytes) {
  while (!bytes.empty() && !ended_) {
    const ssize_t written = write(descriptor_, bytes.data(), bytes.size());
    if (written >= 0) {
      bytes = bytes.subspan(static_cast<size_t>(written));
      bytes_written_ += static_cast<uint64_t>(written);
    } else if (errno == EPIPE) {
      ended_ = true;
    } else if (errno != EINTR) {
      return ErrnoStatus(errno, path_.empty() ? "write to standard output" : "write " + path_);
    }
  }
  return OkStatus();
}

Status OutputFile::Close() {
  if (path_.empty() || descriptor_ < 0) return OkStatus();
  const bool closed = close(descriptor_) == 0;
  const int close_error = errno;
  descriptor_ = -1;
  if (closed && (part_path_.empty() || rename(part_path_.c_str(), path_.c_str()) == 0)) {
    return OkStatus();
  }
  const int os_error = closed ? errno : close_error;
  if (!part_path_.empty()) unlink(part_path_.c_str());
  return ErrnoStatus(os_error, "write " + path_);
}

Result<NpyHeader> MakeNpyHeader(const LeafInfo& leaf, const std::string& path_text,
                                const Ranges& ranges, bool bits) {
  STEPWELL_ASSIGN_OR_RETURN(const DTypeInfo* info, ElementType(leaf));
  std::string descr = NpyDescr(leaf.dtype);
  if (descr.empty()) {
    const unsigned value_bits = 8U * info->item_bytes;
    if (!bits) {
      return FailedPreconditionError(StrCat(
          path_text, " is ", info->name, ", which NumPy itself does not have. Add --bits to ",
          "write it as uint", value_bits, "; np.load(FILE).view(ml_dtypes.", info->name,
          ") then has the values"));
    }
    descr = StrCat(info->item_bytes == 1 ? "|u" : "<u", static_cast<unsigned>(info->item_bytes));
  }
  return NpyHeader{std::move(descr), ResultShape(ranges)};
}

Status WriteNpy(const Step& step, const LeafInfo& leaf, const Ranges& ranges,
                const NpyHeader& header, OutputFile* file) {
  STEPWELL_ASSIGN_OR_RETURN(const DTypeInfo* info, ElementType(leaf));
  const std::string start = EncodeNpyHeader(header.descr, header.shape);
  STEPWELL_RETURN_IF_ERROR(file->Write(std::as_bytes(std::span(start))));
  SelectionBoxes boxes(ranges, leaf.chunk_shape, info->item_bytes, kBoxBytesMax);
  std::vector<std::byte> bytes;
  for (std::optional<Ranges> box = boxes.Next(); box && !file->ended(); box = boxes.Next()) {
    STEPWELL_RETURN_IF_ERROR(LoadBox(step, leaf, *box, &bytes));
    STEPWELL_RETURN_IF_ERROR(file->Write(bytes));
  }
  return OkStatus();
}

}  // namespace stepwell::cli
