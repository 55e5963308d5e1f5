// SPDX-License-Identifier: Apache-2.0
// What other processes of this machine ask of a store's writer: deletes, pins, a pass of reclaim
// (DESIGN.md, "Requests").
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "db/store.h"
#include "io/local_socket.h"

namespace stepwell::db {

struct WriterRequest {
  enum class Kind { kDelete, kDeleteItems, kPin, kUnpin, kReclaim };
  Kind kind = Kind::kDelete;
  std::vector<uint64_t> steps;     // kDeleteItems: one; kReclaim: none
  std::vector<std::string> items;  // kDeleteItems
};

// Of the socket: of this very directory, as a copy of the store has its id, but not its inode.
Result<std::string> MailboxName(StoreReader* store);

// The writer's end: one thread, one request at a time.
class Mailbox {
 public:
  // `store` outlives the mailbox. The errors are those of sockets and threads.
  static Result<std::unique_ptr<Mailbox>> Start(Store* store);
  // Stop, and waits for what is under way.
  ~Mailbox();

  // No more requests. What is under way ends and is answered. Thread-safe.
  void Stop();

 private:
  Mailbox(Store* store, io::LocalListener listener);
  void Run();
  void Serve(io::LocalSocket* connection);
  bool WaitFor(io::LocalSocket* connection);
  Result<std::string> ReceiveRequest(io::LocalSocket* connection);

  Store* const store_;
  io::LocalListener listener_;
  std::mutex mutex_;
  bool stopped_ = false;                   // guarded by mutex_, as the next
  io::LocalSocket* connection_ = nullptr;  // whose request is waited for
  std::thread thread_;
};

// The other end.
class WriterClient {
 public:
  // kUnavailable: no writer that serves requests of this process.
  static Result<std::unique_ptr<WriterClient>> Connect(StoreReader* store);

  // What the writer's call says. kUnavailable: it was not asked, so nothing was done.
  // kOutcomeUnknown: it was asked, and its answer did not come.
  Result<ReclaimReport> Ask(const WriterRequest& request);

 private:
  explicit WriterClient(StoreReader* store) : store_(store) {}
  Result<io::LocalSocket> Greeted();

  StoreReader* const store_;
};

}  // namespace stepwell::db
