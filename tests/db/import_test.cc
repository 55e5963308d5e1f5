// SPDX-License-Identifier: Apache-2.0
// Checkpoints in Orbax's layout from bytes that nobody vouches for. What the real Orbax writes:
// tests/python/test_import.py.
#include "db/import/import.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "format/crc32c.h"
#include "format/orbax/ocdbt.h"
#include "format/orbax/tree_metadata.h"
#include "format/orbax/zarr_metadata.h"
#include "io/open_disk.h"
#include "tests/db/support/store_support.h"

namespace stepwell::db {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
namespace orbax = format::orbax;

constexpr size_t kRows = 7;
constexpr size_t kColumns = 3;

class ImportTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "/stepwell_import_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& name, std::string_view bytes) {
    std::filesystem::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
  }
  std::string Read(const std::string& name) {
    std::ifstream file(folder_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  // An item with one float array in chunks of 2 x 2, and a None.
  void WriteItem(const orbax::ZarrArray& zarr, bool with_last_chunk = true) {
    orbax::TreeMetadata tree;
    tree.entries.push_back(
        {{{"w", orbax::KeyType::kDict}}, orbax::OrbaxType::kNumpyArray, false, {}});
    tree.entries.push_back({{{"none", orbax::KeyType::kDict}}, orbax::OrbaxType::kNone, true, {}});
    tree.use_ocdbt = true;
    tree.use_zarr3 = true;
    tree.store_array_data_equal_to_fill_value = true;
    auto text = orbax::EncodeTreeMetadata(tree);
    ASSERT_OK(text.status());
    Write("_METADATA", *text);
    orbax::OcdbtOptions options;
    options.nodes_path = "d/nodes";
    options.compress = false;
    auto builder = orbax::OcdbtBuilder::Create(options);
    ASSERT_OK(builder.status());
    auto file = builder->AddFile("d/data");
    ASSERT_OK(file.status());
    std::string data = "junk";
    for (uint64_t row = 0; row < 4; ++row) {
      for (uint64_t column = 0; column < 2; ++column) {
        if (row == 3 && column == 1 && !with_last_chunk) continue;
        std::string chunk;
        for (uint64_t i = 0; i < 4; ++i) {
          const float value = static_cast<float>((2 * row + i / 2) * 10 + 2 * column + i % 2);
          chunk.append(reinterpret_cast<const char*>(&value), sizeof(value));
        }
        const uint32_t crc = format::Crc32c(AsBytes(chunk));
        chunk.append(reinterpret_cast<const char*>(&crc), sizeof(crc));
        ASSERT_OK(
            builder->AddRange(StrCat("w/c/", row, "/", column), *file, data.size(), chunk.size()));
        data += chunk;
      }
    }
    auto metadata = orbax::EncodeZarrMetadata(zarr);
    ASSERT_OK(metadata.status());
    ASSERT_OK(builder->AddInline("w/zarr.json", *metadata));
    auto image = builder->Finish();
    ASSERT_OK(image.status());
    Write("manifest.ocdbt", image->manifest);
    Write("d/nodes", image->nodes);
    Write("d/data", data);
  }
  static orbax::ZarrArray Zarr(format::Shape shape, format::Shape chunk) {
    return orbax::StepwellZarrArray(3, format::DType::kFloat32, std::move(shape), std::move(chunk),
                                    format::CodecId::kRaw);
  }
  void WriteItem() { WriteItem(Zarr({kRows, kColumns}, {2, 2})); }

  Result<SaveRequest> Import(uint64_t memory_bytes_max = uint64_t{64} << 20) {
    auto checkpoint = OrbaxCheckpoint::Open(io::LocalFileSystem(), folder_.string());
    if (!checkpoint.ok()) return checkpoint.status();
    ImportOptions options;
    options.memory_bytes_max = memory_bytes_max;
    options.threads = 2;
    return ImportRequest(*checkpoint, 1, options);
  }

  static void ExpectRight(const SaveRequest& request) {
    ASSERT_EQ(request.items.size(), 1u);
    size_t arrays = 0;
    for (const LeafInput& leaf : request.items[0].leaves) {
      if (leaf.record.kind != format::LeafKind::kArray) continue;
      ++arrays;
      ASSERT_EQ(leaf.record.shape, (format::Shape{kRows, kColumns}));
      for (size_t i = 0; i < kRows * kColumns; ++i) {
        float value = 0;
        std::memcpy(&value, leaf.data + i * sizeof(value), sizeof(value));
        ASSERT_EQ(value, static_cast<float>(i / kColumns * 10 + i % kColumns));
      }
    }
    ASSERT_EQ(arrays, 1u);
  }

  // Describes the leaves by kind, with the keys of those that have data.
  static std::string Kinds(const SaveRequest& request) {
    std::string kinds;
    for (const LeafInput& leaf : request.items[0].leaves) {
      const bool has_data = leaf.record.kind == format::LeafKind::kArray;
      kinds += StrCat(static_cast<int>(leaf.record.kind), has_data ? leaf.record.key : "", ";");
    }
    return kinds;
  }

  std::filesystem::path folder_;
};

TEST_F(ImportTest, ReadsAnItem) {
  WriteItem();
  const auto request = Import();
  ASSERT_OK(request.status());
  ExpectRight(*request);
  EXPECT_EQ(request->items[0].name, "state");
  EXPECT_EQ(request->items[0].leaves.size(), 3u);  // the root, an array, None
}

// Every byte of the data is under a CRC, and nearly every other one is needed, too.
TEST_F(ImportTest, AFlippedByteIsAnErrorOrHarmless) {
  WriteItem();
  const auto undamaged = Import();
  ASSERT_OK(undamaged.status());
  const std::string kinds = Kinds(*undamaged);
  for (const std::string name : {"_METADATA", "manifest.ocdbt", "d/nodes", "d/data"}) {
    const std::string whole = Read(name);
    ASSERT_FALSE(whole.empty());
    size_t errors = 0;
    for (size_t at = 0; at < whole.size(); ++at) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << at % 8));
      Write(name, bytes);
      const auto request = Import();
      if (!request.ok()) {
        ++errors;
        EXPECT_THAT(request.status().message(), HasSubstr(folder_.string()));
        continue;
      }
      // Nothing else has the name of a leaf without an array: it is as right as any other.
      ExpectRight(*request);
      EXPECT_EQ(Kinds(*request), kinds) << name << ":" << at;
    }
    EXPECT_GT(errors, whole.size() / 3) << name;
    Write(name, whole);
  }
}

