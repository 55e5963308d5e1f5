// SPDX-License-Identifier: Apache-2.0
// Pages of a catalog: a Catalog message of entries in one LZ4 frame. The entries of neighbouring
// steps differ in a few bytes, so a page takes a fifth of its message or less.
#include <span>

#include "format/codec_internal.h"
#include "format/frame.h"
#include "format/records.h"
#include "format/records_internal.h"
#include "format/schema/frame.capnp.h"

namespace stepwell::format {

Result<std::string> EncodeCatalogPage(const Catalog& entries) {
  const std::string message = EncodeCatalog(entries);
  std::string packed(internal::Lz4FrameBytesMax(message.size()), '\0');
  STEPWELL_ASSIGN_OR_RETURN(
      const size_t size,
      internal::Lz4FrameEncode(AsBytes(message), std::as_writable_bytes(std::span(packed))));
  packed.resize(size);
  const size_t words =
      1 + internal::StructWords<schema::CatalogPage>() + internal::DataWords(packed.size());
  return internal::EncodeMessage<schema::CatalogPage>(words, [&](schema::CatalogPage::Builder out) {
    out.setPacked(internal::ToData(packed));
    out.setPlainBytes(message.size());
  });
}

Result<Catalog> DecodeCatalogPage(ConstBytes bytes) {
  // LZ4 expands 255 times at most: what a page makes of memory stays in proportion to its bytes.
  constexpr uint64_t kExpansionMax = 256;
  STEPWELL_ASSIGN_OR_RETURN(
      const std::string message,
      (internal::DecodeMessage<schema::CatalogPage, std::string>(
          "catalog page", bytes, [](schema::CatalogPage::Reader in, std::string* plain) {
            const capnp::Data::Reader packed = in.getPacked();
            const uint64_t size = in.getPlainBytes();
            internal::Require(
                size <= kFramePayloadBytesMax && size <= kExpansionMax * packed.size(),
                "an impossible size");
            plain->resize(size);
            const Status status = internal::Lz4FrameDecode(
                {reinterpret_cast<const std::byte*>(packed.begin()), packed.size()},
                std::as_writable_bytes(std::span(*plain)));
            if (!status.ok()) throw internal::BadMessage{status.message()};
          })));
  STEPWELL_ASSIGN_OR_RETURN(Catalog entries, DecodeCatalog(AsBytes(message)));
  if (entries.previous.length_bytes > 0 || !entries.pages.empty()) {
    return internal::MessageError("catalog page", "a page of more than entries");
  }
  return entries;
}

}  // namespace stepwell::format
