// SPDX-License-Identifier: Apache-2.0
// Other processes send requests to a store's writer; so do strangers.
#include "db/store/mailbox.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <filesystem>
#include <thread>

#include "io/open_disk.h"
#include "tests/db/support/forked.h"
#include "tests/db/support/store_support.h"

namespace stepwell::db {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class MailboxTest : public testing::Test {
 protected:
  void SetUp() override {
    writer_ = OpenWriter(path_);
    for (const uint64_t step : {1U, 2U, 3U}) {
      const auto handle = SaveSeeded(writer_.get(), step, step, SmallState());
      ASSERT_OK(handle.status());
    }
    ASSERT_OK(writer_->Wait());
  }

  static std::unique_ptr<Store> OpenWriter(const std::string& path) {
    StoreOptions options;
    options.staging_bytes = 32 << 20;
    auto store = Store::Open(path, options);
    EXPECT_OK(store.status());
    return std::move(*store);
  }
  static Result<std::unique_ptr<Store>> OpenBeside(const std::string& path) {
    StoreOptions options;
    options.through_writer = true;
    options.create = false;
    return Store::Open(path, options);
  }

  LockContact Contact() const {
    const auto contact = ReadContact(io::LocalFileSystem(), path_);
    EXPECT_OK(contact.status());
    return contact.ok() ? *contact : LockContact{};
  }

