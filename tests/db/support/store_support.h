// SPDX-License-Identifier: Apache-2.0
// States whose every byte follows from (seed, path), for tests of the whole store.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "db/store.h"
#include "format/key.h"
#include "tests/io/support/expect_ok.h"
#include "tests/storm.h"

namespace stepwell::db {

struct LeafSpec {
  std::string name;
  format::Shape shape;  // of float32
  bool hold = false;
  bool compressible = false;
  // States of seeds with the same quotient have the same data here: the head of it, in whole
  // chunks, or all where `steady_bytes` is 0.
  uint64_t changes_every = 1;
  uint64_t steady_bytes = 0;
  uint64_t chunk_bytes_max = 0;  // 0: chunks of the usual size
  // One element in so many changes, a little, from one seed to the next, and nothing else; 0: as
  // above.
  uint64_t sparse_every = 0;
  // The name of an earlier leaf, otherwise alike, whose array this one is, too; "": it has its own.
  std::string same_as = {};
};

inline std::vector<LeafSpec> SmallState() {
  return {{"a", {7}, false, false},
          {"b", {300, 40}, true, false},
          {"c", {}, false, false},
          {"d", {0, 3}, false, false},
          {"e", {40000}, true, true}};
}

inline std::vector<float> SparseData(uint64_t count, uint64_t seed, uint64_t every) {
  std::vector<float> data(count);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t scattered = (i * 0x9E3779B97F4A7C15ull) >> 32;
    data[i] = static_cast<float>(scattered % 1009) +
              static_cast<float>((seed + scattered % every) / every);
  }
  return data;
}

inline std::vector<float> LeafData(const LeafSpec& spec, uint64_t seed) {
  uint64_t count = 1;
  for (const uint64_t extent : spec.shape) count *= extent;
  const uint64_t steady_seed = seed / spec.changes_every;
  if (spec.sparse_every != 0) return SparseData(count, seed, spec.sparse_every);
  if (spec.compressible) return std::vector<float>(count, static_cast<float>(steady_seed));
  std::vector<float> data(count);
  const auto fill = [&](size_t begin, size_t end, uint64_t of) {
    uint64_t x = of * 0x9E3779B97F4A7C15ull +
                 std::hash<std::string>{}(spec.same_as.empty() ? spec.name : spec.same_as);
    for (size_t i = begin; i < end; ++i) {
      x ^= x << 13;
      x ^= x >> 7;
      x ^= x << 17;
      data[i] = static_cast<float>(x % 100003);
    }
  };
  const size_t steady = spec.steady_bytes == 0 ? count : spec.steady_bytes / sizeof(float);
  fill(0, std::min(steady, data.size()), steady_seed);
  fill(std::min(steady, data.size()), data.size(), seed);
  return data;
}

inline std::string KeyOf(const std::string& item, const std::string& name) {
  return std::move(format::EncodeLeafKey(
                       item, {{.type = format::PathComponent::Type::kKey, .name = name}}))
      .value();
}

// Every third step has none.
inline std::string MetricsOf(uint64_t seed) {
  return seed % 3 == 0 ? "" : "{\"loss\": " + std::to_string(seed) + "}";
}

// A request whose unheld arrays may be destroyed (through `scratch`) right after Save returned.
inline SaveRequest MakeRequest(uint64_t step, uint64_t seed, const std::vector<LeafSpec>& specs,
                               std::vector<std::vector<float>>* scratch) {
  SaveRequest request;
  request.step = step;
  request.metadata_json = "{\"seed\": " + std::to_string(seed) + "}";
  request.metrics_json = MetricsOf(seed);
  ItemInput item;
  item.name = "state";
  for (const LeafSpec& spec : specs) {
    LeafInput leaf;
    leaf.record.key = KeyOf("state", spec.name);
    leaf.record.kind = format::LeafKind::kArray;
    leaf.record.dtype = format::DType::kFloat32;
    leaf.record.shape = spec.shape;
    leaf.chunk_bytes_max = spec.chunk_bytes_max;
    if (!spec.same_as.empty()) {
      const auto other = std::find_if(
          item.leaves.begin(), item.leaves.end(),
          [&](const auto& each) { return each.record.key == KeyOf("state", spec.same_as); });
      leaf.data = other->data;
      leaf.hold = other->hold;
    } else if (spec.hold) {
      auto data = std::make_shared<std::vector<float>>(LeafData(spec, seed));
      leaf.data = reinterpret_cast<const std::byte*>(data->data());
      leaf.hold = data;
    } else {
      scratch->push_back(LeafData(spec, seed));
      leaf.data = reinterpret_cast<const std::byte*>(scratch->back().data());
    }
    item.leaves.push_back(std::move(leaf));
  }
  LeafInput text;
  text.record.key = KeyOf("state", "text");
  text.record.kind = format::LeafKind::kValue;
  text.record.value_type = format::ValueType::kStr;
  text.value = std::string(seed % 3 == 0 ? 5 : 5000, 'x') + std::to_string(seed);
  item.leaves.push_back(std::move(text));
  request.items.push_back(std::move(item));
  return request;
}

