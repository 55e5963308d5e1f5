// SPDX-License-Identifier: Apache-2.0
#include "format/message.h"

namespace stepwell::format::internal {

Status MessageError(std::string_view kind, std::string_view what) {
  return DataLossError(StrCat("bad ", kind, ": ", what));
}

MessageWords::MessageWords(ConstBytes bytes) : bytes_(bytes) {
  if (bytes.size() < 2 * kWordBytes || bytes.size() % kWordBytes != 0) return;  // words() throws
  const std::byte* data = bytes.data();
  if (reinterpret_cast<uintptr_t>(data) % kWordBytes != 0) {
    if (bytes.size() <= sizeof(scratch_)) {
      std::memcpy(scratch_, data, bytes.size());
      data = scratch_;
    } else {
      heap_ = std::make_unique<capnp::word[]>(bytes.size() / kWordBytes);
      std::memcpy(static_cast<void*>(heap_.get()), data, bytes.size());
      data = reinterpret_cast<const std::byte*>(heap_.get());
    }
  }
  begin_ = reinterpret_cast<const capnp::word*>(data) + 1;
}

kj::ArrayPtr<const capnp::word> MessageWords::words() const {
  Require(begin_ != nullptr, "not a message");
  const size_t words = bytes_.size() / kWordBytes - 1;
  Require(LoadLittle<uint32_t>(bytes_.data()) == 0, "more than one segment");
  Require(LoadLittle<uint32_t>(bytes_.data() + 4) == words, "length differs");
  return {begin_, words};
}

}  // namespace stepwell::format::internal
