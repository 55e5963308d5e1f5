// SPDX-License-Identifier: Apache-2.0
// What a mailbox and its other end send each other.
#include <array>
#include <limits>

#include "db/store/mailbox.h"
#include "format/endian.h"

namespace stepwell::db {
namespace {

using Kind = WriterRequest::Kind;

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

void Put(uint64_t number, std::string* out) {
  std::array<std::byte, sizeof(number)> bytes{};
  format::StoreLittle(bytes.data(), number);
  out->append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

void Put(std::string_view text, std::string* out) {
  Put(uint64_t{text.size()}, out);
  out->append(text);
}

// Takes one thing after the other; once something is missing, nothing more.
class Taker {
 public:
  explicit Taker(std::string_view bytes) : left_(bytes) {}

  uint64_t Number() {
    const std::string_view bytes = Bytes(sizeof(uint64_t));
    if (!ok_) return 0;
    return format::LoadLittle<uint64_t>(reinterpret_cast<const std::byte*>(bytes.data()));
  }
  std::string Text() { return std::string(Bytes(Number())); }
  // The length of a list whose elements take `least` bytes each, or more.
  uint64_t Count(uint64_t least) {
    const uint64_t count = Number();
    if (count > left_.size() / least) ok_ = false;
    return ok_ ? count : 0;
  }
  bool ok() const { return ok_; }
  bool done() const { return ok_ && left_.empty(); }

 private:
  std::string_view Bytes(uint64_t count) {
    if (!ok_ || count > left_.size()) {
      ok_ = false;
      return {};
    }
    const std::string_view bytes = left_.substr(0, count);
    left_.remove_prefix(count);
    return bytes;
  }

  std::string_view left_;
  bool ok_ = true;
};

}  // namespace

std::string EncodeRequest(const std::string& key, const WriterRequest& request) {
  std::string out;
  Put(key, &out);
  Put(static_cast<uint64_t>(request.kind), &out);
  Put(uint64_t{request.steps.size()}, &out);
  for (const uint64_t step : request.steps) Put(step, &out);
  Put(uint64_t{request.items.size()}, &out);
  for (const std::string& item : request.items) Put(item, &out);
  return out;
}

Result<WriterRequest> DecodeRequest(const std::string& key, std::string_view bytes) {
  Taker taker(bytes);
  if (taker.Text() != key) return InvalidArgumentError("a request without the store's key");
  WriterRequest request;
  const uint64_t kind = taker.Number();
  request.steps.resize(taker.Count(sizeof(uint64_t)));
  for (uint64_t& step : request.steps) step = taker.Number();
  const uint64_t items = taker.Count(sizeof(uint64_t));
  for (uint64_t i = 0; i < items && taker.ok(); ++i) request.items.push_back(taker.Text());
  const bool known =
      kind >= static_cast<uint64_t>(Kind::kDelete) && kind <= static_cast<uint64_t>(Kind::kReclaim);
  if (!taker.done() || !known)
    return InvalidArgumentError("a request that this version cannot read");
  request.kind = static_cast<Kind>(kind);
  return request;
}

std::string EncodeReply(const std::string& key, const Result<ReclaimReport>& outcome) {
  std::string out;
  Put(key, &out);
  Put(static_cast<uint64_t>(outcome.status().code()), &out);
  Put(static_cast<uint64_t>(outcome.status().os_error()), &out);
  for (const auto field : kReclaimFields) Put(outcome.ok() ? (*outcome).*field : 0, &out);
  Put(std::string_view(outcome.status().message()).substr(0, kMessageMax), &out);
  return out;
}

Result<Result<ReclaimReport>> DecodeReply(const std::string& key, std::string_view bytes) {
  Taker taker(bytes);
  const bool is_writers = taker.Text() == key;
  const uint64_t code = taker.Number();
  const uint64_t os_error = taker.Number();
  ReclaimReport report;
  for (const auto field : kReclaimFields) report.*field = taker.Number();
  std::string message = taker.Text();
  if (!is_writers || !taker.done() || code > std::numeric_limits<uint8_t>::max() ||
      os_error > std::numeric_limits<int>::max()) {
    return DataLossError("the answer is not one of this store's writer");
  }
  if (code == 0) return Result<ReclaimReport>(report);
  return Result<ReclaimReport>(
      Status(static_cast<StatusCode>(code), std::move(message), static_cast<int>(os_error)));
}

}  // namespace stepwell::db