TEST_F(ImportTest, AFileThatEndsEarlyIsAnError) {
  WriteItem();
  for (const std::string name : {"_METADATA", "manifest.ocdbt", "d/nodes", "d/data"}) {
    const std::string whole = Read(name);
    for (size_t size = 0; size < whole.size(); size += 1 + whole.size() / 200) {
      Write(name, whole.substr(0, size));
      EXPECT_FALSE(Import().ok()) << name << " of " << size;
    }
    std::filesystem::remove(folder_ / name);
    const auto request = Import();
    EXPECT_FALSE(request.ok()) << name;
    Write(name, whole);
  }
  EXPECT_OK(Import().status());
}

TEST_F(ImportTest, ErrorsNameLeafChunkAndFile) {
  WriteItem();
  std::string data = Read("d/data");
  data[4] ^= 1;
  Write("d/data", data);
  Status status = Import().status();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("item 'state', leaf 'w', chunk 0"),
                                      HasSubstr("/d/data: offset 4"), HasSubstr("CRC-32C")));
  std::filesystem::remove(folder_ / "d/data");
  status = Import().status();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("leaf 'w'"), HasSubstr("/d/data"), HasSubstr("the file is missing")));
}

TEST_F(ImportTest, AMissingChunkIsAnError) {
  WriteItem(Zarr({kRows, kColumns}, {2, 2}), /*with_last_chunk=*/false);
  const Status status = Import().status();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("leaf 'w', chunk 7"), HasSubstr("w/c/3/1"), HasSubstr("missing")));
}

