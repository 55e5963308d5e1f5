// SPDX-License-Identifier: Apache-2.0
// What is asked of a store's writer by other processes, and by what is not one of ours.
#include "db/store/mailbox.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <thread>

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
    for (const uint64_t step : {1, 2, 3}) {
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

TEST_F(MailboxTest, ACopyHasAMailboxOfItsOwn) {
  const std::string copied = dir_ / "copy";
  CopyLiveStore(path_, copied);
  const auto copy = OpenWriter(copied);
  const auto beside = OpenBeside(copied);
  ASSERT_OK(beside.status());
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
  EXPECT_THAT(beside.status().message(), HasSubstr("not asked"));
}

TEST_F(MailboxTest, AnswersThatDoNotComeAreUnknown) {
  const auto name = MailboxName(writer_.get());
  ASSERT_OK(name.status());
  const auto beside = OpenBeside(path_);
  ASSERT_OK(beside.status());
  ASSERT_OK(writer_->Close());
  // What the writer would say first, and what comes of the request.
  const std::pair<std::string, StatusCode> greetings[] = {
      {R"({"version":1})", StatusCode::kOutcomeUnknown},
      {R"({"version":2})", StatusCode::kUnavailable},
      {R"([1])", StatusCode::kUnavailable},
      {"\xff{", StatusCode::kUnavailable},
  };
  for (const auto& [greeting, expected] : greetings) {
    auto listener = io::LocalListener::Open(*name);
    ASSERT_OK(listener.status());
    std::thread serving([&listener, &greeting = greeting] {
      auto connection = listener->Accept();
      ASSERT_OK(connection.status());
      EXPECT_OK(connection->Send(greeting));
      const auto request = connection->Receive();  // or nothing
      if (request.ok()) {
        EXPECT_THAT(*request, HasSubstr("\"delete\""));
      }
    });
    const Status status = (*beside)->Delete(std::vector<uint64_t>{1});
    EXPECT_EQ(status.code(), expected) << greeting << ": " << status.ToString();
    serving.join();
  }
  for (const char* answer : {"", "{}", "[]", R"({"code":"x"})", R"({"code":0,"reclaim":{}})"}) {
    auto listener = io::LocalListener::Open(*name);
    ASSERT_OK(listener.status());
    std::thread serving([&listener, answer] {
      auto connection = listener->Accept();
      ASSERT_OK(connection.status());
      EXPECT_OK(connection->Send(R"({"version":1})"));
      EXPECT_OK(connection->Receive().status());
      EXPECT_OK(connection->Send(answer));
    });
    EXPECT_EQ((*beside)->Reclaim().status().code(), StatusCode::kOutcomeUnknown) << answer;
    serving.join();
  }
}

TEST_F(MailboxTest, WhatIsNoRequestChangesNothing) {
  const auto name = MailboxName(writer_.get());
  ASSERT_OK(name.status());
  for (const std::string& request :
       {std::string(), std::string("\xff\x00{", 3),
        std::string(R"({"do":"erase","steps":[1],"items":[]})"),
        std::string(R"({"do":"delete","steps":[-1.5],"items":3})"), std::string(1 << 20, '['),
        std::string(R"({"do":"delete_items","steps":[1,2],"items":["state"]})")}) {
    auto connection = io::LocalSocket::Connect(*name, std::chrono::seconds(30));
    ASSERT_OK(connection.status());
    EXPECT_THAT(connection->Receive().value(), HasSubstr("version"));
    EXPECT_OK(connection->Send(request));
    const auto answer = connection->Receive();
    ASSERT_OK(answer.status());
    EXPECT_THAT(*answer, testing::Not(HasSubstr("\"code\":0,"))) << request.substr(0, 60);
  }
  // A length that is none.
  const auto connection = io::LocalSocket::Connect(*name, std::chrono::seconds(30));
  ASSERT_OK(connection.status());
  EXPECT_EQ(send(connection->descriptor(), "\xff\xff\xff\xff", 4, MSG_NOSIGNAL), 4);
  EXPECT_THAT(StepNumbers(writer_.get()), ElementsAre(1, 2, 3));
  const auto beside = OpenBeside(path_);
  ASSERT_OK(beside.status());  // it still serves
  EXPECT_OK((*beside)->Delete(std::vector<uint64_t>{1}));
}

TEST_F(MailboxTest, CloseDoesNotWaitForAProcessThatSaysNothing) {
  const auto name = MailboxName(writer_.get());
  ASSERT_OK(name.status());
  auto connection = io::LocalSocket::Connect(*name, std::chrono::seconds(30));
  ASSERT_OK(connection.status());
  EXPECT_THAT(connection->Receive().value(), HasSubstr("version"));
  ASSERT_OK(writer_->Close());
  const auto answer = connection->Receive();
  if (answer.ok()) {
    EXPECT_THAT(*answer, HasSubstr("being closed"));
  }
}

TEST_F(MailboxTest, AForkedChildDoesNotKeepTheName) {
  const Signal end;
  const pid_t child = Fork([&] {
    end.Wait();
    return true;
  });
  const auto name = MailboxName(writer_.get());
  ASSERT_OK(name.status());
  ASSERT_OK(writer_->Close());
  EXPECT_OK(io::LocalListener::Open(*name).status());  // its name is free
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
