// SPDX-License-Identifier: Apache-2.0
// Lets the Python tests see this library's OCDBT databases:
//
//   stepwell_ocdbt build DESCRIPTION FOLDER NODES_PATH NODE_ENTRIES_MAX zstd|raw
//
// DESCRIPTION has a line for each file and, after those, each key, in order (KEY and VALUE are an x
// and hexadecimal digits):
//
//   file PATH
//   inline KEY VALUE
//   range KEY NUMBER_OF_FILE OFFSET LENGTH
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <vector>

#include "format/orbax/ocdbt.h"

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

Status Run(const std::vector<std::string>& args) {
  if (!args.empty() && args[0] == "build") return Build(args);
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
