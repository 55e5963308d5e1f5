// SPDX-License-Identifier: Apache-2.0
// Measures deltas of chunks of 1 MiB: weights after Adam's steps, at learning rates that change a
// given share of bf16 weights, and after whole steps of training in bf16 and fp32.
//
//   changed      elements that differ, in per cent
//   ratio        chunk / payload
//   ideal        chunk / the entropy of which elements changed and of their differences, both
//                taken as independent: what one coder without context could reach
#include <benchmark/benchmark.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <vector>

#include "format/codec.h"

namespace stepwell::format {
namespace {

constexpr size_t kDeltaChunkBytes = size_t{1} << 20;

class Random {
 public:
  uint64_t Next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_;
  }
  // In (0, 1].
  double Uniform() { return (static_cast<double>(Next() >> 11) + 1) * 0x1p-53; }
  double Normal() {
    return std::sqrt(-2 * std::log(Uniform())) * std::cos(6.283185307179586 * Uniform());
  }

 private:
  uint64_t state_ = 88172645463325252u;
};

// To nearest, ties to even; no NaN occurs.
uint16_t BFloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

struct Pair {
  std::vector<std::byte> base;
  std::vector<std::byte> now;
};

// Weights as initialized, N(0, 0.02), trained for a few steps with Adam on gradients that are noise
// around a drift; the base is what they are before the last step. Master weights are floats.
Pair AdamStep(bool bfloat16, double learning_rate) {
  constexpr int kSteps = 8;
  const size_t items = kDeltaChunkBytes / (bfloat16 ? 2 : 4);
  Random random;
  Pair pair = {std::vector<std::byte>(kDeltaChunkBytes), std::vector<std::byte>(kDeltaChunkBytes)};
  const auto store = [&](std::vector<std::byte>* to, size_t i, float value) {
    if (bfloat16) {
      const uint16_t pattern = BFloat16(value);
      std::memcpy(to->data() + i * 2, &pattern, 2);
    } else {
      std::memcpy(to->data() + i * 4, &value, 4);
    }
  };
  for (size_t i = 0; i < items; ++i) {
    auto weight = static_cast<float>(0.02 * random.Normal());
    const double drift = 0.3 * random.Normal();
    float mean = 0;
    float square = 0;
    for (int step = 1; step <= kSteps; ++step) {
      const auto gradient = static_cast<float>(drift + random.Normal());
      mean = 0.9f * mean + 0.1f * gradient;
      square = 0.999f * square + 0.001f * gradient * gradient;
      const float mean_hat = mean / (1 - std::pow(0.9f, static_cast<float>(step)));
      const float square_hat = square / (1 - std::pow(0.999f, static_cast<float>(step)));
      if (step == kSteps) store(&pair.base, i, weight);
      weight -= static_cast<float>(learning_rate) * mean_hat / (std::sqrt(square_hat) + 1e-8f);
    }
    store(&pair.now, i, weight);
  }
  return pair;
}

int64_t OrderedValue(const std::byte* at, size_t item_bytes) {
  int64_t pattern = 0;
  std::memcpy(&pattern, at, item_bytes);
  const int64_t sign = int64_t{1} << (item_bytes * 8 - 1);
  return pattern < sign ? pattern : sign - 1 - pattern;
}

// Differences beyond 2^12 are counted by their upper twelve bits; the others are taken as random.
double IdealBytes(const Pair& pair, size_t item_bytes, double* changed_share) {
  std::map<std::pair<int, int64_t>, double> counts;
  const size_t items = pair.base.size() / item_bytes;
  double changed = 0;
  double bits = 0;
  for (size_t at = 0; at < pair.base.size(); at += item_bytes) {
    const int64_t difference =
        OrderedValue(&pair.now[at], item_bytes) - OrderedValue(&pair.base[at], item_bytes);
    if (difference == 0) continue;
    ++changed;
    const int low = std::max(
        0, static_cast<int>(std::bit_width(static_cast<uint64_t>(std::abs(difference)))) - 6);
    ++counts[{low, difference / (int64_t{1} << low)}];
    bits += low;
  }
  for (const auto& [value, count] : counts) bits -= count * std::log2(count / changed);
  const double share = changed / static_cast<double>(items);
  for (const double part : {share, 1 - share}) {
    if (part > 0) bits -= static_cast<double>(items) * part * std::log2(part);
  }
  *changed_share = share;
  return bits / 8;
}

Pair RandomBytes() {
  Random random;
  Pair pair = {std::vector<std::byte>(kDeltaChunkBytes), std::vector<std::byte>(kDeltaChunkBytes)};
  for (std::byte& byte : pair.base) byte = static_cast<std::byte>(random.Next() >> 20);
  for (std::byte& byte : pair.now) byte = static_cast<std::byte>(random.Next() >> 20);
  return pair;
}

// A step of a training, made at its first use: most of the time here goes into making them.
struct Case {
  const char* name;
  bool bfloat16;
  double learning_rate;
  bool unrelated;  // the base is other weights; with a rate of 0 both are random bytes
  std::optional<Pair> pair;

