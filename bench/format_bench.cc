// SPDX-License-Identifier: Apache-2.0
// Measures the work of one core on a chunk of 1 MiB: checksum, gather, scatter, encode, decode;
// beside memcpy.
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "format/codec.h"
#include "format/crc32c.h"
#include "format/grid.h"

namespace stepwell::format {
namespace {

constexpr size_t kChunkBytes = size_t{1} << 20;

// Like trained weights: floats around zero, close to each other in size, with random low bits.
std::vector<std::byte> Weights() {
  std::vector<float> values(kChunkBytes / sizeof(float));
  uint32_t random = 1;
  for (float& value : values) {
    float sum = 0;
    for (int i = 0; i < 4; ++i) {
      random = random * 1664525u + 1013904223u;
      sum += static_cast<float>(random >> 8) * 0x1p-24f - 0.5f;
    }
    value = 0.02f * sum;
  }
  std::vector<std::byte> bytes(kChunkBytes);
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

void CountBytes(benchmark::State& state) {
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * int64_t{kChunkBytes});
}

void Memcpy(benchmark::State& state) {
  const std::vector<std::byte> from = Weights();
  std::vector<std::byte> to(kChunkBytes);
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), kChunkBytes);
    benchmark::ClobberMemory();
  }
  CountBytes(state);
}
BENCHMARK(Memcpy);

void Crc32c(benchmark::State& state) {
  const std::vector<std::byte> bytes = Weights();
  for (auto _ : state) benchmark::DoNotOptimize(format::Crc32c(bytes));
  CountBytes(state);
}
BENCHMARK(Crc32c);

// 512 x 512 floats of an array whose rows are contiguous (0) or lie 16 KiB apart (1).
void Gather(benchmark::State& state) {
  const Shape chunk = {512, 512};
  const Shape shape = {512, state.range(0) == 0 ? uint64_t{512} : uint64_t{4096}};
  const std::vector<int64_t> strides = CStrides(shape, 4);
  const std::vector<std::byte> array(shape[0] * shape[1] * 4);
  std::vector<std::byte> out(kChunkBytes);
  const DTypeInfo& dtype = *FindDType(DType::kFloat32);
  for (auto _ : state) {
    GatherChunk({array.data(), shape, strides}, dtype, chunk, 0, out.data());
    benchmark::ClobberMemory();
  }
  CountBytes(state);
}
BENCHMARK(Gather)->Arg(0)->Arg(1);

// All of an array of 64 MiB, in chunks of 1 MiB whose rows have so many bytes: the array's have 16
// KiB.
void GatherRows(benchmark::State& state) {
  const Shape shape = {4096, 4096};
  const uint64_t width = static_cast<uint64_t>(state.range(0)) / 4;
  const Shape chunk = {kChunkBytes / 4 / width, width};
  const std::vector<int64_t> strides = CStrides(shape, 4);
  const std::vector<std::byte> array(shape[0] * shape[1] * 4);
  std::vector<std::byte> out(kChunkBytes);
  const DTypeInfo& dtype = *FindDType(DType::kFloat32);
  const uint64_t count = ChunkCount(shape, chunk);
  uint64_t index = 0;
  for (auto _ : state) {
    GatherChunk({array.data(), shape, strides}, dtype, chunk, index++ % count, out.data());
    benchmark::ClobberMemory();
  }
  CountBytes(state);
}
BENCHMARK(GatherRows)
    ->Arg(256)
    ->Arg(512)
    ->Arg(1024)
    ->Arg(2048)
    ->Arg(4096)
    ->Arg(16384)
    ->ArgName("row");

void Scatter(benchmark::State& state) {
  const Shape chunk = {512, 512};
  const Shape shape = {512, state.range(0) == 0 ? uint64_t{512} : uint64_t{4096}};
  const std::vector<int64_t> strides = CStrides(shape, 4);
  std::vector<std::byte> array(shape[0] * shape[1] * 4);
  const std::vector<std::byte> bytes = Weights();
  const DTypeInfo& dtype = *FindDType(DType::kFloat32);
  const Box box = WholeArray(shape);
  for (auto _ : state) {
    ScatterChunk(bytes, dtype, shape, chunk, 0, box, {array.data(), shape, strides});
    benchmark::ClobberMemory();
  }
  CountBytes(state);
}
BENCHMARK(Scatter)->Arg(0)->Arg(1);

void Encode(benchmark::State& state) {
  const auto codec = static_cast<CodecId>(state.range(0));
  const std::vector<std::byte> bytes = Weights();
  std::vector<std::byte> out(PayloadBytesMax(codec, kChunkBytes));
  size_t stored = 0;
  for (auto _ : state) {
    const Result<Payload> payload = EncodePayload(codec, 4, bytes, out);
    if (!payload.ok()) return state.SkipWithError("encoding failed");
    stored = payload->size_bytes;
  }
  CountBytes(state);
  state.counters["ratio"] = static_cast<double>(kChunkBytes) / static_cast<double>(stored);
}
BENCHMARK(Encode)->Arg(0)->Arg(1)->ArgName("codec");

void CheckAndDecode(benchmark::State& state) {
  const auto codec = static_cast<CodecId>(state.range(0));
  const std::vector<std::byte> bytes = Weights();
  std::vector<std::byte> encoded(PayloadBytesMax(codec, kChunkBytes));
  const Result<Payload> payload = EncodePayload(codec, 4, bytes, encoded);
  if (!payload.ok()) return state.SkipWithError("encoding failed");
  const ConstBytes stored = ConstBytes(encoded).first(payload->size_bytes);
  std::vector<std::byte> out(kChunkBytes);
  for (auto _ : state) {
    if (!CheckPayload(stored, payload->crc).ok() || !DecodePayload(codec, stored, out).ok()) {
      return state.SkipWithError("decoding failed");
    }
    benchmark::ClobberMemory();
  }
  CountBytes(state);
}
BENCHMARK(CheckAndDecode)->Arg(0)->Arg(1)->ArgName("codec");

}  // namespace
}  // namespace stepwell::format
