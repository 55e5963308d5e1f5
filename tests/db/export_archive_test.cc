// SPDX-License-Identifier: Apache-2.0
// Files of arrays: what is in them (tests/python/test_archives.py has the real readers), and what
// is left when writing one fails at any point.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "db/export/archive/archive.h"
#include "db/export/archive/plan.h"
#include "db/export/orbax/numbers.h"
#include "format/archive.h"
#include "tests/db/support/export_support.h"
#include "tests/db/support/stopping_file_system.h"

namespace stepwell::db {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kStep = 4;

TEST(ArrayBoxesTest, TheyFollowEachOtherInMemory) {
  const std::vector<std::pair<format::Shape, format::Shape>> arrays = {
      {{}, {}},
      {{10}, {4}},
      {{1}, {1}},
      {{7, 5}, {2, 5}},
      {{7, 5}, {3, 2}},
      {{3, 1, 9}, {1, 1, 4}},
      {{4, 6, 5}, {1, 2, 5}},
      {{2, 3, 4, 5}, {2, 2, 2, 2}}};
  for (const auto& [shape, chunk_shape] : arrays) {
    for (const uint64_t bytes_max : {1U, 8U, 24U, 40U, 100U, 10000U}) {
      constexpr uint64_t kItemBytes = 4;
      const auto strides = format::CStrides(shape, 1);
      ArrayBoxes boxes(shape, chunk_shape, kItemBytes, bytes_max);
      uint64_t at = 0;
      while (const auto box = boxes.Next()) {
        uint64_t first = 0;
        uint64_t last = 0;
        uint64_t count = 1;
        for (size_t axis = 0; axis < shape.size(); ++axis) {
          ASSERT_LT(box->start[axis], box->stop[axis]);
          first += box->start[axis] * static_cast<uint64_t>(strides[axis]);
          last += (box->stop[axis] - 1) * static_cast<uint64_t>(strides[axis]);
          count *= box->stop[axis] - box->start[axis];
        }
        EXPECT_EQ(first, at);
        EXPECT_EQ(last - first + 1, count);  // without gaps
        EXPECT_TRUE(count == 1 || count * kItemBytes <= bytes_max);
        at += count;
      }
      EXPECT_EQ(at, *format::ElementCount(shape, 1));
    }
  }
  ArrayBoxes none({3, 0}, {3, 1}, 4, 100);
  EXPECT_FALSE(none.Next());
}

TEST(ZipTest, TheCrcIsThatOfZipFiles) {
  EXPECT_EQ(format::ExtendCrc32(0, AsBytes("123456789")), 0xCBF43926U);
  EXPECT_EQ(format::ExtendCrc32(format::ExtendCrc32(0, AsBytes("1234")), AsBytes("56789")),
            0xCBF43926U);
}

TEST(WidenElementsTest, TypesThatNumpyHasStay) {
  for (const format::DTypeInfo& info : format::AllDTypes()) {
    const format::DType wider = WiderNumpyType(info.dtype);
    if (wider == format::DType::kInvalid) continue;
    EXPECT_EQ(WiderNumpyType(wider), format::DType::kInvalid) << info.name;
    const std::vector<std::byte> narrow(256 * info.item_bytes, std::byte{1});
    std::vector<std::byte> wide(256 * format::FindDType(wider)->item_bytes, std::byte{0xAA});
    WidenElements(info.dtype, narrow, wide);
    EXPECT_NE(wide.back(), std::byte{0xAA}) << info.name;
  }
}

class ExportArchiveTest : public ::testing::TestWithParam<ArchiveFormat> {
 protected:
  void SetUp() override {
    auto store = Store::Open(dir_ / "store", {});
    ASSERT_OK(store.status());
    store_ = std::move(*store);
    auto handle = SaveSeeded(store_.get(), kStep, kStep, SmallState());
    ASSERT_OK(handle.status());
    ASSERT_OK(handle->Wait());
    fs::create_directory(out_);
  }

  Result<ExportReport> Run(const std::string& name, io::FileSystem* file_system = nullptr) {
    ArchiveOptions options;
    options.format = GetParam();
    options.on_unsupported = OnUnsupported::kSkip;
    options.file_system = file_system;
    return ExportArchive(*store_, kStep, StrCat(out_, "/", name), options);
  }

  TempDir dir_{"/dev/shm"};  // nothing here is about a disk
  const std::string out_ = dir_ / "out";
  std::unique_ptr<Store> store_;
};

TEST_P(ExportArchiveTest, EveryArrayIsInIt) {
  const auto report = Run("x");
  ASSERT_OK(report.status());
  EXPECT_EQ(report->leaves, SmallState().size());
  ASSERT_EQ(report->skipped.size(), 1U);
  EXPECT_EQ(report->skipped[0].path, "state/text");
  const std::string bytes = FilesBelow(out_).at("x");
  EXPECT_EQ(report->written_bytes, bytes.size());
  for (const LeafSpec& spec : SmallState()) {
    const std::vector<float> data = LeafData(spec, kStep);
    EXPECT_THAT(bytes, HasSubstr(AsText(std::as_bytes(std::span(data))))) << spec.name;
  }
  if (GetParam() == ArchiveFormat::kNpz) return;
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof(length));
  const auto header = nlohmann::json::parse(bytes.substr(sizeof(length), length));
  for (const LeafSpec& spec : SmallState()) {
    const auto& tensor = header.at(spec.name);
    EXPECT_EQ(tensor.at("shape").get<format::Shape>(), spec.shape);
    const std::vector<float> data = LeafData(spec, kStep);
    const auto begin = tensor.at("data_offsets").at(0).get<size_t>();
    EXPECT_EQ(bytes.substr(sizeof(length) + length + begin, data.size() * sizeof(float)),
              AsText(std::as_bytes(std::span(data))));
  }
}

TEST_P(ExportArchiveTest, AFailureAtAnyPointLeavesNothing) {
  ASSERT_OK(Run("whole").status());
  const std::string whole = FilesBelow(out_).at("whole");
  fs::remove(out_ + "/whole");
  struct Failure {};
  uint64_t stop = 0;
  for (bool failed = true; failed;) {
    uint64_t operations = 0;
    ++stop;
    StoppingFileSystem file_system([&] {
      if (++operations == stop) throw Failure();
    });
    failed = false;
    try {
      ASSERT_OK(Run("x", &file_system).status());
    } catch (const Failure&) {
      failed = true;
    }
    const auto files = FilesBelow(out_);
    if (!files.empty()) {
      EXPECT_THAT(NamesIn(out_), ElementsAre("x"));
      EXPECT_TRUE(files.at("x") == whole);
      fs::remove(out_ + "/x");
    }
  }
  EXPECT_GT(stop, 6U);
}

TEST_P(ExportArchiveTest, ItIsCancelled) {
  ArchiveOptions options;
  options.format = GetParam();
  options.on_unsupported = OnUnsupported::kSkip;
  options.progress = [](uint64_t done, uint64_t) { return done == 0; };
  EXPECT_EQ(ExportArchive(*store_, kStep, out_ + "/x", options).status().code(),
            StatusCode::kCancelled);
  EXPECT_THAT(NamesIn(out_), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Formats, ExportArchiveTest,
                         ::testing::Values(ArchiveFormat::kSafetensors, ArchiveFormat::kNpz));

}  // namespace
}  // namespace stepwell::db
