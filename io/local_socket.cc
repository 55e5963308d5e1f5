// SPDX-License-Identifier: Apache-2.0
#include "io/local_socket.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

namespace stepwell::io {
namespace {

constexpr int kBacklog = 16;

struct Address {
  sockaddr_un value{};
  socklen_t length = 0;
};

// An abstract name begins with a NUL and has no end but its length.
Result<Address> AddressOf(const std::string& name) {
  Address address;
  address.value.sun_family = AF_UNIX;
  if (name.size() + 1 > sizeof(address.value.sun_path)) {
    return InvalidArgumentError("a socket's name is too long: " + name);
  }
  std::memcpy(address.value.sun_path + 1, name.data(), name.size());
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

Result<Descriptor> NewSocket() {
  Descriptor descriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (descriptor.value() < 0) return ErrnoStatus(errno, "a local socket");
  return descriptor;
}

Status NoAnswer() { return DeadlineExceededError("the other process does not answer"); }
Status Closed() { return UnavailableError("the other process has closed the connection"); }

}  // namespace

Result<LocalSocket> LocalSocket::Connect(const std::string& name,
                                         std::chrono::milliseconds timeout) {
  STEPWELL_ASSIGN_OR_RETURN(const Address address, AddressOf(name));
  STEPWELL_ASSIGN_OR_RETURN(Descriptor descriptor, NewSocket());
  LocalSocket made(std::move(descriptor));
  STEPWELL_RETURN_IF_ERROR(made.SetTimeout(timeout));
  const auto* to = reinterpret_cast<const sockaddr*>(&address.value);
  if (Uninterrupted([&] { return connect(made.descriptor(), to, address.length); }) < 0) {
    if (errno == ECONNREFUSED) return NotFoundError("no process listens");
    if (errno == EAGAIN) return NoAnswer();
    return ErrnoStatus(errno, "connect to a local socket");
  }
  return made;
}

Status LocalSocket::SetTimeout(std::chrono::milliseconds timeout) {
  timeout_ = timeout;
  timeval value{};
  value.tv_sec = timeout.count() / 1000;
  value.tv_usec = timeout.count() % 1000 * 1000;
  for (const int option : {SO_RCVTIMEO, SO_SNDTIMEO}) {
    if (setsockopt(descriptor(), SOL_SOCKET, option, &value, sizeof(value)) != 0) {
      return ErrnoStatus(errno, "set a local socket's timeout");
    }
  }
  return OkStatus();
}

Result<LocalSocket::Peer> LocalSocket::OtherEnd() const {
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (getsockopt(descriptor(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
    return ErrnoStatus(errno, "look at a local socket's other end");
  }
  return Peer{peer.uid, peer.pid};
}

// All `count` bytes, in or out.
Status LocalSocket::Move(char* bytes, size_t count, bool send) {
  const auto deadline = std::chrono::steady_clock::now() + timeout_;
  while (count > 0) {
    if (timeout_.count() > 0 && std::chrono::steady_clock::now() > deadline) return NoAnswer();
    const ssize_t moved = Uninterrupted([&] {
      return send ? ::send(descriptor(), bytes, count, MSG_NOSIGNAL)
                  : recv(descriptor(), bytes, count, 0);
    });
    if (moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return NoAnswer();
    }
    if (moved < 0 && errno != EPIPE && errno != ECONNRESET) {
      return ErrnoStatus(errno, send ? "send to a local socket" : "receive from a local socket");
    }
    if (moved <= 0) return Closed();
    bytes += moved;
    count -= static_cast<size_t>(moved);
  }
  return OkStatus();
}

// Its length in 4 bytes of this machine's order, and the bytes.
Status LocalSocket::Send(std::string_view message) {
  if (message.size() > kMessageBytesMax) return InvalidArgumentError("a message is too long");
  const auto length = static_cast<uint32_t>(message.size());
  std::string framed(sizeof(length), '\0');
  std::memcpy(framed.data(), &length, sizeof(length));
  framed += message;
  return Move(framed.data(), framed.size(), /*send=*/true);
}

Result<std::string> LocalSocket::Receive() {
  std::array<char, sizeof(uint32_t)> prefix{};
  STEPWELL_RETURN_IF_ERROR(Move(prefix.data(), prefix.size(), /*send=*/false));
  uint32_t length = 0;
  std::memcpy(&length, prefix.data(), sizeof(length));
  if (length > kMessageBytesMax) return InvalidArgumentError("a message is too long");
  std::string message(length, '\0');
  STEPWELL_RETURN_IF_ERROR(Move(message.data(), message.size(), /*send=*/false));
  return message;
}

void LocalSocket::StopReceiving() { shutdown(descriptor(), SHUT_RD); }

Result<LocalListener> LocalListener::Open(const std::string& name) {
  STEPWELL_ASSIGN_OR_RETURN(const Address address, AddressOf(name));
  STEPWELL_ASSIGN_OR_RETURN(Descriptor descriptor, NewSocket());
  const auto* at = reinterpret_cast<const sockaddr*>(&address.value);
  if (bind(descriptor.value(), at, address.length) != 0) {
    if (errno == EADDRINUSE) return AlreadyExistsError("another process has the socket's name");
    return ErrnoStatus(errno, "name a local socket");
  }
  if (listen(descriptor.value(), kBacklog) != 0) {
    return ErrnoStatus(errno, "listen at a local socket");
  }
  return LocalListener(std::move(descriptor));
}

Result<LocalSocket> LocalListener::Accept() {
  for (;;) {
    const int accepted = accept4(descriptor(), nullptr, nullptr, SOCK_CLOEXEC);
    if (accepted >= 0) return LocalSocket(Descriptor(accepted));
    if (errno == EINVAL) return CancelledError("no more connections are taken");
    if (errno != EINTR && errno != ECONNABORTED) {
      return ErrnoStatus(errno, "take a connection of a local socket");
    }
  }
}

void LocalListener::Stop() { shutdown(descriptor(), SHUT_RDWR); }

}  // namespace stepwell::io
