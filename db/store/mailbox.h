// SPDX-License-Identifier: Apache-2.0
// Serves requests of other processes of this machine to a store's writer: deletes, pins, taints, a
// pass of reclaim (DESIGN.md, "Requests").
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "db/log/lock.h"
#include "db/store.h"
#include "io/local_socket.h"
#include "io/mutex.h"

namespace stepwell::db {

struct WriterRequest {
  enum class Kind : uint8_t {
    kDelete = 1,
    kDeleteItems = 2,
    kPin = 3,
    kUnpin = 4,
    kReclaim = 5,
    kTaint = 6,
  };
  Kind kind = Kind::kDelete;
  std::vector<uint64_t> steps;     // kDeleteItems: one; kReclaim: none
  std::vector<std::string> items;  // kDeleteItems; kTaint: one, the reason, "" for none
};

// The messages of format/requests.h. The key proves who sends a message.
std::string EncodeRequest(const std::string& key, const WriterRequest& request);
Result<WriterRequest> DecodeRequest(const std::string& key, std::string_view bytes);
std::string EncodeReply(const std::string& key, const Result<ReclaimReport>& outcome);
// kDataLoss: it is no reply.
Result<Result<ReclaimReport>> DecodeReply(const std::string& key, std::string_view bytes);

// The writer's end: one thread, one request at a time.
class Mailbox {
 public:
  // `store` outlives the mailbox; `lock_file` is the LOCK that it holds. The errors are those of
  // sockets, threads, and writes to LOCK.
  static Result<std::unique_ptr<Mailbox>> Start(Store* store, const LogSink& log,
                                                io::File* lock_file);
  // Stop, and waits for what is under way.
  ~Mailbox();

  // No more requests. What is under way ends and is answered. Thread-safe.
  void Stop();

 private:
  Mailbox(Store* store, LogSink log, LockContact contact, io::LocalListener listener);
  void Run();
  bool WaitFor(io::LocalSocket* connection) STEPWELL_EXCLUDES(mutex_);
  void Serve(io::LocalSocket* connection);
  Result<std::string> ReceiveRequest(io::LocalSocket* connection);

  Store* const store_;
  const LogSink log_;
  const LockContact contact_;
  io::LocalListener listener_;
  io::Mutex mutex_;
  bool stopped_ STEPWELL_GUARDED_BY(mutex_) = false;
  // Whose request is waited for.
  io::LocalSocket* connection_ STEPWELL_GUARDED_BY(mutex_) = nullptr;
  std::thread thread_;
};

// The other end.
class WriterClient {
 public:
  // kUnavailable: no writer that serves requests of this process.
  static Result<std::unique_ptr<WriterClient>> Connect(StoreReader* store);

  // Sends the request and returns the result of the writer's call. kUnavailable: it was not sent,
  // so nothing was done. kInvalidArgument: it is too large for one request. kOutcomeUnknown: it was
  // sent, and no answer came.
  Result<ReclaimReport> Send(const WriterRequest& request);

 private:
  explicit WriterClient(StoreReader* store) : store_(store) {}
  Result<io::LocalSocket> ConnectAndGreet(LockContact* contact);

  StoreReader* const store_;
};

}  // namespace stepwell::db
