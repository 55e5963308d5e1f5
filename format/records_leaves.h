// SPDX-License-Identifier: Apache-2.0
// The leaves of Records and Commit messages. Where that is shorter they are packed: a message of
// their own in a zstd frame, since neighbours have most of their fields and paths in common.
// Layout: FORMAT.md, "Packed leaves".
#pragma once

#include <span>
#include <string>
#include <vector>

#include "format/records.h"
#include "format/records_internal.h"
#include "format/schema/frame.capnp.h"

namespace stepwell::format::internal {

using LeafList = capnp::List<schema::Leaf>::Reader;

// What a message gets for its leaves, packed once.
class LeavesToWrite {
 public:
  // `leaves` must outlive this.
  explicit LeavesToWrite(std::span<const LeafRecord> leaves);

  // Upper bound of what they take outside the message's own struct.
  size_t words() const;
  // Sets `leaves` or `packed` of a Records or a Commit message.
  template <typename Builder>
  void Write(Builder out) const {
    if (packed_.empty()) {
      WriteList(out.initLeaves(static_cast<uint32_t>(leaves_.size())));
      return;
    }
    auto to = out.initPacked();
    to.setFrame(ToData(packed_));
    to.setPlainBytes(plain_bytes_);
  }

 private:
  void WriteList(capnp::List<schema::Leaf>::Builder out) const;

  std::span<const LeafRecord> leaves_;
  size_t list_words_ = 0;
  size_t plain_bytes_ = 0;
  std::string packed_;  // empty: as a list
};

void ReadLeaves(LeafList in, std::vector<LeafRecord>* records);

// The Records message that was packed, of one byte at least. Throws BadMessage.
std::string Unpack(schema::PackedLeaves::Reader in);

// The same of a Records or a Commit message; empty where its leaves are a list.
template <typename Reader>
std::string UnpackLeaves(Reader in) {
  if (!in.hasPacked()) return {};
  Require(in.getLeaves().size() == 0, "leaves beside packed ones");
  return Unpack(in.getPacked());
}

// Calls read(leaves) with those of a Records or a Commit message. Throws as ReadMessage does.
template <typename Reader, typename Read>
void WithLeaves(Reader in, const Read& read) {
  const std::string plain = UnpackLeaves(in);
  if (plain.empty()) return read(in.getLeaves());
  ReadMessage<schema::Records>(AsBytes(plain), [&read](schema::Records::Reader records) {
    Require(!records.hasPacked(), "packed twice");
    read(records.getLeaves());
  });
}

}  // namespace stepwell::format::internal
