// SPDX-License-Identifier: Apache-2.0
// Lets the Python tests see this library's chunks:
//
//   stepwell_zarr_chunks encode DTYPE SHAPE CHUNK_SHAPE raw|blosc ARRAY_FILE FOLDER
//   stepwell_zarr_chunks decode DTYPE SHAPE CHUNK_SHAPE raw|blosc FOLDER ARRAY_FILE
//
// SHAPE and CHUNK_SHAPE are like 5x7 (empty: rank 0). Chunk i is the file FOLDER/i; ARRAY_FILE has
// the array's bytes in C order, as NumPy holds them.
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>

#include "format/codec.h"
#include "format/endian.h"
#include "format/grid.h"

namespace stepwell::format {
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

void WriteFile(const std::string& path, ConstBytes bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

Status Run(const std::vector<std::string>& args) {
  if (args.size() != 7) return InvalidArgumentError("seven arguments, see zarr_chunks.cc");
  const DTypeInfo* dtype = FindDType(args[1]);
  if (dtype == nullptr) return InvalidArgumentError("unknown dtype " + args[1]);
  const Shape shape = ParseShape(args[2]);
  const Shape chunk_shape = ParseShape(args[3]);
  const CodecId codec = args[4] == "raw" ? CodecId::kRaw : CodecId::kBloscLz4;
  const std::vector<int64_t> strides = CStrides(shape, dtype->item_bytes);
  std::vector<std::byte> chunk(ChunkBytes(chunk_shape, dtype->item_bytes));
  const uint64_t count = ChunkCount(shape, chunk_shape);
  if (args[0] == "encode") {
    const std::string array = ReadFile(args[5]);
    const StridedArray view{AsBytes(array).data(), shape, strides};
    std::vector<std::byte> out(PayloadBytesMax(codec, chunk.size()));
    for (uint64_t index = 0; index < count; ++index) {
      GatherChunk(view, *dtype, chunk_shape, index, chunk.data());
      STEPWELL_ASSIGN_OR_RETURN(const Payload payload,
                                EncodePayload(codec, dtype->item_bytes, chunk, out));
      WriteFile(args[6] + "/" + std::to_string(index), ConstBytes(out).first(payload.size_bytes));
    }
    return OkStatus();
  }
  STEPWELL_ASSIGN_OR_RETURN(const uint64_t elements, ElementCount(shape, dtype->item_bytes));
  std::vector<std::byte> array(elements * dtype->item_bytes);
  for (uint64_t index = 0; index < count; ++index) {
    const std::string payload = ReadFile(args[5] + "/" + std::to_string(index));
    if (payload.size() < kCrcBytes) return DataLossError("no chunk " + std::to_string(index));
    const auto crc = LoadLittle<uint32_t>(AsBytes(payload).data() + payload.size() - kCrcBytes);
    STEPWELL_RETURN_IF_ERROR(CheckPayload(AsBytes(payload), crc));
    STEPWELL_RETURN_IF_ERROR(DecodePayload(codec, AsBytes(payload), chunk));
    ScatterChunk(chunk, *dtype, shape, chunk_shape, index, WholeArray(shape),
                 {array.data(), shape, strides});
  }
  WriteFile(args[6], array);
  return OkStatus();
}

}  // namespace
}  // namespace stepwell::format

int main(int argc, char** argv) {
  const stepwell::Status status =
      stepwell::format::Run(std::vector<std::string>(argv + 1, argv + argc));
  if (!status.ok()) std::cerr << status.ToString() << "\n";
  return status.ok() ? 0 : 1;
}
