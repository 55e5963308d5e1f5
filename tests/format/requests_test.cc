// SPDX-License-Identifier: Apache-2.0
#include "format/requests.h"

#include <gtest/gtest.h>

namespace stepwell::format {
namespace {

RequestMessage Example() { return {"a key", 2, {1, ~uint64_t{0}}, {"state", "", "data set"}}; }

bool operator==(const RequestMessage& a, const RequestMessage& b) {
  return a.key == b.key && a.kind == b.kind && a.steps == b.steps && a.items == b.items;
}

TEST(RequestsTest, ComeBackAsTheyWere) {
  for (const RequestMessage& request : {Example(), RequestMessage{}, {"", 5, {}, {}}}) {
    const auto decoded = DecodeRequestMessage(AsBytes(EncodeRequestMessage(request)));
    ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
    EXPECT_TRUE(*decoded == request);
  }
  const ReplyMessage reply = {"a key", 7, 28, "no space", {1, 2, 3}};
  const auto decoded = DecodeReplyMessage(AsBytes(EncodeReplyMessage(reply)));
  ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
  EXPECT_EQ(decoded->key, reply.key);
  EXPECT_EQ(decoded->code, reply.code);
  EXPECT_EQ(decoded->os_error, reply.os_error);
  EXPECT_EQ(decoded->message, reply.message);
  EXPECT_EQ(decoded->numbers, reply.numbers);
}

// A cut request is an error. A flipped one is an error, or another request of no more memory.
TEST(RequestsTest, DamageIsAnErrorOrAnotherRequest) {
  const std::string right = EncodeRequestMessage(Example());
  for (size_t size = 0; size < right.size(); ++size) {
    EXPECT_FALSE(DecodeRequestMessage(AsBytes(right.substr(0, size))).ok()) << size;
  }
  EXPECT_FALSE(DecodeRequestMessage(AsBytes(right + "x")).ok());
  EXPECT_FALSE(DecodeRequestMessage(AsBytes(right + std::string(8, '\0'))).ok());
  int others = 0;
  for (size_t bit = 0; bit < 8 * right.size(); ++bit) {
    std::string flipped = right;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    const auto decoded = DecodeRequestMessage(AsBytes(flipped));
    if (!decoded.ok()) continue;
    size_t bytes = decoded->key.size() + 8 * decoded->steps.size();
    for (const std::string& item : decoded->items) bytes += item.size() + 1;
    EXPECT_LE(bytes, 3 * right.size()) << bit;
    others += *decoded == Example() ? 0 : 1;
  }
  EXPECT_GT(others, 0);  // of keys and numbers, which have no checksum here
}

}  // namespace
}  // namespace stepwell::format