inline Result<SaveHandle> SaveSeeded(Store* store, uint64_t step, uint64_t seed,
                                     const std::vector<LeafSpec>& specs,
                                     IfExists if_exists = IfExists::kError) {
  std::vector<std::vector<float>> scratch;
  scratch.reserve(specs.size());
  SaveRequest request = MakeRequest(step, seed, specs, &scratch);
  request.if_exists = if_exists;
  auto handle = store->Save(std::move(request));
  for (auto& data : scratch) std::fill(data.begin(), data.end(), -1.0F);  // "mutated after save"
  return handle;
}

// The statistics of finite numbers, by a plain loop.
inline format::LeafStatistics PlainStatistics(const std::vector<float>& data) {
  format::LeafStatistics plain;
  for (const float element : data) {
    const auto value = static_cast<double>(element);
    plain.min = plain.elements == 0 ? value : std::min(plain.min, value);
    plain.max = plain.elements == 0 ? value : std::max(plain.max, value);
    plain.sum += value;
    plain.sum_of_squares += value * value;
    ++plain.elements;
  }
  return plain;
}

// OK when the leaf's statistics are those of the data, but for what changed.
inline Status CheckStatistics(const format::LeafRecord& leaf, const std::vector<float>& data) {
  if (!leaf.statistics) return InternalError(StrCat("leaf ", leaf.key, " has no statistics"));
  const format::LeafStatistics& taken = *leaf.statistics;
  const format::LeafStatistics plain = PlainStatistics(data);
  const auto near = [&](double a, double b) {
    return std::abs(a - b) <= 1e-6 * (1 + plain.sum_of_squares);
  };
  if (taken.elements == plain.elements && taken.nonfinite == 0 && taken.min == plain.min &&
      taken.max == plain.max && near(taken.sum, plain.sum) &&
      near(taken.sum_of_squares, plain.sum_of_squares) && taken.changed <= taken.elements) {
    return OkStatus();
  }
  return InternalError(
      StrCat("leaf ", leaf.key, " has wrong statistics: ", taken.elements, " elements, ",
             taken.nonfinite, " not finite, from ", taken.min, " to ", taken.max, ", sums ",
             taken.sum, " and ", taken.sum_of_squares, "; wanted ", plain.elements, ", from ",
             plain.min, " to ", plain.max, ", sums ", plain.sum, " and ", plain.sum_of_squares));
}

// OK when item "state" of the step holds exactly the state of `seed`. Wrong bytes are kInternal, so
// that no caller takes them for damage that the store reported. Either all arrays have statistics,
// which are right, or none has.
inline Status CheckSeeded(StepReader* reader, uint64_t seed, const std::vector<LeafSpec>& specs) {
  const uint64_t step = reader->step().step;
  if (reader->step().metadata_json != "{\"seed\": " + std::to_string(seed) + "}") {
    return InternalError(StrCat("step ", step, " has metadata ", reader->step().metadata_json,
                                " instead of seed ", seed));
  }
  STEPWELL_ASSIGN_OR_RETURN(const auto leaves, reader->Leaves(format::EncodeItem("state")));
  if (leaves.size() != specs.size() + 1) {
    return InternalError(StrCat("step ", step, " has ", leaves.size(), " leaves"));
  }
  std::vector<std::vector<float>> out(specs.size());
  std::vector<LoadRequest> requests;
  std::string text;
  const bool with_statistics = std::any_of(
      leaves.begin(), leaves.end(), [](const auto& leaf) { return leaf.statistics.has_value(); });
  for (const auto& leaf : leaves) {
    LoadRequest request;
    request.leaf = &leaf;
    if (leaf.key == KeyOf("state", "text")) {
      text.resize(leaf.logical_bytes);
      request.out = reinterpret_cast<std::byte*>(text.data());
      requests.push_back(std::move(request));
      continue;
    }
    for (size_t i = 0; i < specs.size(); ++i) {
      if (leaf.key != KeyOf("state", specs[i].name)) continue;
      if (leaf.shape != specs[i].shape) return InternalError("a shape changed");
      if (with_statistics) {
        STEPWELL_RETURN_IF_ERROR(CheckStatistics(leaf, LeafData(specs[i], seed)));
      }
      out[i].resize(leaf.logical_bytes / sizeof(float));
      request.box = format::WholeArray(leaf.shape);
      request.out = reinterpret_cast<std::byte*>(out[i].data());
      requests.push_back(std::move(request));
    }
  }
  STEPWELL_ASSIGN_OR_RETURN(const LoadStats stats, reader->Load(requests));
  (void)stats;
  for (size_t i = 0; i < specs.size(); ++i) {
    const auto wanted = LeafData(specs[i], seed);
    const size_t bytes = wanted.size() * sizeof(float);
    if (wanted.size() != out[i].size() ||
        (bytes > 0 && std::memcmp(wanted.data(), out[i].data(), bytes) != 0)) {
      return InternalError(StrCat("step ", step, ": leaf ", specs[i].name, " is wrong"));
    }
  }
  const std::string wanted_text = std::string(seed % 3 == 0 ? 5 : 5000, 'x') + std::to_string(seed);
  return text == wanted_text ? OkStatus() : InternalError("the text leaf is wrong");
}