  size_t item_bytes() const { return bfloat16 ? 2 : 4; }
  DeltaType type() const { return {static_cast<uint8_t>(item_bytes()), true}; }
  const Pair& get() {
    if (!pair) {
      pair = learning_rate > 0 ? AdamStep(bfloat16, learning_rate) : RandomBytes();
      if (unrelated) std::rotate(pair->now.begin(), pair->now.begin() + 4000, pair->now.end());
    }
    return *pair;
  }
};

Case cases[] = {
    {"bf16_0.47%", true, 2.17e-7, false, {}},   {"bf16_1.2%", true, 6.58e-7, false, {}},
    {"bf16_3.3%", true, 2.15e-6, false, {}},    {"bf16_8%", true, 6.42e-6, false, {}},
    {"bf16_20%", true, 2.17e-5, false, {}},     {"bf16_40%", true, 6.32e-5, false, {}},
    {"bf16_adam_1e-4", true, 1e-4, false, {}},  {"bf16_adam_1e-3", true, 1e-3, false, {}},
    {"fp32_adam_1e-4", false, 1e-4, false, {}}, {"fp32_adam_1e-3", false, 1e-3, false, {}},
    {"bf16_unrelated", true, 1e-4, true, {}},   {"fp32_unrelated", false, 1e-4, true, {}},
    {"fp32_random", false, 0, true, {}},
};

void Count(benchmark::State& state, Case& of, size_t stored) {
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * int64_t{kDeltaChunkBytes});
  state.SetLabel(of.name);
  double changed = 0;
  const double ideal = IdealBytes(of.get(), of.item_bytes(), &changed);
  constexpr auto kBytes = static_cast<double>(kDeltaChunkBytes);
  state.counters["changed"] = 100 * changed;
  state.counters["ratio"] = stored == 0 ? 1 : kBytes / static_cast<double>(stored);
  state.counters["ideal"] = kBytes / ideal;
}

void DeltaEncode(benchmark::State& state) {
  Case& of = cases[state.range(0)];
  const Pair& pair = of.get();
  std::vector<std::byte> out(kDeltaChunkBytes * 97 / 100);
  size_t stored = 0;
  for (auto _ : state) {
    const Result<Payload> payload = EncodeDelta(of.type(), pair.base, pair.now, out);
    if (!payload.ok()) return state.SkipWithError("encoding failed");
    stored = payload->size_bytes;
  }
  Count(state, of, stored);
}
BENCHMARK(DeltaEncode)->DenseRange(0, std::size(cases) - 1)->ArgName("case");

// Back and forth, so that no copy of the base is measured.
void DeltaApply(benchmark::State& state) {
  Case& of = cases[state.range(0)];
  const Pair& pair = of.get();
  std::vector<std::byte> there(kDeltaChunkBytes);
  std::vector<std::byte> back(kDeltaChunkBytes);
  const Result<Payload> to = EncodeDelta(of.type(), pair.base, pair.now, there);
  const Result<Payload> from = EncodeDelta(of.type(), pair.now, pair.base, back);
  if (!to.ok() || !from.ok() || to->size_bytes == 0 || from->size_bytes == 0) {
    return state.SkipWithError("does not fit");
  }
  const ConstBytes steps[] = {ConstBytes(there).first(to->size_bytes),
                              ConstBytes(back).first(from->size_bytes)};
  const uint32_t crcs[] = {to->crc, from->crc};
  std::vector<std::byte> chunk = pair.base;
  size_t step = 0;
  for (auto _ : state) {
    if (!CheckPayload(steps[step], crcs[step]).ok() ||
        !DecodePayload(CodecId::kDelta, steps[step], chunk).ok()) {
      return state.SkipWithError("decoding failed");
    }
    step = 1 - step;
  }
  if (chunk != (step == 0 ? pair.base : pair.now)) return state.SkipWithError("other bytes");
  Count(state, of, to->size_bytes);
}
BENCHMARK(DeltaApply)
    ->DenseRange(0, std::size(cases) - 2)  // the last does not fit
    ->ArgName("case");

}  // namespace
}  // namespace stepwell::format
