// SPDX-License-Identifier: Apache-2.0
// Lets the Python tests see what this library makes of Orbax's files:
//
//   stepwell_orbax_files reencode KIND FILE    the file, decoded and encoded again
//   stepwell_orbax_files names FILE            of a _METADATA: each leaf's name, as lines of JSON
//   stepwell_orbax_files fill FILE             of a zarr.json: the fill value's bytes
//   stepwell_orbax_files repr FILE             of a text: its repr
//   stepwell_orbax_files metadata 2|3 DTYPE SHAPE CHUNK_SHAPE raw|blosc
//
// KIND is a name in orbax_examples.cc. `metadata` prints what names Stepwell's chunks of an array,
// and then the key of each chunk, a line each. SHAPE is like 5x7 (empty: rank 0).
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>

#include "format/orbax/python_text.h"
#include "format/orbax/tree_metadata.h"
#include "format/orbax/zarr_metadata.h"
#include "tests/format/support/orbax_examples.h"

namespace stepwell::format::orbax {
namespace {

Shape ParseShape(const std::string& text) {
  Shape shape;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, 'x');) shape.push_back(std::stoull(part));
  return shape;
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

Result<std::string> Metadata(const std::vector<std::string>& args) {
  const DTypeInfo* dtype = FindDType(args[2]);
  if (dtype == nullptr) return InvalidArgumentError("unknown dtype " + args[2]);
  const CodecId codec = args[5] == "raw" ? CodecId::kRaw : CodecId::kBloscLz4;
  const ZarrArray array = StepwellZarrArray(std::stoi(args[1]), dtype->dtype, ParseShape(args[3]),
                                            ParseShape(args[4]), codec);
  STEPWELL_ASSIGN_OR_RETURN(std::string out, EncodeZarrMetadata(array));
  for (uint64_t chunk = 0; chunk < ChunkCount(array.shape, array.chunk_shape); ++chunk) {
    Shape indices = ChunkOrigin(chunk, array.shape, array.chunk_shape);
    for (size_t axis = 0; axis < indices.size(); ++axis) indices[axis] /= array.chunk_shape[axis];
    out.append("\n").append(ZarrChunkKey(array, indices));
  }
  return out;
}

Result<std::string> Run(const std::vector<std::string>& args) {
  if (args.size() == 6 && args[0] == "metadata") return Metadata(args);
  if (args.size() < 2) return InvalidArgumentError("see orbax_files.cc");
  const std::string& path = args.back();
  const std::string text = ReadFile(path);
  std::string out;
  if (args[0] == "repr") {
    AppendPythonRepr(text, &out);
    return out;
  }
  if (args[0] == "fill") {
    STEPWELL_ASSIGN_OR_RETURN(const ZarrArray array, DecodeZarrJson(path, text));
    return ZarrFillElement(path, array);
  }
  if (args[0] == "names") {
    STEPWELL_ASSIGN_OR_RETURN(const TreeMetadata tree, DecodeTreeMetadata(path, text));
    for (const TreeEntry& entry : tree.entries) {
      AppendJsonString(ParamName(entry.keys), &out);
      out.push_back('\n');
    }
    return out;
  }
  for (const FileKind& kind : FileKinds()) {
    if (args.size() == 3 && kind.name == args[1]) return kind.reencode(path, text);
  }
  return InvalidArgumentError("unknown kind " + args[1]);
}

}  // namespace
}  // namespace stepwell::format::orbax

int main(int argc, char** argv) {
  const auto result = stepwell::format::orbax::Run(std::vector<std::string>(argv + 1, argv + argc));
  if (!result.ok()) {
    std::cerr << result.status().ToString() << "\n";
    return 1;
  }
  std::cout << *result;
  return 0;
}