// Shapes are only numbers: nothing is allocated, and no loop runs, before it is known that there is
// as much.
TEST_F(ImportTest, HugeShapesAreRefused) {
  constexpr uint64_t kHuge = uint64_t{1} << 40;
  for (const auto& [shape, chunk] :
       std::vector<std::pair<format::Shape, format::Shape>>{{{kHuge, 3}, {2, 2}},
                                                            {{kHuge, 3}, {kHuge, 3}},
                                                            {{7, 3}, {kHuge, 2}},
                                                            {{uint64_t{1} << 59, 1}, {1, 1}}}) {
    WriteItem(Zarr(shape, chunk));
    const Status status = Import().status();
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.ToString();
    EXPECT_THAT(status.message(), HasSubstr("leaf 'w'"));
  }
  // This size fits in the machine's memory, but the data is not there.
  WriteItem(Zarr({1 << 20, 3}, {2, 2}));
  EXPECT_EQ(Import().status().code(), StatusCode::kDataLoss);
}

TEST_F(ImportTest, MemoryIsBounded) {
  WriteItem();
  const Status status = Import(/*memory_bytes_max=*/1 << 20).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("the limit is 1048576 bytes"));
}

TEST_F(ImportTest, PathsStayBelowTheFolder) {
  WriteItem();
  Write("_METADATA", R"({"tree_metadata": {"x": {"key_metadata": [{"key": "../w", "key_type": 2}],
      "value_metadata": {"value_type": "np.ndarray", "skip_deserialize": false}}},
      "use_ocdbt": false, "use_zarr3": true})");
  EXPECT_EQ(Import().status().code(), StatusCode::kInvalidArgument);
}

// Another thing in place of a file makes reading end at once with an error that names it.
TEST_F(ImportTest, OtherThingsThanFiles) {
  WriteItem();
  Write("_CHECKPOINT_METADATA", "{}");
  const std::vector<std::string> names = {"_METADATA", "_CHECKPOINT_METADATA", "manifest.ocdbt",
                                          "d/nodes", "d/data"};
  ASSERT_OK(Import().status());
  for (const std::string what : {"fifo", "socket", "directory", "loop", "nowhere", "itself"}) {
    for (const std::string& name : names) {
      SCOPED_TRACE(StrCat(what, " ", name));
      const std::string path = folder_ / name;
      const std::string away = folder_ / "away";
      std::filesystem::rename(path, away);
      if (what == "fifo" || what == "socket") {
        ASSERT_EQ(mknod(path.c_str(), (what == "fifo" ? S_IFIFO : S_IFSOCK) | 0600, 0), 0);
      }
      if (what == "directory") std::filesystem::create_directory(path);
      if (what == "loop") std::filesystem::create_symlink(path, path);
      if (what == "nowhere") std::filesystem::create_symlink("nowhere", path);
      if (what == "itself") std::filesystem::create_directory_symlink(folder_, path);
      const Status status = Import().status();
      // No longer a step with that mark, but an item all the same.
      const bool optional = name == "_CHECKPOINT_METADATA" && what == "nowhere";
      EXPECT_EQ(status.ok(), optional) << status.ToString();
      if (!optional) {
        EXPECT_THAT(status.message(), HasSubstr(folder_.string()));
      }
      std::filesystem::remove(path);
      std::filesystem::rename(away, path);
    }
  }
  EXPECT_OK(Import().status());
  if (getuid() != 0) return;
  for (const std::string& name : names) {
    const std::string path = folder_ / name;
    const std::string away = folder_ / "away";
    std::filesystem::rename(path, away);
    ASSERT_EQ(mknod(path.c_str(), S_IFCHR | 0600, makedev(1, 5)), 0);  // /dev/zero
    const Status status = Import().status();
    EXPECT_FALSE(status.ok()) << name;
    EXPECT_THAT(status.message(), HasSubstr("it is not a regular file")) << name;
    std::filesystem::remove(path);
    std::filesystem::rename(away, path);
  }
}

