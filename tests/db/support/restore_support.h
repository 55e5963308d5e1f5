// SPDX-License-Identifier: Apache-2.0
// Segments with arrays in them, and a Restorer over every disk, with threads and without.
#pragma once

#include "db/read/restore.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "db/layout.h"
#include "db/read/restore_plan.h"
#include "db/read/step_reader.h"
#include "io/open_disk.h"
#include "tests/prng.h"

namespace stepwell::db::restore_tests {

using testing::HasSubstr;

inline std::string RestoreKeyOf(const std::string& name) {
  format::PathComponent component;
  component.name = name;
  return format::EncodeLeafKey("params", {component}).value();
}

// Segments in memory until Write().
class Segments {
 public:
  explicit Segments(std::string store) : store_(std::move(store)) {}

  format::ChunkRecord Add(format::CodecId codec, size_t item_bytes, ConstBytes logical,
                          uint64_t segment, size_t alignment) {
    std::string payload(format::PayloadBytesMax(codec, logical.size()), '\0');
    const Result<format::Payload> encoded = format::EncodePayload(
        codec, item_bytes, logical, {reinterpret_cast<std::byte*>(payload.data()), payload.size()});
    EXPECT_TRUE(encoded.ok());
    std::string& bytes = bytes_[segment];
    bytes.resize(AlignUp(std::max<size_t>(bytes.size(), 4096), alignment));
    format::ChunkRecord record;
    record.segment = segment;
    record.offset_bytes = bytes.size();
    record.stored_bytes = static_cast<uint32_t>(encoded->size_bytes);
    record.logical_bytes = static_cast<uint32_t>(logical.size());
    record.crc = encoded->crc;
    record.codec = codec;
    bytes += payload.substr(0, encoded->size_bytes);
    return record;
  }

  void Write() {
    std::filesystem::create_directories(SegmentsPath(store_));
    for (auto& [segment, bytes] : bytes_) {
      bytes.resize(AlignUp(bytes.size(), 4096));
      std::ofstream file(SegmentPath(store_, segment), std::ios::binary);
      file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    }
  }

  std::string& bytes(uint64_t segment) { return bytes_[segment]; }

