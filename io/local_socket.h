// SPDX-License-Identifier: Apache-2.0
// Messages between two processes of one machine: Unix sockets with abstract names, which stand in
// no directory and end with their process (unix(7)). A name is seen by every process of the network
// namespace, so both ends look at each other's user.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "io/beneath.h"
#include "io/result.h"

namespace stepwell::io {

// One connection. Used by one thread, but for StopReceiving.
class LocalSocket {
 public:
  // `timeout` is for the connection, and for each message from then on. kNotFound: no process
  // listens.
  static Result<LocalSocket> Connect(const std::string& name, std::chrono::milliseconds timeout);
  explicit LocalSocket(Descriptor descriptor) : descriptor_(std::move(descriptor)) {}

  Status SetTimeout(std::chrono::milliseconds timeout);
  // The process at the other end, as it was when it listened or connected.
  struct Peer {
    uint32_t user = 0;  // its effective one
    int process = 0;    // 0: one that this process cannot see
  };
  Result<Peer> OtherEnd() const;

  // Messages of at most kMessageBytesMax bytes. An error of Send: not all of it was sent, so the
  // other end gets none. kUnavailable: the other end has closed; kDeadlineExceeded: the timeout.
  static constexpr size_t kMessageBytesMax = size_t{1} << 20;
  Status Send(std::string_view message);
  Result<std::string> Receive();
  // From any thread: Receive fails with kUnavailable, now and later; Send still works.
  void StopReceiving();

  int descriptor() const { return descriptor_.value(); }

 private:
  Status Move(char* bytes, size_t count, bool send);

  Descriptor descriptor_;
  std::chrono::milliseconds timeout_{};  // 0: none
};

class LocalListener {
 public:
  // kAlreadyExists: a process has the name.
  static Result<LocalListener> Open(const std::string& name);

  // Waits. kCancelled after Stop.
  Result<LocalSocket> Accept();
  // From any thread: no more connections, from now on.
  void Stop();

  int descriptor() const { return descriptor_.value(); }

 private:
  explicit LocalListener(Descriptor descriptor) : descriptor_(std::move(descriptor)) {}

  Descriptor descriptor_;
};

}  // namespace stepwell::io
