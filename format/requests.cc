// SPDX-License-Identifier: Apache-2.0
#include "format/requests.h"

#include "format/records_internal.h"
#include "format/schema/request.capnp.h"

namespace stepwell::format {

using internal::DecodeMessage;
using internal::EncodeMessage;
using internal::FromText;
using internal::ReadNumbers;
using internal::StructWords;
using internal::TextWords;
using internal::ToText;

std::string EncodeRequestMessage(const RequestMessage& request) {
  size_t words = 1 + StructWords<schema::Request>() + TextWords(request.key.size()) +
                 request.steps.size() + request.items.size();
  for (const std::string& item : request.items) words += TextWords(item.size());
  return EncodeMessage<schema::Request>(words, [&](schema::Request::Builder out) {
    out.setKey(ToText(request.key));
    out.setKind(request.kind);
    auto steps = out.initSteps(static_cast<uint32_t>(request.steps.size()));
    for (uint32_t i = 0; i < steps.size(); ++i) steps.set(i, request.steps[i]);
    auto items = out.initItems(static_cast<uint32_t>(request.items.size()));
    for (uint32_t i = 0; i < items.size(); ++i) items.set(i, ToText(request.items[i]));
  });
}

Result<RequestMessage> DecodeRequestMessage(ConstBytes bytes) {
  return DecodeMessage<schema::Request, RequestMessage>(
      "request", bytes, [](schema::Request::Reader in, RequestMessage* request) {
        request->key = FromText(in.getKey());
        request->kind = in.getKind();
        ReadNumbers(in.getSteps(), &request->steps);
        for (const capnp::Text::Reader item : in.getItems()) {
          request->items.push_back(FromText(item));
        }
      });
}

std::string EncodeReplyMessage(const ReplyMessage& reply) {
  const size_t words = 1 + StructWords<schema::Reply>() + TextWords(reply.key.size()) +
                       TextWords(reply.message.size()) + reply.numbers.size();
  return EncodeMessage<schema::Reply>(words, [&](schema::Reply::Builder out) {
    out.setKey(ToText(reply.key));
    out.setCode(reply.code);
    out.setOsError(reply.os_error);
    out.setMessage(ToText(reply.message));
    auto numbers = out.initNumbers(static_cast<uint32_t>(reply.numbers.size()));
    for (uint32_t i = 0; i < numbers.size(); ++i) numbers.set(i, reply.numbers[i]);
  });
}

Result<ReplyMessage> DecodeReplyMessage(ConstBytes bytes) {
  return DecodeMessage<schema::Reply, ReplyMessage>(
      "answer", bytes, [](schema::Reply::Reader in, ReplyMessage* reply) {
        reply->key = FromText(in.getKey());
        reply->code = in.getCode();
        reply->os_error = in.getOsError();
        reply->message = FromText(in.getMessage());
        ReadNumbers(in.getNumbers(), &reply->numbers);
      });
}

}  // namespace stepwell::format
