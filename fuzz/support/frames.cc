// SPDX-License-Identifier: Apache-2.0
#include "fuzz/support/frames.h"

#include <map>
#include <utility>

#include "db/layout.h"
#include "format/records.h"

namespace stepwell::fuzz {
namespace {

using format::FrameKind;
using format::FramePlace;

constexpr uint64_t kBlockBytes = 4096;
constexpr uint64_t kFileBytesMax = uint64_t{8}
                                   << 20;  // more than any store here, less than BALLAST
constexpr int kRoundsMax = 16;  // places form no cycles: each round settles one more level

using Places = std::map<std::pair<uint64_t, uint64_t>, FramePlace>;  // by (segment, offset)

bool Update(const Places& places, FramePlace* place) {
  const auto found = places.find({place->segment, place->offset_bytes});
  if (found == places.end() || found->second == *place || place->length_bytes == 0) return false;
  *place = found->second;
  return true;
}

// Returns true if `payload` had to change.
bool UpdatePayload(const Places& places, FrameKind kind, std::string* payload) {
  const ConstBytes bytes = AsBytes(*payload);
  bool changed = false;
  if (kind == FrameKind::kCatalog) {
    auto catalog = format::DecodeCatalog(bytes);
    if (!catalog.ok()) return false;
    changed = Update(places, &catalog->last_place);
    changed = Update(places, &catalog->previous) || changed;
    for (auto& page : catalog->pages) changed = Update(places, &page) || changed;
    for (auto& live : catalog->live) changed = Update(places, &live.place) || changed;
    if (changed) *payload = format::EncodeCatalog(*catalog);
  } else if (kind == FrameKind::kEpoch) {
    auto epoch = format::DecodeEpoch(bytes);
    if (!epoch.ok()) return false;
    changed = Update(places, &epoch->last_place);
    if (changed) *payload = format::EncodeEpoch(*epoch);
  } else if (kind == FrameKind::kCommit) {
    auto commit = format::DecodeCommit(bytes);
    if (!commit.ok()) return false;
    for (auto& block : commit->blocks) changed = Update(places, &block.place) || changed;
    if (changed) *payload = format::EncodeCommit(*commit);
  } else if (kind == FrameKind::kFooter) {
    auto footer = format::DecodeFooter(bytes);
    if (!footer.ok()) return false;
    for (auto& entry : footer->frames) changed = Update(places, &entry.place) || changed;
    if (changed) *payload = format::EncodeFooter(*footer);
  } else if (kind == FrameKind::kTrailer) {
    auto trailer = format::DecodeTrailer(bytes);
    if (!trailer.ok()) return false;
    changed = Update(places, &trailer->footer);
    if (changed) *payload = format::EncodeTrailer(*trailer);
  }
  return changed;
}

FramePlace Write(io::FileSystem* files, const StoredFrame& frame) {
  FramePlace place;
  place.segment = frame.segment;
  place.offset_bytes = frame.offset_bytes;
  place.length_bytes = static_cast<uint32_t>(format::kFrameHeaderBytes + frame.payload.size());
  const std::string bytes = format::EncodeFrame(frame.header, frame.payload, 1, &place.crc);
  WriteFile(files, frame.file, frame.offset_bytes, bytes);
  return place;
}

void UpdateSlots(io::FileSystem* files, const std::string& store_path, const Places& places) {
  const std::string path = db::SlotFilePath(store_path);
  const std::string bytes = ReadFile(files, path);
  for (uint64_t at = 0; at + format::kSlotBytes <= bytes.size(); at += format::kSlotBytes) {
    auto slot = format::DecodeSlot(AsBytes(bytes).subspan(at, format::kSlotBytes));
    if (!slot.ok()) continue;
    const bool durable = Update(places, &slot->durable_place);
    if (!Update(places, &slot->catalog_place) && !durable) continue;
    const auto encoded = format::EncodeSlot(*slot);
    WriteFile(files, path, at, AsText(encoded));
  }
}

}  // namespace

std::string ReadFile(io::FileSystem* files, const std::string& path) {
  const auto file = files->Open(path, {});
  if (!file.ok()) return {};
  const auto info = (*file)->Info();
  if (!info.ok() || info->size_bytes > kFileBytesMax) return {};
  std::string bytes(info->size_bytes, '\0');
  const auto count = (*file)->ReadAt(0, {reinterpret_cast<std::byte*>(bytes.data()), bytes.size()});
  bytes.resize(count.ok() ? *count : 0);
  return bytes;
}

void WriteFile(io::FileSystem* files, const std::string& path, uint64_t offset_bytes,
               std::string_view bytes) {
  const auto file = files->Open(path, {.write = true, .create = true});
  if (!file.ok()) return;
  (*file)->WriteAt(offset_bytes, AsBytes(bytes)).IgnoreError("an edit that cannot be made");
}

std::vector<StoredFrame> FindFrames(io::FileSystem* files, const std::string& store_path) {
  std::vector<StoredFrame> frames;
  const auto names = files->List(db::SegmentsPath(store_path));
  if (!names.ok()) return frames;
  for (const std::string& name : *names) {
    const auto segment = db::ParseSegmentName(name);
    if (!segment) continue;
    const std::string path = db::SegmentPath(store_path, *segment);
    const std::string bytes = ReadFile(files, path);
    for (uint64_t at = 0; at + format::kFrameHeaderBytes <= bytes.size(); at += kBlockBytes) {
      const ConstBytes here = AsBytes(bytes).subspan(at);
      const auto header = format::DecodeFrameHeader(here.first(format::kFrameHeaderBytes));
      if (!header.ok()) continue;
      const ConstBytes behind = here.subspan(format::kFrameHeaderBytes);
      if (behind.size() < header->payload_bytes) continue;
      const ConstBytes payload = behind.first(header->payload_bytes);
      if (!format::CheckFramePayload(*header, payload).ok()) continue;
      frames.push_back({path, *segment, at, *header, std::string(AsText(payload))});
    }
  }
  return frames;
}

void WriteForged(io::FileSystem* files, const std::string& store_path,
                 std::vector<StoredFrame> frames, size_t changed) {
  Places places;
  const StoredFrame& first = frames[changed];
  places[{first.segment, first.offset_bytes}] = Write(files, first);
  for (int round = 0; round < kRoundsMax; ++round) {
    bool any = false;
    for (StoredFrame& frame : frames) {
      bool stale = Update(places, &frame.header.previous);
      // A payload that grows might run into the next frame; encodings of the same list do not.
      stale = UpdatePayload(places, frame.header.kind, &frame.payload) || stale;
      if (!stale) continue;
      places[{frame.segment, frame.offset_bytes}] = Write(files, frame);
      any = true;
    }
    if (!any) break;
  }
  UpdateSlots(files, store_path, places);
}

}  // namespace stepwell::fuzz
