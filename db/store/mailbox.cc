// SPDX-License-Identifier: Apache-2.0
#include "db/store/mailbox.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <random>
#include <utility>

#include "db/layout.h"
#include "format/requests.h"
#include "io/guard.h"
#include "io/thread.h"

namespace stepwell::db {
namespace {

using Kind = WriterRequest::Kind;

constexpr std::string_view kGreeting = "stepwell 2";
// For the other end to say its word, once it is its turn.
constexpr std::chrono::milliseconds kMessageTimeout{2'000};
// For the requests of others before this one, and for the work itself: a pass of reclaim of a large
// store takes minutes.
constexpr std::chrono::milliseconds kTurnTimeout{30'000};
constexpr std::chrono::milliseconds kAnswerTimeout{600'000};
constexpr std::chrono::milliseconds kRetryInterval{100};

// 64 random bits as text.
std::string RandomText() {
  constexpr const char* kDigits = "0123456789abcdef";
  std::random_device random;
  std::string text;
  for (int i = 0; i < 16; ++i) text += kDigits[random() & 15];
  return text;
}

std::string Describe(const WriterRequest& request) {
  constexpr size_t kNamedMax = 10;
  constexpr const char* kNames[] = {"",      "delete",  "delete items", "pin",
                                    "unpin", "reclaim", "taint"};
  std::string text = kNames[static_cast<size_t>(request.kind)];
  for (size_t i = 0; i < std::min(kNamedMax, request.steps.size()); ++i) {
    text += StrCat(i == 0 ? " of step " : ", ", request.steps[i]);
  }
  if (request.steps.size() > kNamedMax) text += StrCat(" and more, ", request.steps.size());
  return text;
}

// Closed in forked children while it lives.
class Registered {
 public:
  explicit Registered(const io::LocalSocket* socket) : socket_(socket) {
    CloseInForkedChild(socket, socket->descriptor());
  }
  ~Registered() { ForgetForkDescriptors(socket_); }
  Registered(const Registered&) = delete;
  Registered& operator=(const Registered&) = delete;

 private:
  const io::LocalSocket* const socket_;
};

Result<ReclaimReport> Do(const WriterRequest& request, Store* store) {
  const auto nothing = [](const Status& status) -> Result<ReclaimReport> {
    STEPWELL_RETURN_IF_ERROR(status);
    return ReclaimReport{};
  };
  switch (request.kind) {
    case Kind::kDelete:
      return nothing(store->Delete(request.steps));
    case Kind::kDeleteItems:
      if (request.steps.size() != 1) return InvalidArgumentError("items of one step at a time");
      return nothing(store->DeleteItems(request.steps.front(), request.items));
    case Kind::kPin:
    case Kind::kUnpin:
      return nothing(store->SetPinned(request.steps, request.kind == Kind::kPin));
    case Kind::kTaint:
      if (request.items.size() != 1) return InvalidArgumentError("a taint has one reason");
      return nothing(store->SetTaint(request.steps, request.items.front()));
    case Kind::kReclaim:
      return store->Reclaim();
  }
  return InternalError("a request of no kind");
}

// ---- what both ends send ------------------------------------------------------------------------

constexpr size_t kMessageMax = 4096;  // bytes of an error's text

constexpr std::array kReclaimFields = {
    &ReclaimReport::bytes_before,
    &ReclaimReport::bytes_after,
    &ReclaimReport::segments_removed,
    &ReclaimReport::segments_recycled,
    &ReclaimReport::bytes_punched,
    &ReclaimReport::bytes_moved,
    &ReclaimReport::bytes_pinned_by_readers,
    &ReclaimReport::bytes_linked,
};

}  // namespace

// ---- the writer's end ---------------------------------------------------------------------------

Mailbox::Mailbox(Store* store, LogSink log, LockContact contact, io::LocalListener listener)
    : store_(store),
      log_(std::move(log)),
      contact_(std::move(contact)),
      listener_(std::move(listener)) {
  CloseInForkedChild(this, listener_.descriptor());
}

Result<std::unique_ptr<Mailbox>> Mailbox::Start(Store* store, const LogSink& log,
                                                io::File* lock_file) {
  LockContact contact{"stepwell-" + RandomText(), RandomText(), RandomText()};
  STEPWELL_ASSIGN_OR_RETURN(io::LocalListener listener, io::LocalListener::Open(contact.socket));
  std::unique_ptr<Mailbox> mailbox(new Mailbox(store, log, contact, std::move(listener)));
  STEPWELL_ASSIGN_OR_RETURN(
      mailbox->thread_, io::StartThread("stepwell-mail", [box = mailbox.get()] { box->Run(); }));
  STEPWELL_RETURN_IF_ERROR(WriteContact(lock_file, contact));
  return mailbox;
}

Mailbox::~Mailbox() {
  Stop();
  if (thread_.joinable()) thread_.join();
  ForgetForkDescriptors(this);
}

void Mailbox::Stop() {
  const io::MutexLock lock(&mutex_);
  stopped_ = true;
  listener_.Stop();
  if (connection_ != nullptr) connection_->StopReceiving();
}

void Mailbox::Run() {
  // A failure ends the connection, which the other process sees.
  while (WaitFor(nullptr)) {
    const Status served = io::Guarded("serve a request", [this]() -> Status {
      STEPWELL_ASSIGN_OR_RETURN(io::LocalSocket connection, listener_.Accept());
      const Registered registered(&connection);
      Serve(&connection);
      return OkStatus();
    });
    if (!served.ok() && WaitFor(nullptr)) {
      std::this_thread::sleep_for(kRetryInterval);  // for descriptors, for memory
    }
  }
}

// The connection that Stop is to wake; false when it has come.
bool Mailbox::WaitFor(io::LocalSocket* connection) {
  const io::MutexLock lock(&mutex_);
  connection_ = stopped_ ? nullptr : connection;
  return !stopped_;
}

Result<std::string> Mailbox::ReceiveRequest(io::LocalSocket* connection) {
  std::string text;
  Status received = UnavailableError("the store is being closed");
  if (!WaitFor(connection)) return received;
  received = io::Guarded("receive a request", [&]() -> Status {
    STEPWELL_ASSIGN_OR_RETURN(text, connection->Receive());
    return OkStatus();
  });
  WaitFor(nullptr);
  STEPWELL_RETURN_IF_ERROR(received);
  return text;
}

void Mailbox::Serve(io::LocalSocket* connection) {
  const auto peer = connection->OtherEnd();
  if (!peer.ok() || (peer->user != geteuid() && peer->user != 0)) return;
  if (!connection->SetTimeout(kMessageTimeout).ok() || !connection->Send(kGreeting).ok()) return;
  const Result<std::string> bytes = ReceiveRequest(connection);
  if (!bytes.ok()) return;  // not all of it came, so the other end knows that it was not sent
  const Result<WriterRequest> request = DecodeRequest(contact_.request_key, *bytes);
  const auto outcome =
      request.ok() ? Do(*request, store_) : Result<ReclaimReport>(request.status());
  connection->Send(EncodeReply(contact_.reply_key, outcome))
      .IgnoreError("the other process did not wait for its answer");
  Log(log_, LogLevel::kInfo,
      StrCat(store_->path(), ": process ", peer->process, " asked for ",
             request.ok() ? Describe(*request) : "nothing that can be read", ": ",
             outcome.ok() ? "done" : outcome.status().message().substr(0, 200)));
}

// ---- the other end ------------------------------------------------------------------------------

Result<std::unique_ptr<WriterClient>> WriterClient::Connect(StoreReader* store) {
  std::unique_ptr<WriterClient> client(new WriterClient(store));
  LockContact contact;
  STEPWELL_RETURN_IF_ERROR(client->ConnectAndGreet(&contact).status());
  return client;
}

// A connection whose other end waits for a request.
Result<io::LocalSocket> WriterClient::ConnectAndGreet(LockContact* contact) {
  const auto not_sent = [](std::string_view why) {
    return UnavailableError(
        StrCat("the process that writes was not asked, so nothing was done: ", why));
  };
  constexpr std::string_view kNone =
      "it takes no requests: it is being opened or closed, or is one of many processes";
  auto read = ReadContact(store_->file_system(), store_->path());
  if (read.status().code() == StatusCode::kNotFound) return not_sent(kNone);
  if (!read.ok()) return not_sent(read.status().message());
  *contact = std::move(*read);
  auto connection = io::LocalSocket::Connect(contact->socket, kTurnTimeout);
  if (connection.status().code() == StatusCode::kNotFound) return not_sent(kNone);
  if (!connection.ok()) return not_sent(connection.status().message());
  const Result<std::string> greeting = connection->Receive();
  if (greeting.status().code() == StatusCode::kDeadlineExceeded) {
    return not_sent(StrCat("it has not answered for ", kTurnTimeout.count() / 1000,
                           " s; it may be stopped, or busy with requests of others"));
  }
  if (!greeting.ok()) return not_sent(greeting.status().message());
  if (*greeting != kGreeting) return not_sent("it is of another version of Stepwell");
  return connection;
}

Result<ReclaimReport> WriterClient::Send(const WriterRequest& request) {
  LockContact contact;
  Result<io::LocalSocket> connection = ConnectAndGreet(&contact);
  if (!connection.ok()) return connection.status().WithContext(store_->path());
  const Status sent = connection->Send(EncodeRequest(contact.request_key, request));
  if (sent.code() == StatusCode::kInvalidArgument) {
    return InvalidArgumentError(
        StrCat(store_->path(),
               ": too many steps or items for one request to the process that "
               "writes; ask for fewer at a time"));
  }
  if (!sent.ok()) {
    return UnavailableError(StrCat(store_->path(), ": the request did not reach the process that ",
                                   "writes, so nothing was done: ", sent.message()));
  }
  const auto unknown = [this](std::string_view why) {
    return OutcomeUnknownError(StrCat(store_->path(),
                                      ": the process that writes was asked and has ",
                                      "not answered, so whether it was done is not known: ", why));
  };
  if (const Status set = connection->SetTimeout(kAnswerTimeout); !set.ok()) {
    return unknown(set.message());
  }
  const Result<std::string> bytes = connection->Receive();
  if (!bytes.ok()) return unknown(bytes.status().message());
  auto reply = DecodeReply(contact.reply_key, *bytes);
  return reply.ok() ? std::move(*reply) : Result<ReclaimReport>(unknown(reply.status().message()));
}

std::string EncodeRequest(const std::string& key, const WriterRequest& request) {
  return format::EncodeRequestMessage(
      {key, static_cast<uint8_t>(request.kind), request.steps, request.items});
}

Result<WriterRequest> DecodeRequest(const std::string& key, std::string_view bytes) {
  auto message = format::DecodeRequestMessage(AsBytes(bytes));
  if (message.ok() && message->key != key) {
    return InvalidArgumentError("a request without the store's key");
  }
  if (!message.ok() || message->kind < static_cast<uint8_t>(Kind::kDelete) ||
      message->kind > static_cast<uint8_t>(Kind::kTaint)) {
    return InvalidArgumentError("a request that this version cannot read");
  }
  return WriterRequest{static_cast<Kind>(message->kind), std::move(message->steps),
                       std::move(message->items)};
}

std::string EncodeReply(const std::string& key, const Result<ReclaimReport>& outcome) {
  format::ReplyMessage reply;
  reply.key = key;
  reply.code = static_cast<uint8_t>(outcome.status().code());
  reply.os_error = outcome.status().os_error();
  reply.message = std::string_view(outcome.status().message()).substr(0, kMessageMax);
  for (const auto field : kReclaimFields)
    reply.numbers.push_back(outcome.ok() ? (*outcome).*field : 0);
  return format::EncodeReplyMessage(reply);
}

Result<Result<ReclaimReport>> DecodeReply(const std::string& key, std::string_view bytes) {
  auto reply = format::DecodeReplyMessage(AsBytes(bytes));
  if (!reply.ok() || reply->key != key || reply->numbers.size() != kReclaimFields.size()) {
    return DataLossError("the answer is not one of this store's writer");
  }
  if (reply->code != 0) {
    return Result<ReclaimReport>(
        Status(static_cast<StatusCode>(reply->code), std::move(reply->message), reply->os_error));
  }
  ReclaimReport report;
  for (size_t i = 0; i < kReclaimFields.size(); ++i) report.*kReclaimFields[i] = reply->numbers[i];
  return Result<ReclaimReport>(report);
}

}  // namespace stepwell::db
