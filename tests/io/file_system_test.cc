// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>

#include "tests/io/support/support.h"

namespace stepwell::io {
namespace {

using testing::AlignedCopy;
using testing::Create;
using testing::CreateOptions;
using testing::Pattern;
using testing::TempDir;

class FileSystemTest : public ::testing::Test {
 protected:
  std::string ReadAll(File* file) {
    std::string text(file->Info().value().size_bytes, '\0');
    EXPECT_EQ(file->ReadAt(0, std::as_writable_bytes(std::span(text))).value(), text.size());
    return text;
  }

  TempDir dir_;
  FileSystem* const files_ = LocalFileSystem();
};

TEST_F(FileSystemTest, WritesReadsAndTruncates) {
  const auto file = Create(dir_ / "a");
  ASSERT_OK(file->WriteAt(3, AsBytes("world")));
  ASSERT_OK(file->WriteAt(0, AsBytes("hel")));
  ASSERT_OK(file->Sync());
  EXPECT_EQ(ReadAll(file.get()), "helworld");
  std::string more(20, '?');
  EXPECT_EQ(file->ReadAt(5, std::as_writable_bytes(std::span(more))).value(), 3U);
  EXPECT_EQ(more.substr(0, 4), "rld?");
  EXPECT_EQ(file->ReadAt(100, std::as_writable_bytes(std::span(more))).value(), 0U);
  ASSERT_OK(file->Truncate(2));
  EXPECT_EQ(ReadAll(file.get()), "he");
}

TEST_F(FileSystemTest, OpenKeepsItsOptions) {
  EXPECT_EQ(files_->Open(dir_ / "a", {}).status().message(),
            StrCat("open ", dir_ / "a", ": No such file or directory"));
  FileOpenOptions options = CreateOptions();
  options.exclusive = true;
  ASSERT_OK(files_->Open(dir_ / "a", options).value()->WriteAt(0, AsBytes("x")));
  EXPECT_EQ(files_->Open(dir_ / "a", options).status().code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(files_->Open(dir_ / "a", CreateOptions()).value()->Info().value().size_bytes, 1U);
  options.exclusive = false;
  options.truncate = true;
  EXPECT_EQ(files_->Open(dir_ / "a", options).value()->Info().value().size_bytes, 0U);
}

TEST_F(FileSystemTest, CopiesRangesBetweenFiles) {
  const auto source = Create(dir_ / "a");
  const std::string text = Pattern((20 << 20) + 777, 1);
  ASSERT_OK(source->WriteAt(0, AsBytes(text)));
  const auto copy = Create(dir_ / "b");
  ASSERT_OK(copy->CopyFrom(*source, 0, text.size(), 0));
  EXPECT_TRUE(ReadAll(copy.get()) == text);
  ASSERT_OK(copy->CopyFrom(*source, 13, 100, text.size()));
  EXPECT_EQ(ReadAll(copy.get()).substr(text.size()), text.substr(13, 100));
  EXPECT_EQ(copy->CopyFrom(*source, text.size() - 5, 10, 0).code(), StatusCode::kDataLoss);
  // Across file systems, where kernels may not copy.
  const TempDir other("/dev/shm");
  const auto far = Create(other / "c");
  ASSERT_OK(far->CopyFrom(*source, 1000, 5 << 20, 3));
  EXPECT_TRUE(ReadAll(far.get()).substr(3) == text.substr(1000, 5 << 20));
}

TEST_F(FileSystemTest, ClonesShareBlocksOrSayWhyNot) {
  const auto source = Create(dir_ / "a");
  const std::string text = Pattern(4 * 4096, 1);
  ASSERT_OK(source->WriteAt(0, AsBytes(text)));
  const auto clone = Create(dir_ / "b");
  const Status status = clone->CloneFrom(*source, 4096, 8192, 4096);
  if (status.ok()) {
    EXPECT_EQ(ReadAll(clone.get()), std::string(4096, '\0') + text.substr(4096, 8192));
  } else {
    EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
    EXPECT_EQ(clone->Info()->size_bytes, 0U);
  }
  const TempDir other("/dev/shm");
  const auto far = Create(other / "c");
  const Status across = far->CloneFrom(*source, 0, 4096, 0);
  EXPECT_TRUE(across.code() == StatusCode::kFailedPrecondition ||
              across.code() == StatusCode::kUnimplemented)
      << across.ToString();
  EXPECT_OK(far->WriteAt(0, AsBytes("x")));  // it did not freeze
  EXPECT_OK(clone->WriteAt(0, AsBytes("x")));
}

TEST_F(FileSystemTest, TellsAndChangesPermissions) {
  Create(dir_ / "a");
  ASSERT_OK(files_->SetMode(dir_ / "a", 0440));
  const FileInfo info = files_->Stat(dir_ / "a").value();
  EXPECT_EQ(info.mode, 0440U);
  EXPECT_EQ(info.owner, geteuid());
  EXPECT_EQ(info.device, files_->Stat(dir_.path()).value().device);
  EXPECT_EQ(files_->SetMode(dir_ / "b", 0440).code(), StatusCode::kNotFound);
}

TEST_F(FileSystemTest, AllocateGrowsAndReserves) {
  const auto file = Create(dir_ / "a");
  ASSERT_OK(file->Allocate(0, 1 << 20));
  const FileInfo info = file->Info().value();
  EXPECT_EQ(info.size_bytes, 1U << 20);
  EXPECT_GE(info.allocated_bytes, 1U << 20);
  EXPECT_EQ(info.link_count, 1U);
  EXPECT_FALSE(info.is_directory);
}

TEST_F(FileSystemTest, AllocateBeyondTheDiskFailsAndDoesNotFreeze) {
  const auto file = Create(dir_ / "a");
  const uint64_t too_much = files_->FreeBytes(dir_.path()).value() + (uint64_t{1} << 40);
  const Status status = file->Allocate(0, too_much);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.ToString();
  EXPECT_FALSE(file->freeze()->frozen());
  EXPECT_OK(file->WriteAt(0, AsBytes("x")));
}

// In `directory`; "" or what was wrong.
std::string PunchIn(const std::string& directory) {
  const auto file = Create(directory + "/punched", /*direct=*/true);
  const std::string text = Pattern(1 << 20, 3);
  AlignedBuffer buffer = AlignedCopy(text);
  if (const Status status = file->WriteAt(0, buffer.bytes()); !status.ok()) return status.message();
  if (const Status status = file->Sync(); !status.ok()) return status.message();
  const uint64_t before = file->Info().value().allocated_bytes;
  const uint64_t hole = 64 << 10;
  const uint64_t length = 512 << 10;
  if (const Status status = file->PunchHole(hole, length); !status.ok()) return status.message();
  const FileInfo after = file->Info().value();
  if (after.size_bytes != text.size()) return "the size changed";
  if (after.allocated_bytes + length > before) {
    return StrCat("allocated: ", before, ", then ", after.allocated_bytes);
  }
  std::string expected = text;
  std::fill_n(expected.begin() + hole, length, '\0');
  AlignedBuffer back(text.size());
  if (file->ReadAt(0, back.bytes()).value() != text.size()) return "short";
  return AsText(back.bytes()) == expected ? "" : "other bytes than the hole's changed";
}

TEST_F(FileSystemTest, PunchingGivesBlocksBackAndReadsAsZeros) {
  EXPECT_EQ(PunchIn(dir_.path()), "");
}

TEST_F(FileSystemTest, PunchingOnAMemoryFileSystem) {
  const TempDir shm("/dev/shm");
  EXPECT_EQ(PunchIn(shm.path()), "");
}

TEST_F(FileSystemTest, PunchingIsDroppedAfterAFreeze) {
  const auto file = Create(dir_ / "a");
  ASSERT_OK(file->WriteAt(0, AsBytes(Pattern(8192, 1))));
  file->freeze()->Trip(InternalError("planted"));
  EXPECT_EQ(file->PunchHole(0, 8192).code(), StatusCode::kAborted);
  EXPECT_EQ(ReadAll(file.get()), Pattern(8192, 1));
}

TEST_F(FileSystemTest, APunchThatFailsDoesNotFreeze) {
  ASSERT_OK(Create(dir_ / "a")->WriteAt(0, AsBytes("x")));
  FileOpenOptions reading;
  const auto file = std::move(files_->Open(dir_ / "a", reading)).value();
  EXPECT_FALSE(file->PunchHole(0, 4096).ok());
  EXPECT_FALSE(file->freeze()->frozen());
}

TEST_F(FileSystemTest, NamesChangePlaces) {
  ASSERT_OK(files_->CreateDirectory(dir_ / "d"));
  ASSERT_OK(Create(dir_ / "d/in")->WriteAt(0, AsBytes("in")));
  ASSERT_OK(Create(dir_ / "f")->WriteAt(0, AsBytes("f")));
  ASSERT_OK(files_->Exchange(dir_ / "d", dir_ / "f"));
  EXPECT_EQ(files_->Stat(dir_ / "f/in").value().size_bytes, 2U);
  EXPECT_EQ(files_->Stat(dir_ / "d").value().size_bytes, 1U);
  EXPECT_EQ(files_->Exchange(dir_ / "d", dir_ / "x").code(), StatusCode::kNotFound);
  EXPECT_EQ(files_->Stat(dir_ / "d").value().size_bytes, 1U);
}

TEST_F(FileSystemTest, NamesAreListedRenamedLinkedAndRemoved) {
  ASSERT_OK(files_->CreateDirectory(dir_ / "d"));
  EXPECT_EQ(files_->CreateDirectory(dir_ / "d").code(), StatusCode::kAlreadyExists);
  ASSERT_OK(Create(dir_ / "d/b")->WriteAt(0, AsBytes("b")));
  Create(dir_ / "d/a");
  EXPECT_EQ(files_->List(dir_ / "d").value(), (std::vector<std::string>{"a", "b"}));
  ASSERT_OK(files_->Rename(dir_ / "d/b", dir_ / "d/a"));
  EXPECT_EQ(files_->Stat(dir_ / "d/a").value().size_bytes, 1U);
  EXPECT_EQ(files_->Stat(dir_ / "d/b").status().code(), StatusCode::kNotFound);
  ASSERT_OK(files_->Link(dir_ / "d/a", dir_ / "d/c"));
  EXPECT_EQ(files_->Stat(dir_ / "d/c").value().link_count, 2U);
  EXPECT_EQ(files_->Stat(dir_ / "d/c").value().inode, files_->Stat(dir_ / "d/a").value().inode);
  EXPECT_EQ(files_->Link(dir_ / "d/a", dir_ / "d/c").code(), StatusCode::kAlreadyExists);
  ASSERT_EQ(symlink((dir_ / "d/a").c_str(), (dir_ / "d/s").c_str()), 0);
  EXPECT_EQ(files_->Stat(dir_ / "d/s").value().inode, files_->Stat(dir_ / "d/a").value().inode);
  EXPECT_EQ(files_->Stat(dir_ / "d/a").value().link_count, 2U);
  ASSERT_OK(files_->Remove(dir_ / "d/s"));
  EXPECT_TRUE(files_->Stat(dir_ / "d/a").ok());
  EXPECT_FALSE(files_->RemoveDirectory(dir_ / "d").ok());
  ASSERT_OK(files_->SyncDirectory(dir_ / "d"));
  ASSERT_OK(files_->Remove(dir_ / "d/a"));
  ASSERT_OK(files_->Remove(dir_ / "d/c"));
  EXPECT_EQ(files_->Remove(dir_ / "d/c").code(), StatusCode::kNotFound);
  ASSERT_OK(files_->RemoveDirectory(dir_ / "d"));
  EXPECT_EQ(files_->SyncDirectory(dir_ / "d").code(), StatusCode::kNotFound);
  EXPECT_EQ(files_->List(dir_ / "d").status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(files_->Stat(dir_.path()).value().is_directory);
  EXPECT_GT(files_->FreeBytes(dir_.path()).value(), 0U);
}

TEST_F(FileSystemTest, DirectFilesKeepTheirAlignment) {
  const auto file = Create(dir_ / "a", /*direct=*/true);
  const Alignment alignment = file->alignment();
  ASSERT_GT(alignment.offset_bytes, 0U);
  const std::string text = Pattern(64 << 10, 1);
  AlignedBuffer buffer = AlignedCopy(text);
  ASSERT_OK(file->WriteAt(alignment.offset_bytes, buffer.bytes()));
  AlignedBuffer back(128 << 10);
  const size_t got = file->ReadAt(alignment.offset_bytes, back.bytes()).value();
  EXPECT_EQ(AsText(back.bytes().first(got)), text) << "short only at the end of the file";
  ASSERT_OK(file->Truncate(alignment.offset_bytes + 1000));
  EXPECT_EQ(file->ReadAt(alignment.offset_bytes, back.bytes()).value(), 1000U);
}

TEST_F(FileSystemTest, TmpfsIsWrittenDirectlyOrBuffered) {
  const TempDir memory("/dev/shm");
  const auto file = Create(memory / "a", /*direct=*/true);
  // tmpfs does not say what it wants: buffered, or the careful guess.
  EXPECT_TRUE(file->alignment().offset_bytes == 1 || file->alignment().offset_bytes == 4096);
  const std::string text = Pattern(8192, 2);
  AlignedBuffer buffer = AlignedCopy(text);
  ASSERT_OK(file->WriteAt(0, buffer.bytes()));
  ASSERT_OK(file->Sync());
  AlignedBuffer back(8192);
  ASSERT_OK(file->ReadAt(0, back.bytes()));
  EXPECT_EQ(AsText(back.bytes()), text);
}

TEST_F(FileSystemTest, LocksBelongToTheOpenFile) {
  const auto first = Create(dir_ / "LOCK");
  const auto second = Create(dir_ / "LOCK");  // in one process: a POSIX lock would not conflict
  EXPECT_FALSE(second->LockedByOther().value());
  EXPECT_TRUE(first->TryLock(LockKind::kExclusive).value());
  EXPECT_TRUE(first->TryLock(LockKind::kExclusive).value()) << "again is fine";
  EXPECT_FALSE(second->TryLock(LockKind::kExclusive).value());
  EXPECT_FALSE(second->TryLock(LockKind::kShared).value());
  EXPECT_TRUE(second->LockedByOther().value());
  EXPECT_FALSE(first->LockedByOther().value());
  Create(dir_ / "LOCK").reset();  // closing another open of the file does not drop the lock
  EXPECT_TRUE(second->LockedByOther().value());
  ASSERT_OK(first->Unlock());
  EXPECT_TRUE(second->TryLock(LockKind::kShared).value());
  EXPECT_FALSE(first->LockedByOther().value()) << "a shared lock does not count";
  EXPECT_TRUE(first->TryLock(LockKind::kShared).value());
  EXPECT_FALSE(first->TryLock(LockKind::kExclusive).value());
}

TEST_F(FileSystemTest, ClosingUnlocks) {
  const auto second = Create(dir_ / "LOCK");
  {
    const auto first = Create(dir_ / "LOCK");
    EXPECT_TRUE(first->TryLock(LockKind::kExclusive).value());
  }
  EXPECT_TRUE(second->TryLock(LockKind::kExclusive).value());
}

}  // namespace
}  // namespace stepwell::io
