// SPDX-License-Identifier: Apache-2.0
// Requests to a store's writer and its answers, as messages (schema/request.capnp).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/bytes.h"
#include "io/result.h"

namespace stepwell::format {

struct RequestMessage {
  std::string key;
  uint8_t kind = 0;
  std::vector<uint64_t> steps;
  std::vector<std::string> items;
};

struct ReplyMessage {
  std::string key;
  uint8_t code = 0;
  int32_t os_error = 0;
  std::string message;
  std::vector<uint64_t> numbers;
};

std::string EncodeRequestMessage(const RequestMessage& request);
// kDataLoss: the bytes are no such message. The result takes at most a few times their memory.
Result<RequestMessage> DecodeRequestMessage(ConstBytes bytes);
std::string EncodeReplyMessage(const ReplyMessage& reply);
Result<ReplyMessage> DecodeReplyMessage(ConstBytes bytes);

}  // namespace stepwell::format