  TempDir dir_;
  const std::string path_ = dir_ / "run";
  std::unique_ptr<Store> writer_;
};

TEST_F(MailboxTest, TheWriterDoesWhatItIsAsked) {
  const auto beside = OpenBeside(path_);
  ASSERT_OK(beside.status());
  EXPECT_TRUE((*beside)->read_only());
  const std::vector<uint64_t> one = {1};
  EXPECT_OK((*beside)->SetPinned(one, true));
  EXPECT_EQ(writer_->Delete(one).code(), StatusCode::kFailedPrecondition) << "is it pinned?";
  const Status pinned = (*beside)->Delete(one);
  EXPECT_EQ(pinned.code(), StatusCode::kFailedPrecondition) << pinned.ToString();
  EXPECT_THAT(pinned.message(), HasSubstr("pinned"));
  EXPECT_OK((*beside)->SetPinned(one, false));
  const std::vector<uint64_t> three = {3};
  EXPECT_OK((*beside)->SetTaint(three, "loss spike"));
  EXPECT_EQ((*writer_->Read(3))->step().taint, "loss spike");
  EXPECT_EQ(*(*beside)->Newest(), 2);
  EXPECT_OK((*beside)->SetTaint(three, ""));
  EXPECT_EQ(*(*beside)->Newest(), 3);
  EXPECT_OK((*beside)->Delete(one));
  EXPECT_THAT(StepNumbers(writer_.get()), ElementsAre(2, 3));
  EXPECT_THAT(StepNumbers(beside->get()), ElementsAre(2, 3));
  const std::vector<uint64_t> some = {2, 7};
  const Status missing = (*beside)->Delete(some);
  EXPECT_EQ(missing.code(), StatusCode::kNotFound);
  EXPECT_THAT(missing.message(), HasSubstr("no step 7"));
  const std::vector<std::string> items = {"state"};
  EXPECT_EQ((*beside)->DeleteItems(2, items).code(), StatusCode::kInvalidArgument);
  const auto reclaimed = (*beside)->Reclaim();
  ASSERT_OK(reclaimed.status());
  EXPECT_GT(reclaimed->bytes_before, 0U);
  EXPECT_OK(CheckSeeded(writer_.get(), 2, 2, SmallState()));
  EXPECT_OK(CheckSeeded(beside->get(), 3, 3, SmallState()));
  // Nothing else is changed through it.
  EXPECT_EQ(SaveSeeded(beside->get(), 9, 9, SmallState()).status().code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ((*beside)->Repair(true).status().code(), StatusCode::kFailedPrecondition);
}

TEST_F(MailboxTest, WithoutAWriterItIsOneItself) {
  ASSERT_OK(writer_->Close());
  const auto store = OpenBeside(path_);
  ASSERT_OK(store.status());
  EXPECT_FALSE((*store)->read_only());
  EXPECT_OK((*store)->Delete(std::vector<uint64_t>{2}));
}

TEST_F(MailboxTest, AWriterThatIsGoneWasNotAsked) {
  const auto beside = OpenBeside(path_);
  ASSERT_OK(beside.status());
  ASSERT_OK(writer_->Close());
  const Status status = (*beside)->Delete(std::vector<uint64_t>{1});
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.ToString();
  EXPECT_THAT(status.message(), HasSubstr("nothing was done"));
  EXPECT_THAT(StepNumbers(beside->get()), ElementsAre(1, 2, 3));
}

// Covers every way to copy a store, also one in which files keep their inodes.
TEST_F(MailboxTest, ACopyHasAMailboxOfItsOwn) {
  const std::string copied = dir_ / "copy";
  CopyLiveStore(path_, copied);
  std::filesystem::copy_file(path_ + "/LOCK", copied + "/LOCK",
                             std::filesystem::copy_options::overwrite_existing);
  const auto copy = OpenWriter(copied);
  const auto beside = OpenBeside(copied);
  ASSERT_OK(beside.status());
  EXPECT_TRUE((*beside)->read_only());
  EXPECT_OK((*beside)->Delete(std::vector<uint64_t>{1}));
  EXPECT_THAT(StepNumbers(copy.get()), ElementsAre(2, 3));
  EXPECT_THAT(StepNumbers(writer_.get()), ElementsAre(1, 2, 3));
}

TEST_F(MailboxTest, AGroupServesNoRequests) {
  ASSERT_OK(writer_->Close());
  StoreOptions options;
  options.group = StoreGroup{};
  const auto part = Store::Open(path_, options);
  ASSERT_OK(part.status());
  const auto beside = OpenBeside(path_);
  EXPECT_EQ(beside.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(beside.status().message(), HasSubstr("locked by process"));
  EXPECT_THAT(beside.status().message(), HasSubstr("nothing was done"));
}

// Something else answers in the writer's place.
TEST_F(MailboxTest, OnlyTheWritersAnswerCounts) {
  const LockContact contact = Contact();
  const auto beside = OpenBeside(path_);
  ASSERT_OK(beside.status());
  ASSERT_OK(writer_->Close());
  const Result<ReclaimReport> done = ReclaimReport{};
  const std::string right = EncodeReply(contact.reply_key, done);
  struct Case {
    std::string greeting;
    std::string answer;
    StatusCode expected;
  };
  for (const Case& each :
       {Case{"stepwell 2", right, StatusCode::kOk},
        Case{"stepwell 2", "", StatusCode::kOutcomeUnknown},
        Case{"stepwell 2", EncodeReply("another", done), StatusCode::kOutcomeUnknown},
        Case{"stepwell 2", right + "x", StatusCode::kOutcomeUnknown},
        Case{"stepwell 2", right.substr(0, 40), StatusCode::kOutcomeUnknown},
        Case{"stepwell 1", right, StatusCode::kUnavailable},
        Case{"", right, StatusCode::kUnavailable}}) {
    auto listener = io::LocalListener::Open(contact.socket);
    ASSERT_OK(listener.status());
    std::thread serving([&] {
      auto connection = listener->Accept();
      ASSERT_OK(connection.status());
      EXPECT_OK(connection->Send(each.greeting));
      const auto request = connection->Receive();
      if (!request.ok()) return;
      EXPECT_OK(DecodeRequest(contact.request_key, *request).status());
      EXPECT_OK(connection->Send(each.answer));
    });
    const Status status = (*beside)->Delete(std::vector<uint64_t>{1});
    EXPECT_EQ(status.code(), each.expected) << status.ToString();
    serving.join();
  }
  // One that is gone before it answers.
  auto listener = io::LocalListener::Open(contact.socket);
  ASSERT_OK(listener.status());
  std::thread serving([&] {
    auto connection = listener->Accept();
    ASSERT_OK(connection.status());
    EXPECT_OK(connection->Send("stepwell 2"));
    EXPECT_OK(connection->Receive().status());
  });
  EXPECT_EQ((*beside)->Reclaim().status().code(), StatusCode::kOutcomeUnknown);
  serving.join();
}

TEST_F(MailboxTest, WhatIsNoRequestChangesNothing) {
  const LockContact contact = Contact();
  const std::string right =
      EncodeRequest(contact.request_key, {WriterRequest::Kind::kDelete, {1, 2}, {"state"}});
  std::vector<std::string> requests = {
      "",
      "[[[[",
      std::string(1 << 20, '\xff'),
      std::string(1 << 20, '['),
      right + "x",
      EncodeRequest("another", {WriterRequest::Kind::kDelete, {1, 2}, {}}),
      EncodeRequest(contact.reply_key, {WriterRequest::Kind::kDelete, {1, 2}, {}}),
      EncodeRequest(contact.request_key, {static_cast<WriterRequest::Kind>(0), {1}, {}}),
      EncodeRequest(contact.request_key, {static_cast<WriterRequest::Kind>(6), {1}, {}}),
      EncodeRequest(contact.request_key, {WriterRequest::Kind::kDeleteItems, {1, 2}, {"state"}}),
      EncodeRequest(
          contact.request_key,
          {WriterRequest::Kind::kDeleteItems, {1}, std::vector<std::string>(10'000, "state")})};
  for (size_t i = 0; i < right.size(); i += 3) requests.push_back(right.substr(0, i));
  for (const std::string& request : requests) {
    auto connection = io::LocalSocket::Connect(contact.socket, std::chrono::seconds(30));
    ASSERT_OK(connection.status());
    EXPECT_EQ(connection->Receive().value(), "stepwell 2");
    EXPECT_OK(connection->Send(request));
    const auto answer = connection->Receive();
    ASSERT_OK(answer.status());
    EXPECT_LT(answer->size(), 5000U);
    const auto reply = DecodeReply(contact.reply_key, *answer);
    ASSERT_OK(reply.status());
    EXPECT_EQ(reply->status().code(), StatusCode::kInvalidArgument) << request.size();
  }
  // A length that is none, and a name that is as long as a request may be.
  {
    const auto connection = io::LocalSocket::Connect(contact.socket, std::chrono::seconds(30));
    ASSERT_OK(connection.status());
    EXPECT_EQ(send(connection->descriptor(), "\xff\xff\xff\xff", 4, MSG_NOSIGNAL), 4);
  }
  const auto beside = OpenBeside(path_);
  ASSERT_OK(beside.status());  // it still serves
  const std::vector<std::string> long_name = {std::string(1'000'000, 'x')};
  const Status status = (*beside)->DeleteItems(1, long_name);
  EXPECT_EQ(status.code(), StatusCode::kNotFound) << status.ToString().substr(0, 200);
  EXPECT_EQ((*beside)->Delete(std::vector<uint64_t>(200'000, 1)).code(),
            StatusCode::kInvalidArgument);
  EXPECT_THAT(StepNumbers(writer_.get()), ElementsAre(1, 2, 3));
  EXPECT_OK((*beside)->Delete(std::vector<uint64_t>{1}));
}

TEST_F(MailboxTest, CloseDoesNotWaitForProcessesThatSayNothing) {
  std::vector<io::LocalSocket> silent;
  for (int i = 0; i < 4; ++i) {
    auto connection = io::LocalSocket::Connect(Contact().socket, std::chrono::seconds(30));
    ASSERT_OK(connection.status());
    silent.push_back(std::move(*connection));
  }
  EXPECT_EQ(silent.front().Receive().value(), "stepwell 2");
  ASSERT_OK(writer_->Close());
  EXPECT_FALSE(silent.front().Receive().ok());
}

// It is its turn after those that say nothing.
TEST_F(MailboxTest, ProcessesThatSayNothingHoldUpNoOther) {
  std::vector<io::LocalSocket> silent;
  for (int i = 0; i < 2; ++i) {
    auto connection = io::LocalSocket::Connect(Contact().socket, std::chrono::seconds(30));
    ASSERT_OK(connection.status());
    silent.push_back(std::move(*connection));
  }
  const auto beside = OpenBeside(path_);
  ASSERT_OK(beside.status());
  EXPECT_OK((*beside)->Delete(std::vector<uint64_t>{1}));
}

TEST_F(MailboxTest, AForkedChildDoesNotKeepTheName) {
  const Signal end;
  const pid_t child = Fork([&] {
    end.Wait();
    return true;
  });
  const LockContact contact = Contact();
  ASSERT_OK(writer_->Close());
  EXPECT_OK(io::LocalListener::Open(contact.socket).status());  // its name is free
  end.Raise();
  EXPECT_EQ(Reap(child), 0);
}

TEST_F(MailboxTest, SavesGoOnBesideRequests) {
  std::thread asking([this] {
    const auto beside = OpenBeside(path_);
    ASSERT_OK(beside.status());
    for (int i = 0; i < 20; ++i) {
      EXPECT_OK((*beside)->SetPinned(std::vector<uint64_t>{3}, i % 2 == 0));
    }
    EXPECT_OK((*beside)->Delete(std::vector<uint64_t>{1, 2}));
    EXPECT_OK((*beside)->Reclaim().status());
  });
  for (uint64_t step = 10; step < 40; ++step) {
    EXPECT_OK(SaveSeeded(writer_.get(), step, step, SmallState()).status());
  }
  asking.join();
  ASSERT_OK(writer_->Wait());
  EXPECT_EQ(StepNumbers(writer_.get()).size(), 31U);
  ASSERT_OK(writer_->Close());
  const auto again = OpenWriter(path_);
  EXPECT_EQ(StepNumbers(again.get()).size(), 31U);
  EXPECT_OK(CheckSeeded(again.get(), 3, 3, SmallState()));
}

}  // namespace
}  // namespace stepwell::db