inline Status CheckSeeded(Store* store, uint64_t step, uint64_t seed,
                          const std::vector<LeafSpec>& specs) {
  STEPWELL_ASSIGN_OR_RETURN(const auto reader, store->Read(step));
  return CheckSeeded(reader.get(), seed, specs);
}

inline std::vector<uint64_t> StepNumbers(Store* store) {
  std::vector<uint64_t> numbers;
  const auto steps = store->Steps();
  EXPECT_TRUE(steps.ok()) << steps.status().ToString();
  if (!steps.ok()) return numbers;
  for (const auto& step : *steps) numbers.push_back(step.step);
  return numbers;
}

inline std::vector<uint64_t> VerifiedSteps(Store* store) {
  std::vector<uint64_t> numbers;
  const auto steps = store->Steps();
  EXPECT_TRUE(steps.ok()) << steps.status().ToString();
  if (!steps.ok()) return numbers;
  for (const auto& step : *steps) {
    if (step.verified) numbers.push_back(step.step);
    const auto reader = store->ReadShare(step.step);
    EXPECT_TRUE(reader.ok() && (*reader)->step().verified == step.verified) << step.step;
  }
  return numbers;
}

class TempDir {
 public:
  explicit TempDir(const std::string& parent = std::filesystem::temp_directory_path()) {
    std::string name = parent + "/stepwell-XXXXXX";
    path_ = mkdtemp(name.data());
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The files of a store without its index, a cache, in which RocksDB renames and removes files at
// any time: path below the store to inode.
inline std::map<std::string, ino_t> FilesOfLiveStore(const std::string& store) {
  namespace fs = std::filesystem;
  std::map<std::string, ino_t> files;
  std::error_code gone;
  for (fs::recursive_directory_iterator it(store, gone), end; it != end; it.increment(gone)) {
    struct stat info = {};
    if (it->path().filename() == "index") it.disable_recursion_pending();
    if (stat(it->path().c_str(), &info) == 0 && S_ISREG(info.st_mode)) {
      files[fs::relative(it->path(), store).string()] = info.st_ino;
    }
  }
  return files;
}

// Copies a store as a kill would leave it; its writer saves nothing meanwhile. The writer still
// recycles and removes segments: a copy during which the files changed is made again. STEPWELL
// comes first: a kill leaves no log that is older than it.
inline void CopyLiveStore(const std::string& from, const std::string& to) {
  namespace fs = std::filesystem;
  for (int tries = 0; tries < 100; ++tries) {
    fs::remove_all(to);
    const std::map<std::string, ino_t> before = FilesOfLiveStore(from);
    fs::create_directories(to + "/segments");
    std::error_code error;
    fs::copy_file(from + "/STEPWELL", to + "/STEPWELL", error);
    for (auto it = before.begin(); it != before.end() && !error; ++it) {
      fs::create_directories(fs::path(to + "/" + it->first).parent_path());
      fs::copy_file(from + "/" + it->first, to + "/" + it->first, fs::copy_options::skip_existing,
                    error);
    }
    if (!error && FilesOfLiveStore(from) == before) return;
  }
  ADD_FAILURE() << "the files of " << from << " changed during each of 100 copies";
}

}  // namespace stepwell::db
