// SPDX-License-Identifier: Apache-2.0
// FORMAT.md says what the headers say: its table of constants, its dtype and codec numbers, and its
// worked hex example.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <span>
#include <sstream>

#include "format/frame.h"
#include "format/key.h"
#include "tests/format/support/examples.h"

namespace stepwell::format {
namespace {

std::string ReadDocument() {
  std::ifstream file(std::string(STEPWELL_FORMAT_DIR) + "/FORMAT.md");
  EXPECT_TRUE(file.good());
  return {std::istreambuf_iterator<char>(file), {}};
}

// Rows "| `name` | number |" anywhere in the document.
std::map<std::string, uint64_t> Rows(const std::string& document) {
  std::map<std::string, uint64_t> rows;
  std::istringstream in(document);
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("| `", 0) != 0) continue;
    const size_t end = line.find('`', 3);
    const size_t number = line.find("| ", end);
    if (end == std::string::npos || number == std::string::npos) continue;
    if (std::isdigit(static_cast<unsigned char>(line[number + 2])) == 0) continue;
    rows[line.substr(3, end - 3)] = std::stoull(line.substr(number + 2));
  }
  return rows;
}

TEST(FormatDocTest, NumbersEqualTheHeaders) {
  std::map<std::string, uint64_t> expected = {
      {"kFormatVersion", kFormatVersion},
      {"kFormatVersionMin", kFormatVersionMin},
      {"kSlotBytes", kSlotBytes},
      {"kFrameHeaderBytes", kFrameHeaderBytes},
      {"kFramePayloadBytesMax", kFramePayloadBytesMax},
      {"kCrcBytes", kCrcBytes},
      {"kPayloadLogicalMax", kPayloadLogicalMax},
      {"kInlineValueBytesMax", kInlineValueBytesMax},
      {"kChunkTargetBytes", kChunkTargetBytes},
      {"kChunkBytesMax", kChunkBytesMax},
      {"kRankMax", kRankMax},
      {"kPathComponentsMax", kPathComponentsMax},
      {"kPathBytesMax", kPathBytesMax},
      {"kSegmentHeader", static_cast<uint64_t>(FrameKind::kSegmentHeader)},
      {"kCatalog", static_cast<uint64_t>(FrameKind::kCatalog)},
      {"kEpoch", static_cast<uint64_t>(FrameKind::kEpoch)},
      {"kRecords", static_cast<uint64_t>(FrameKind::kRecords)},
      {"kCommit", static_cast<uint64_t>(FrameKind::kCommit)},
      {"kDelete", static_cast<uint64_t>(FrameKind::kDelete)},
      {"kMeta", static_cast<uint64_t>(FrameKind::kMeta)},
      {"kFooter", static_cast<uint64_t>(FrameKind::kFooter)},
      {"kTrailer", static_cast<uint64_t>(FrameKind::kTrailer)},
      {"kDecided", static_cast<uint64_t>(FrameKind::kDecided)},
      {"kPrepared", static_cast<uint64_t>(FrameKind::kPrepared)},
      {"kCatalogPage", static_cast<uint64_t>(FrameKind::kCatalogPage)},
      {"kLoss", static_cast<uint64_t>(FrameKind::kLoss)},
      {"kCopyHeaderBytes", kCopyHeaderBytes},
      {"kCopyBytesMax", kCopyBytesMax},
      {"kSlotCount", kSlotCount},
      {"kSlotTipBytesMax", kSlotTipBytesMax},
  };
  for (const CodecInfo& codec : Codecs()) {
    expected[codec.name] = static_cast<uint64_t>(codec.id);
  }
  for (const DTypeInfo& info : AllDTypes()) {
    expected[std::string(info.name)] = static_cast<uint64_t>(info.dtype);
  }
  EXPECT_EQ(Rows(ReadDocument()), expected);
}

std::string HexDump(ConstBytes bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (size_t at = 0; at < bytes.size(); at += 16) {
    for (int shift = 8; shift >= 0; shift -= 4) out += kDigits[(at >> shift) & 0xF];
    out += " ";
    for (size_t i = at; i < std::min(at + 16, bytes.size()); ++i) {
      const auto value = std::to_integer<unsigned>(bytes[i]);
      out += (i - at == 8) ? "  " : " ";
      out += kDigits[value >> 4];
      out += kDigits[value & 0xF];
    }
    out += "\n";
  }
  return out;
}

TEST(FormatDocTest, HexExamplesAreRealBytes) {
  const std::string document = ReadDocument();
  const std::string delete_payload = EncodeDelete(ExampleDelete());
  const std::string frame = EncodeFrame(ExampleFrameHeader(), delete_payload, 4096, nullptr);
  const std::string frame_dump =
      HexDump(AsBytes(frame).first(kFrameHeaderBytes + delete_payload.size()));
  EXPECT_NE(document.find(frame_dump), std::string::npos) << frame_dump;
  const std::string key = EncodeLeafKey("params", {{PathComponent::Type::kKey, 0, "w"},
                                                   {PathComponent::Type::kIndex, 3, ""}})
                              .value();
  EXPECT_NE(document.find(HexDump(AsBytes(key))), std::string::npos) << HexDump(AsBytes(key));
  std::vector<uint16_t> elements(64, 0x3F80);
  const std::vector<uint16_t> base = elements;
  elements[10] = 0x3F81;
  elements[40] = 0x3F7F;
  std::vector<std::byte> delta(PayloadBytesMax(CodecId::kDelta, sizeof(uint16_t) * base.size()));
  const Result<Payload> payload = EncodeDelta({2, true}, std::as_bytes(std::span(base)),
                                              std::as_bytes(std::span(elements)), delta);
  delta.resize(payload.value().size_bytes);
  EXPECT_NE(document.find(HexDump(delta)), std::string::npos) << HexDump(delta);
}

}  // namespace
}  // namespace stepwell::format
