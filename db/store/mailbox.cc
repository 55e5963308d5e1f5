// SPDX-License-Identifier: Apache-2.0
#include "db/store/mailbox.h"

#include <unistd.h>

#include <array>
#include <chrono>
#include <utility>

#include <nlohmann/json.hpp>

#include "db/layout.h"
#include "db/log/lock.h"
#include "io/guard.h"
#include "io/thread.h"

namespace stepwell::db {
namespace {

using Json = nlohmann::json;
using Kind = WriterRequest::Kind;

constexpr int kVersion = 1;
// For a process that is asked, or that asks, to say its next word.
constexpr std::chrono::milliseconds kWordTimeout{5'000};
// For the work itself. A pass of reclaim of a large store takes minutes.
constexpr std::chrono::milliseconds kAnswerTimeout{600'000};
constexpr std::chrono::milliseconds kRetryInterval{100};

constexpr std::array<std::pair<Kind, const char*>, 5> kKinds = {{
    {Kind::kDelete, "delete"},
    {Kind::kDeleteItems, "delete_items"},
    {Kind::kPin, "pin"},
    {Kind::kUnpin, "unpin"},
    {Kind::kReclaim, "reclaim"},
}};

using ReclaimField = uint64_t ReclaimReport::*;
constexpr std::array<std::pair<const char*, ReclaimField>, 8> kReclaimFields = {{
    {"bytes_before", &ReclaimReport::bytes_before},
    {"bytes_after", &ReclaimReport::bytes_after},
    {"segments_removed", &ReclaimReport::segments_removed},
    {"segments_recycled", &ReclaimReport::segments_recycled},
    {"bytes_punched", &ReclaimReport::bytes_punched},
    {"bytes_moved", &ReclaimReport::bytes_moved},
    {"bytes_pinned_by_readers", &ReclaimReport::bytes_pinned_by_readers},
    {"bytes_linked", &ReclaimReport::bytes_linked},
}};

// Text that is not UTF-8 cannot be an item's name, and is replaced in messages.
std::string Text(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string Encode(const WriterRequest& request) {
  Json json = {{"steps", request.steps}, {"items", request.items}};
  for (const auto& [kind, name] : kKinds) {
    if (kind == request.kind) json["do"] = name;
  }
  return Text(json);
}

// Throws what the parser throws.
WriterRequest DecodeRequest(const std::string& text) {
  const Json json = Json::parse(text);
  WriterRequest request;
  request.steps = json.at("steps").get<std::vector<uint64_t>>();
  request.items = json.at("items").get<std::vector<std::string>>();
  for (const auto& [kind, name] : kKinds) {
    if (json.at("do") != name) continue;
    request.kind = kind;
    return request;
  }
  throw std::invalid_argument("a request of a kind that this version does not know");
}

std::string Encode(const Result<ReclaimReport>& outcome) {
  Json json = {{"code", static_cast<int>(outcome.status().code())},
               {"os_error", outcome.status().os_error()},
               {"message", outcome.status().message()}};
  for (const auto& [name, field] : kReclaimFields) {
    if (outcome.ok()) json["reclaim"][name] = (*outcome).*field;
  }
  return Text(json);
}

Result<ReclaimReport> DecodeReply(const std::string& text) {
  const Json json = Json::parse(text);
  const int code = json.at("code").get<int>();
  if (code != 0) {
    return Status(static_cast<StatusCode>(code), json.at("message").get<std::string>(),
                  json.at("os_error").get<int>());
  }
  ReclaimReport report;
  for (const auto& [name, field] : kReclaimFields) {
    report.*field = json.at("reclaim").at(name).get<uint64_t>();
  }
  return report;
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
    case Kind::kReclaim:
      return store->Reclaim();
  }
  return InternalError("a request of no kind");
}

}  // namespace

Result<std::string> MailboxName(StoreReader* store) {
  STEPWELL_ASSIGN_OR_RETURN(const io::FileInfo slot,
                            store->file_system()->Stat(SlotFilePath(store->path())));
  std::string name = "stepwell/";
  for (const uint8_t byte : store->id()) {
    constexpr const char* kDigits = "0123456789abcdef";
    name += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return StrCat(name, "/", slot.inode);
}

// ---- the writer's end ---------------------------------------------------------------------------

Mailbox::Mailbox(Store* store, io::LocalListener listener)
    : store_(store), listener_(std::move(listener)) {
  CloseInForkedChild(this, listener_.descriptor());
}

Result<std::unique_ptr<Mailbox>> Mailbox::Start(Store* store) {
  STEPWELL_ASSIGN_OR_RETURN(const std::string name, MailboxName(store));
  STEPWELL_ASSIGN_OR_RETURN(io::LocalListener listener, io::LocalListener::Open(name));
  std::unique_ptr<Mailbox> mailbox(new Mailbox(store, std::move(listener)));
  STEPWELL_ASSIGN_OR_RETURN(
      mailbox->thread_, io::StartThread("stepwell-mail", [box = mailbox.get()] { box->Run(); }));
  return mailbox;
}

Mailbox::~Mailbox() {
  Stop();
  if (thread_.joinable()) thread_.join();
  ForgetForkDescriptors(this);
}

void Mailbox::Stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  listener_.Stop();
  if (connection_ != nullptr) connection_->StopReceiving();
}

void Mailbox::Run() {
  for (;;) {
    // What fails ends the connection, which the other process sees.
    const Status served = io::Guarded("serve a request", [this]() -> Status {
      STEPWELL_ASSIGN_OR_RETURN(io::LocalSocket connection, listener_.Accept());
      const Registered registered(&connection);
      Serve(&connection);
      return OkStatus();
    });
    if (served.code() == StatusCode::kCancelled) return;
    if (!served.ok()) std::this_thread::sleep_for(kRetryInterval);  // for descriptors, for memory
  }
}

// The connection that Stop is to wake; false when it has come.
bool Mailbox::WaitFor(io::LocalSocket* connection) {
  const std::lock_guard lock(mutex_);
  connection_ = stopped_ ? nullptr : connection;
  return !stopped_;
}

Result<std::string> Mailbox::ReceiveRequest(io::LocalSocket* connection) {
  const Status closing = FailedPreconditionError("the store is being closed");
  if (!WaitFor(connection)) return closing;
  std::string text;
  const Status received = io::Guarded("receive a request", [&]() -> Status {
    STEPWELL_ASSIGN_OR_RETURN(text, connection->Receive());
    return OkStatus();
  });
  if (!WaitFor(nullptr)) return closing;
  STEPWELL_RETURN_IF_ERROR(received);
  return text;
}

void Mailbox::Serve(io::LocalSocket* connection) {
  const auto user = connection->PeerUser();
  if (!user.ok() || (*user != geteuid() && *user != 0)) return;
  if (!connection->SetTimeout(kWordTimeout).ok()) return;
  if (!connection->Send(Text({{"version", kVersion}})).ok()) return;
  const Result<std::string> text = ReceiveRequest(connection);
  Result<ReclaimReport> outcome = text.status();
  if (text.ok()) {
    WriterRequest request;
    const Status read = io::Guarded("read a request", [&] {
      request = DecodeRequest(*text);
      return OkStatus();
    });
    outcome = read.ok() ? Do(request, store_) : Result<ReclaimReport>(read);
  }
  connection->Send(Encode(outcome)).IgnoreError("the other process did not wait for its answer");
}

// ---- the other end ------------------------------------------------------------------------------

Result<std::unique_ptr<WriterClient>> WriterClient::Connect(StoreReader* store) {
  std::unique_ptr<WriterClient> client(new WriterClient(store));
  STEPWELL_RETURN_IF_ERROR(client->Greeted().status());
  return client;
}

// A connection whose other end is the store's writer and waits for a request.
Result<io::LocalSocket> WriterClient::Greeted() {
  const auto not_asked = [](const Status& why) {
    return UnavailableError(
        StrCat("the process that writes was not asked, so nothing was done: ", why.message()));
  };
  STEPWELL_ASSIGN_OR_RETURN(const std::string name, MailboxName(store_));
  auto connection = io::LocalSocket::Connect(name, kWordTimeout);
  if (connection.status().code() == StatusCode::kNotFound) {
    return not_asked(
        UnavailableError("it takes no requests, as one of many processes, or of another "
                         "machine or container, does not"));
  }
  if (!connection.ok()) return not_asked(connection.status());
  // Any process can take a name: only the user whose store it is is believed.
  STEPWELL_ASSIGN_OR_RETURN(const uint32_t user, connection->PeerUser());
  STEPWELL_ASSIGN_OR_RETURN(const io::FileInfo slot,
                            store_->file_system()->Stat(SlotFilePath(store_->path())));
  if (user != geteuid() && !(geteuid() == 0 && user == slot.owner)) {
    return not_asked(UnavailableError(StrCat("user ", user, " listens in its place")));
  }
  const Result<std::string> greeting = connection->Receive();
  if (!greeting.ok()) return not_asked(greeting.status());
  const Json json = Json::parse(*greeting, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("version") || json["version"] != kVersion) {
    return not_asked(UnimplementedError("it is of another version of Stepwell"));
  }
  return connection;
}

Result<ReclaimReport> WriterClient::Ask(const WriterRequest& request) {
  Result<io::LocalSocket> connection = Greeted();
  if (!connection.ok()) return connection.status().WithContext(store_->path());
  const Status sent = connection->Send(Encode(request));
  if (!sent.ok()) {
    return UnavailableError(StrCat(store_->path(), ": the request did not reach the process that ",
                                   "writes, so nothing was done: ", sent.message()));
  }
  const auto unknown = [this](std::string_view why) {
    return OutcomeUnknownError(StrCat(
        store_->path(), ": the process that writes was asked and has ",
        "not answered, so whether it was done is not known: ", why, "; look at the store's steps"));
  };
  if (const Status set = connection->SetTimeout(kAnswerTimeout); !set.ok()) {
    return unknown(set.message());
  }
  const Result<std::string> text = connection->Receive();
  if (!text.ok()) return unknown(text.status().message());
  Result<ReclaimReport> reply = InternalError("");
  const Status read = io::Guarded("read an answer", [&] {
    reply = DecodeReply(*text);
    return OkStatus();
  });
  return read.ok() ? reply : Result<ReclaimReport>(unknown(read.message()));
}

}  // namespace stepwell::db