// Holes of files are not there either.
TEST_F(ImportTest, HugeFilesAreNotRead) {
  WriteItem();
  for (const std::string name : {"_METADATA", "manifest.ocdbt", "d/nodes", "d/data"}) {
    SCOPED_TRACE(name);
    const std::string whole = Read(name);
    std::filesystem::resize_file(folder_ / name, uint64_t{1} << 42);
    const auto request = Import();
    if (request.ok()) {  // what comes behind is nobody's
      EXPECT_TRUE(name.starts_with("d/"));
      ExpectRight(*request);
    } else {
      EXPECT_THAT(request.status().message(), HasSubstr("bytes; at most"));
    }
    Write(name, whole);
  }
}

// Directories that lead to each other: nothing is looked for deeper than where it belongs.
TEST_F(ImportTest, LoopsOfDirectories) {
  std::filesystem::create_directories(folder_ / "1/item");
  for (const char* name : {"up", "_sharding", "array_metadatas", "2"}) {
    std::filesystem::create_directory_symlink(folder_, folder_ / "1" / name);
  }
  std::filesystem::create_symlink("self", folder_ / "self");
  for (const std::string name : {"", "1", "1/up", "1/up/1/up/1"}) {
    SCOPED_TRACE(name);
    const auto checkpoint = OrbaxCheckpoint::Open(io::LocalFileSystem(), folder_ / name);
    EXPECT_EQ(checkpoint.status().code(), StatusCode::kInvalidArgument)
        << checkpoint.status().ToString();
    EXPECT_THAT(checkpoint.status().message(), HasSubstr(folder_.string()));
  }
}

TEST_F(ImportTest, TreesThatContradictThemselves) {
  WriteItem();
  const auto entry = [](const std::string& keys, const std::string& type) {
    return StrCat(R"({"key_metadata": [)", keys, R"(], "value_metadata": {"value_type": ")", type,
                  R"(", "skip_deserialize": true}})");
  };
  const auto tree = [&](std::initializer_list<std::string> entries) {
    std::string text = R"({"tree_metadata": {)";
    size_t number = 0;
    for (const std::string& one : entries) {
      text += StrCat(number > 0 ? ", " : "", "\"", number, "\": ", one);
      ++number;
    }
    Write("_METADATA", text + R"(}, "use_ocdbt": true, "use_zarr3": true})");
  };
  const std::string a = R"({"key": "a", "key_type": 2})";
  const std::string first = R"({"key": "0", "key_type": 1})";
  const std::string third = R"({"key": "2", "key_type": 1})";
  tree({entry(a + ", " + first, "None"), entry(a + ", " + a, "None")});
  EXPECT_OK(Import().status());  // as an nnx.List has it
  tree({entry(a + ", " + first, "None"), entry(a + ", " + third, "None")});
  EXPECT_THAT(Import().status().message(), HasSubstr("has the index 2"));
  tree({entry(a, "string"), entry(a + ", " + third, "None")});
  EXPECT_FALSE(Import().ok());
  tree({entry(a, "None"), entry(a + ", " + first, "None")});  // as Orbax's partial saves have it
  EXPECT_OK(Import().status());
}

TEST_F(ImportTest, StepsOfARoot) {
  for (const char* name : {"7", "ckpt_00000012", "3.orbax-checkpoint-tmp", "other"}) {
    Write(StrCat(name, "/_CHECKPOINT_METADATA"), "{}");
  }
  Write("metadata/_ROOT_METADATA", "{}");
  Write("9/nothing", "");
  auto steps = FindOrbaxSteps(io::LocalFileSystem(), folder_.string());
  ASSERT_OK(steps.status());
  ASSERT_EQ(steps->size(), 2u);
  EXPECT_EQ((*steps)[0].step, 7u);
  EXPECT_EQ((*steps)[1].step, 12u);
  EXPECT_EQ(StepOfName("a/b-0003/"), 3u);
  EXPECT_EQ(StepOfName("a/b3"), std::nullopt);
  EXPECT_EQ(StepOfName("99999999999999999999"), std::nullopt);
  Write("007/_CHECKPOINT_METADATA", "{}");
  EXPECT_THAT(FindOrbaxSteps(io::LocalFileSystem(), folder_.string()).status().message(),
              HasSubstr("are both step 7"));
}

}  // namespace
}  // namespace stepwell::db
