// SPDX-License-Identifier: Apache-2.0
// Lets the Python tests see this library's OCDBT databases:
//
//   stepwell_ocdbt build DESCRIPTION FOLDER NODES_PATH NODE_ENTRIES_MAX zstd|raw
//   stepwell_ocdbt walk FOLDER [BEGIN [END]]
//
// walk prints a line "KEY inline|range VALUE" for each key in [BEGIN, END), then how many ranges of
// files held nodes, the generation and the height.
//
// DESCRIPTION has a line for each file and, after those, each key, in order (KEY and VALUE are an x
// and hexadecimal digits):
//
//   file PATH
//   inline KEY VALUE
//   range KEY NUMBER_OF_FILE OFFSET LENGTH
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <vector>

#include "format/orbax/ocdbt.h"
#include "format/orbax/ocdbt_read.h"

namespace stepwell::format::orbax {
namespace {

Status WriteFile(const std::string& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  return file.good() ? OkStatus() : UnavailableError("cannot write " + path);
}

std::string FromHex(const std::string& text) {
  std::string bytes;
  for (size_t i = 1; i + 1 < text.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoul(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

Status AddLine(const std::string& line, OcdbtBuilder* builder) {
  std::istringstream in(line);
  std::string kind;
  std::string first;
  in >> kind >> first;
  if (kind == "file") return builder->AddFile(line.substr(5)).status();
  if (kind == "inline") {
    std::string value;
    in >> value;
    return builder->AddInline(FromHex(first), FromHex(value));
  }
  OcdbtBuilder::FileId file = 0;
  uint64_t offset = 0;
  uint64_t length = 0;
  in >> file >> offset >> length;
  if (kind != "range" || in.fail()) return InvalidArgumentError("bad line: " + line);
  return builder->AddRange(FromHex(first), file, offset, length);
}

Status Build(const std::vector<std::string>& args) {
  if (args.size() != 6) return InvalidArgumentError("six arguments, see ocdbt.cc");
  OcdbtOptions options;
  for (size_t i = 0; i < options.uuid.size(); ++i) options.uuid[i] = static_cast<std::byte>(i);
  options.commit_time_ns = 1'795'000'000'000'000'000;
  options.nodes_path = args[3];
  options.node_entries_max = std::stoull(args[4]);
  options.compress = args[5] == "zstd";
  STEPWELL_ASSIGN_OR_RETURN(OcdbtBuilder builder, OcdbtBuilder::Create(options));
  std::ifstream description(args[1]);
  for (std::string line; std::getline(description, line);) {
    STEPWELL_RETURN_IF_ERROR(AddLine(line, &builder));
  }
  STEPWELL_ASSIGN_OR_RETURN(const OcdbtImage image, builder.Finish());
  if (image.key_count > 0) {
    STEPWELL_RETURN_IF_ERROR(WriteFile(StrCat(args[2], "/", options.nodes_path), image.nodes));
  }
  std::cout << image.key_count << " " << image.node_count << " " << int{image.height} << "\n";
  return WriteFile(StrCat(args[2], "/", kOcdbtManifestName), image.manifest);
}

std::string ToHex(std::string_view bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text = "x";
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return text;
}

Result<std::string> ReadRange(const std::string& path, uint64_t offset, uint64_t length) {
  std::ifstream file(path, std::ios::binary);
  file.seekg(0, std::ios::end);
  if (!file.good()) return NotFoundError("cannot read " + path);
  const auto size = static_cast<uint64_t>(file.tellg());
  if (offset > size || length > size - offset) return NotFoundError("too short: " + path);
  std::string bytes(length, '\0');
  file.seekg(static_cast<std::streamoff>(offset));
  file.read(bytes.data(), static_cast<std::streamsize>(length));
  return bytes;
}

Status Walk(const std::vector<std::string>& args) {
  if (args.size() < 2 || args.size() > 4) return InvalidArgumentError("see ocdbt.cc");
  const std::string folder = args[1] + "/";
  const auto read_file = [&](const std::string& name) -> Result<std::string> {
    std::ifstream file(folder + name, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const auto list = [&]() -> Result<std::vector<std::string>> {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      names.push_back(entry.path().filename());
    }
    return names;
  };
  STEPWELL_ASSIGN_OR_RETURN(
      const OcdbtNewest newest,
      NewestOcdbtManifest(*read_file(std::string(kOcdbtManifestName)), list, read_file));
  const std::string& manifest = newest.bytes;
  OcdbtKeyRange range;
  if (args.size() > 2) range.begin = FromHex(args[2]);
  if (args.size() > 3) range.end = FromHex(args[3]);
  int reads = 0;
  const auto read = [&](const std::string& name, uint64_t offset, uint64_t length) {
    ++reads;
    return ReadRange(folder + name, offset, length);
  };
  const auto print = [&](std::string_view key, const OcdbtValue& value) -> Status {
    std::string bytes(value.inline_value);
    if (!value.is_inline) {
      STEPWELL_ASSIGN_OR_RETURN(
          bytes, ReadRange(StrCat(folder, value.path), value.offset_bytes, value.length_bytes));
    }
    std::cout << ToHex(key) << (value.is_inline ? " inline " : " range ") << ToHex(bytes) << "\n";
    return OkStatus();
  };
  STEPWELL_RETURN_IF_ERROR(WalkOcdbt(AsBytes(manifest), range, read, print));
  STEPWELL_ASSIGN_OR_RETURN(const OcdbtManifest decoded, DecodeOcdbtManifest(AsBytes(manifest)));
  std::cout << reads << " " << decoded.generation << " " << int{decoded.root_height} << "\n";
  return OkStatus();
}

Status Run(const std::vector<std::string>& args) {
  if (!args.empty() && args[0] == "build") return Build(args);
  if (!args.empty() && args[0] == "walk") return Walk(args);
  return InvalidArgumentError("no such command, see ocdbt.cc");
}

}  // namespace
}  // namespace stepwell::format::orbax

int main(int argc, char** argv) {
  const stepwell::Status status =
      stepwell::format::orbax::Run(std::vector<std::string>(argv + 1, argv + argc));
  if (!status.ok()) std::cerr << status.ToString() << "\n";
  return status.ok() ? 0 : 1;
}