 private:
  const std::string store_;
  std::map<uint64_t, std::string> bytes_;
};

// An array as it lies in memory, C order.
struct Array {
  format::LeafRecord leaf;
  const format::DTypeInfo* dtype = nullptr;
  std::string bytes;
};

inline Array MakeArray(Prng& random, const std::string& name, format::DType type,
                       format::Shape shape, format::Shape chunk_shape, format::CodecId codec,
                       Segments* segments) {
  Array array;
  array.dtype = format::FindDType(type);
  array.leaf.key = RestoreKeyOf(name);
  array.leaf.dtype = type;
  array.leaf.shape = std::move(shape);
  array.leaf.chunk_shape = std::move(chunk_shape);
  const size_t item_bytes = array.dtype->item_bytes;
  array.bytes.resize(*format::ElementCount(array.leaf.shape, item_bytes) * item_bytes);
  for (char& byte : array.bytes) {
    if (type == format::DType::kBool) {
      byte = static_cast<char>(random.Below(2));
    } else if (type == format::DType::kInt4) {
      byte = static_cast<char>(random.Below(16));
    } else {
      byte = static_cast<char>(random.Next() & (codec == format::CodecId::kRaw ? 0xFF : 0x0F));
    }
  }
  const format::LeafRecord& leaf = array.leaf;
  array.leaf.chunk_count = format::ChunkCount(leaf.shape, leaf.chunk_shape);
  const std::vector<int64_t> strides = format::CStrides(leaf.shape, item_bytes);
  const format::StridedArray view{AsBytes(array.bytes).data(), leaf.shape, strides};
  std::vector<std::byte> chunk(format::ChunkBytes(leaf.chunk_shape, item_bytes));
  for (uint64_t i = 0; i < leaf.chunk_count; ++i) {
    format::GatherChunk(view, *array.dtype, leaf.chunk_shape, i, chunk.data());
    array.leaf.chunks.push_back(
        segments->Add(codec, item_bytes, chunk, 1 + random.Below(3), random.Coin() ? 4096 : 1));
  }
  return array;
}

// A request and its memory, which is larger than what the request may touch.
struct TestRequest {
  LoadRequest request;
  std::string memory;
  size_t origin = 0;  // of element 0 in `memory`
};

// `request.out` is set last, when the TestRequest does not move any more.
inline TestRequest MakeTestRequest(Prng& random, const Array& array) {
  TestRequest target;
  target.request.leaf = &array.leaf;
  const size_t rank = array.leaf.shape.size();
  format::Box& box = target.request.box;
  box = format::WholeArray(array.leaf.shape);
  for (size_t axis = 0; axis < rank && !random.OneIn(4); ++axis) {
    const uint64_t a = random.Below(box.stop[axis] + 1);
    const uint64_t b = random.Below(box.stop[axis] + 1);
    box.start[axis] = std::min(a, b);
    box.stop[axis] = std::max(a, b);
  }
  // Axes in any order, of either direction, with gaps.
  std::vector<size_t> order(rank);
  for (size_t axis = 0; axis < rank; ++axis) order[axis] = axis;
  const bool plain = random.Coin();
  if (!plain) {
    for (size_t i = rank; i > 1; --i) std::swap(order[i - 1], order[random.Below(i)]);
  }
  std::vector<int64_t> strides(rank);
  int64_t stride = array.dtype->item_bytes;
  int64_t origin = 0;
  for (size_t i = rank; i-- > 0;) {
    const size_t axis = order[i];
    const auto extent = static_cast<int64_t>(box.stop[axis] - box.start[axis]);
    if (!plain && random.OneIn(4)) stride += array.dtype->item_bytes;
    strides[axis] = stride;
    stride *= std::max<int64_t>(1, extent);
    if (!plain && random.OneIn(3) && extent > 0) {
      origin += strides[axis] * (extent - 1);
      strides[axis] = -strides[axis];
    }
  }
  target.memory.assign(static_cast<size_t>(stride) + 64, '\x5A');
  target.origin = 32 + static_cast<size_t>(origin);
  if (!plain || random.Coin()) target.request.strides_bytes = std::move(strides);
  return target;
}

// `array`'s box copied element by element into `target`'s memory as it was.
inline std::string Expected(const Array& array, const TestRequest& target) {
  std::string memory(target.memory.size(), '\x5A');
  const format::Box& box = target.request.box;
  const size_t rank = array.leaf.shape.size();
  const size_t item_bytes = array.dtype->item_bytes;
  format::Shape extents(rank);
  uint64_t count = 1;
  for (size_t axis = 0; axis < rank; ++axis) {
    extents[axis] = box.stop[axis] - box.start[axis];
    count *= extents[axis];
  }
  const std::vector<int64_t> from_strides = format::CStrides(array.leaf.shape, item_bytes);
  std::vector<int64_t> to_strides = target.request.strides_bytes;
  if (to_strides.empty()) to_strides = format::CStrides(extents, item_bytes);
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t rest = i;
    int64_t from = 0;
    auto to = static_cast<int64_t>(target.origin);
    for (size_t axis = rank; axis-- > 0;) {
      const auto at = static_cast<int64_t>(rest % extents[axis]);
      rest /= extents[axis];
      from += (static_cast<int64_t>(box.start[axis]) + at) * from_strides[axis];
      to += at * to_strides[axis];
    }
    std::memcpy(memory.data() + to, array.bytes.data() + from, item_bytes);
  }
  return memory;
}

struct Setup {
  io::DiskKind disk;
  bool threads;
};

class RestoreTest : public testing::TestWithParam<Setup> {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "/restore_test_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    store_ = pattern;
    if (!MakeDisk().ok()) GTEST_SKIP() << MakeDisk().status().ToString();
    if (GetParam().threads) {
      executor_ = *io::MakeThreadPool(2);
    } else {
      executor_ = std::make_unique<io::InlineExecutor>();
    }
  }
  void TearDown() override { std::filesystem::remove_all(store_); }

  static Result<std::unique_ptr<io::Disk>> MakeDisk() {
    io::DiskOptions options;
    options.kind = GetParam().disk;
    return io::OpenDisk(options);
  }

  // A fresh one, as after a new open.
  Restorer& MakeRestorer() {
    restorer_.reset();
    files_ = std::make_unique<SegmentFiles>(io::LocalFileSystem(), store_);
    restorer_ = std::make_unique<Restorer>(files_.get(), executor_.get(), MakeDisk);
    return *restorer_;
  }

  std::string store_;
  std::unique_ptr<io::Executor> executor_;
  std::unique_ptr<SegmentFiles> files_;
  std::unique_ptr<Restorer> restorer_;
};

inline std::string SetupName(const testing::TestParamInfo<Setup>& info) {
  return StrCat(info.param.disk == io::DiskKind::kUring ? "Uring" : "Posix",
                info.param.threads ? "Threads" : "Inline");
}

inline constexpr Setup kSetups[] = {{io::DiskKind::kPosix, false},
                                    {io::DiskKind::kPosix, true},
                                    {io::DiskKind::kUring, false},
                                    {io::DiskKind::kUring, true}};

}  // namespace stepwell::db::restore_tests
