// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cerrno>
#include <thread>

#include "tests/io/support/support.h"

namespace stepwell::io {
namespace {

using testing::Create;
using testing::CreateOptions;
using testing::TempDir;

TEST(FreezeTest, KeepsTheFirstError) {
  Freeze freeze;
  EXPECT_FALSE(freeze.frozen());
  EXPECT_OK(freeze.Check());
  freeze.Trip(ErrnoStatus(EIO, "write a"));
  freeze.Trip(ErrnoStatus(ENOSPC, "write b"));
  EXPECT_TRUE(freeze.frozen());
  EXPECT_EQ(freeze.first_error().message(), "write a: Input/output error");
  EXPECT_EQ(freeze.Check().code(), StatusCode::kAborted);
  EXPECT_EQ(freeze.Check().os_error(), EIO);
  EXPECT_NE(freeze.Check().message().find("write a: Input/output error"), std::string::npos);
}

TEST(FreezeTest, ManyThreadsAgreeOnOneError) {
  Freeze freeze;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&freeze, i] { freeze.Trip(InternalError(StrCat("error ", i))); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_NE(freeze.Check().message().find(freeze.first_error().message()), std::string::npos);
}

TEST(FreezeTest, StopsEveryChangeOfItsFilesAndNoRead) {
  const TempDir dir;
  const auto freeze = std::make_shared<Freeze>();
  const auto file = Create(dir / "a", false, freeze);
  ASSERT_OK(file->WriteAt(0, AsBytes("before")));
  freeze->Trip(ErrnoStatus(EIO, "write elsewhere"));
  EXPECT_EQ(file->WriteAt(0, AsBytes("after!")).code(), StatusCode::kAborted);
  EXPECT_EQ(file->Sync().code(), StatusCode::kAborted);
  EXPECT_EQ(file->Truncate(0).code(), StatusCode::kAborted);
  EXPECT_EQ(file->Allocate(0, 1 << 20).code(), StatusCode::kAborted);
  const auto created = LocalFileSystem()->Open(dir / "b", CreateOptions(false, freeze));
  EXPECT_EQ(created.status().code(), StatusCode::kAborted);
  EXPECT_EQ(LocalFileSystem()->Stat(dir / "b").status().code(), StatusCode::kNotFound);

  std::string text(6, '\0');
  const Result<size_t> read = file->ReadAt(0, std::as_writable_bytes(std::span(text)));
  ASSERT_OK(read);
  EXPECT_EQ(text, "before");
  EXPECT_OK(file->Info());
  const auto other = Create(dir / "other");  // a domain of its own
  EXPECT_OK(other->WriteAt(0, AsBytes("x")));
}

TEST(FreezeTest, AFailedWriteTripsAndNamesTheFile) {
  const TempDir dir;
  Create(dir / "a");
  FileOpenOptions options;  // read only: writing fails with EBADF
  const auto file = LocalFileSystem()->Open(dir / "a", options).value();
  const Status status = file->WriteAt(0, AsBytes("x"));
  EXPECT_EQ(status.message(), StrCat("write ", dir / "a", ": Bad file descriptor"));
  EXPECT_TRUE(file->freeze()->frozen());
  EXPECT_EQ(file->freeze()->first_error().message(), status.message());
}

TEST(FreezeTest, AFullDeviceFailsTheWriteButDoesNotFreeze) {
  FileOpenOptions options;
  options.write = true;
  const auto file = LocalFileSystem()->Open("/dev/full", options).value();
  const Status status = file->WriteAt(0, AsBytes("x"));
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "write /dev/full: No space left on device");
  EXPECT_FALSE(file->freeze()->frozen());
}

}  // namespace
}  // namespace stepwell::io
