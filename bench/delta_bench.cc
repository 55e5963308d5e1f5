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
#include <string>
#include <vector>

#include "format/codec.h"
#include "format/dtype.h"

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

// The learning rate at which this share of bf16 weights changes.
double RateFor(double share) {
  double low = 1e-9;
  double high = 1e-2;
  for (int i = 0; i < 12; ++i) {
    const double middle = std::sqrt(low * high);
    double changed = 0;
    IdealBytes(AdamStep(true, middle), 2, &changed);
    (changed < share ? low : high) = middle;
  }
  return high;
}

Pair UnrelatedWeights(bool bfloat16) {
  Pair pair = AdamStep(bfloat16, 1e-4);
  std::rotate(pair.now.begin(), pair.now.begin() + 4000, pair.now.end());
  return pair;
}

void Count(benchmark::State& state, const Pair& pair, size_t item_bytes, size_t stored) {
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * int64_t{kDeltaChunkBytes});
  double changed = 0;
  const double ideal = IdealBytes(pair, item_bytes, &changed);
  constexpr auto kBytes = static_cast<double>(kDeltaChunkBytes);
  state.counters["changed"] = 100 * changed;
  state.counters["ratio"] = stored == 0 ? 1 : kBytes / static_cast<double>(stored);
  state.counters["ideal"] = kBytes / ideal;
}

void DeltaEncode(benchmark::State& state, const Pair& pair, size_t item_bytes) {
  const DeltaType type = {static_cast<uint8_t>(item_bytes), true};
  std::vector<std::byte> out(kDeltaChunkBytes * 97 / 100);
  size_t stored = 0;
  for (auto _ : state) {
    const Result<Payload> payload = EncodeDelta(type, pair.base, pair.now, out);
    if (!payload.ok()) return state.SkipWithError("encoding failed");
    stored = payload->size_bytes;
  }
  Count(state, pair, item_bytes, stored);
}

// Back and forth, so that no copy of the base is measured.
void DeltaApply(benchmark::State& state, const Pair& pair, size_t item_bytes) {
  const DeltaType type = {static_cast<uint8_t>(item_bytes), true};
  std::vector<std::byte> there(kDeltaChunkBytes);
  std::vector<std::byte> back(kDeltaChunkBytes);
  const Result<Payload> to = EncodeDelta(type, pair.base, pair.now, there);
  const Result<Payload> from = EncodeDelta(type, pair.now, pair.base, back);
  if (!to.ok() || !from.ok() || to->size_bytes == 0 || from->size_bytes == 0) {
    return state.SkipWithError("encoding failed");
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
  Count(state, pair, item_bytes, to->size_bytes);
}

void Register(const std::string& name, size_t item_bytes, const Pair& pair, bool applies) {
  benchmark::RegisterBenchmark(("DeltaEncode/" + name).c_str(), DeltaEncode, pair, item_bytes);
  if (!applies) return;
  benchmark::RegisterBenchmark(("DeltaApply/" + name).c_str(), DeltaApply, pair, item_bytes);
}

const bool kRegistered = [] {
  for (const double share : {0.0047, 0.012, 0.033, 0.08, 0.2, 0.4}) {
    Register("bf16", 2, AdamStep(true, RateFor(share)), true);
  }
  for (const double rate : {1e-4, 1e-3}) {
    const std::string text = rate < 5e-4 ? "1e-4" : "1e-3";
    Register("bf16_adam_" + text, 2, AdamStep(true, rate), true);
    Register("fp32_adam_" + text, 4, AdamStep(false, rate), true);
  }
  Register("bf16_unrelated", 2, UnrelatedWeights(true), false);
  Register("fp32_unrelated", 4, UnrelatedWeights(false), false);
  return true;
}();

}  // namespace
}  // namespace stepwell::format
