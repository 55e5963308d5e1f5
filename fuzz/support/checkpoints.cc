// SPDX-License-Identifier: Apache-2.0
#include "fuzz/support/checkpoints.h"

#include "db/export/export.h"
#include "db/export/orbax/digests.h"
#include "format/codec.h"
#include "format/grid.h"
#include "format/orbax/ocdbt_read.h"
#include "fuzz/support/check.h"
#include "fuzz/support/frames.h"

namespace stepwell::fuzz {
namespace {

constexpr uint64_t kSeed = 5;  // has large arrays, and a second item
constexpr uint64_t kStep = 7;
const std::string kOut = "/out";

void Done(const Status& status) { Check(status.ok(), "making a checkpoint: ", status.ToString()); }

// Every value of the item's database becomes a file, as Orbax writes with use_ocdbt=False.
void SpreadItem(io::FileSystem* files, const std::string& item) {
  const std::string manifest = ReadFile(files, item + "/manifest.ocdbt");
  const auto read = [&](const std::string& path, uint64_t offset_bytes, uint64_t length_bytes) {
    return Result<std::string>(
        ReadFile(files, item + "/" + path).substr(offset_bytes, length_bytes));
  };
  std::map<std::string, std::string> values;
  Done(format::orbax::WalkOcdbt(
      AsBytes(manifest), {}, read,
      [&](std::string_view key, const format::orbax::OcdbtValue& value) -> Status {
        if (value.is_inline) {
          values[std::string(key)] = value.inline_value;
          return OkStatus();
        }
        STEPWELL_ASSIGN_OR_RETURN(
            values[std::string(key)],
            read(std::string(value.path), value.offset_bytes, value.length_bytes));
        return OkStatus();
      }));
  for (const auto& [key, value] : values) {
    for (size_t slash = key.find('/'); slash != std::string::npos;
         slash = key.find('/', slash + 1)) {
      files->CreateDirectory(item + "/" + key.substr(0, slash)).IgnoreError("it may be there");
    }
    WriteFile(files, item + "/" + key, 0, value);
  }
  const std::string metadata_path = item + "/_METADATA";
  std::string metadata = ReadFile(files, metadata_path);
  const std::string database = "\"use_ocdbt\": true";
  const size_t at = metadata.find(database);
  Check(at != std::string::npos, "no use_ocdbt in ", metadata);
  metadata.replace(at, database.size(), "\"use_ocdbt\":false");
  WriteFile(files, metadata_path, 0, metadata);
  Done(files->Remove(item + "/manifest.ocdbt"));
}

BaseCheckpoint MakeCheckpoint(db::CodecPolicy codec, const db::ExportOptions& wanted, bool spread) {
  const std::shared_ptr<sim::SimWorld> world = sim::SimWorld::Make({});
  Machine machine(world);
  db::StoreOptions store_options;
  store_options.codec = codec;
  auto store = machine.Open(store_options);
  Done(store.status());
  History history;
  Done(SaveSeeded(store->get(), kStep, kSeed, db::IfExists::kError, &history));
  Done(machine.files()->CreateDirectory(kOut));

  db::ExportOptions options = wanted;
  options.mode = db::ExportMode::kCopy;
  options.on_unsupported = db::OnUnsupported::kWiden;
  options.file_system = machine.files();
  const bool is_managed = options.layout == db::ExportLayout::kV0;
  const std::string destination = is_managed ? kOut : kOut + "/checkpoint";
  const auto report = db::Export(**store, kStep, destination, options);
  Done(report.status());
  Done((*store)->Close());

  BaseCheckpoint made;
  made.path = report->path;
  made.folder = kOut;
  const std::string digests = StrCat(made.path, "/", db::kDigestsName);
  if (spread) {
    const auto checkpoint = db::OrbaxCheckpoint::Open(machine.files(), made.path);
    Done(checkpoint.status());
    for (const db::OrbaxItem& item : checkpoint->items()) {
      if (item.kind == db::OrbaxItem::Kind::kTree) SpreadItem(machine.files(), item.path);
    }
    Done(machine.files()->Remove(digests));
  }
  made.digests = ReadFile(machine.files(), digests);
  Check(spread == made.digests.empty(), "checksums of ", made.path);

  db::ImportOptions import_options;
  import_options.threads = 1;
  import_options.memory_bytes_max = kImportBytesMax;
  const auto checkpoint = db::OrbaxCheckpoint::Open(machine.files(), made.path);
  Done(checkpoint.status());
  const auto request = db::ImportRequest(*checkpoint, kStep, import_options);
  Done(request.status());
  auto leaves = LeavesOf(*request);
  Done(leaves.status());
  made.imported = std::move(*leaves);
  made.world = world->CrashImageProcessKill(1);  // all are closed: a copy
  return made;
}

Result<std::string> ArrayBytes(const db::LeafInput& leaf) {
  const format::LeafRecord& record = leaf.record;
  const uint64_t item_bytes = format::FindDType(record.dtype)->item_bytes;
  STEPWELL_ASSIGN_OR_RETURN(const uint64_t count, format::ElementCount(record.shape, item_bytes));
  std::string bytes;
  if (leaf.payloads.empty()) {
    if (count > 0) bytes.assign(reinterpret_cast<const char*>(leaf.data), count * item_bytes);
    return bytes;
  }
  std::string chunk(format::ChunkBytes(record.chunk_shape, item_bytes), '\0');
  const MutableBytes out(reinterpret_cast<std::byte*>(chunk.data()), chunk.size());
  for (const ConstBytes payload : leaf.payloads) {
    STEPWELL_RETURN_IF_ERROR(format::DecodePayload(leaf.codec, payload, out));
    bytes += chunk;
  }
  return bytes;
}

}  // namespace

Result<ImportedLeaves> LeavesOf(const db::SaveRequest& request) {
  ImportedLeaves leaves;
  leaves[""] = StrCat(request.metadata_json, "\n", request.metrics_json);
  for (const db::ItemInput& item : request.items) {
    for (const db::LeafInput& leaf : item.leaves) {
      const format::LeafRecord& record = leaf.record;
      std::string& text = leaves[record.key];
      text = StrCat(static_cast<int>(record.kind), " ", static_cast<int>(record.value_type), " ",
                    static_cast<int>(record.container), " ", record.child_count, " ");
      if (record.kind == format::LeafKind::kArray) {
        text += StrCat(static_cast<int>(record.dtype));
        for (const uint64_t extent : record.shape) text += StrCat(",", extent);
        STEPWELL_ASSIGN_OR_RETURN(const std::string bytes, ArrayBytes(leaf));
        text += StrCat(" ", bytes);
      } else {
        text += leaf.value;
      }
    }
  }
  return leaves;
}

const std::vector<BaseCheckpoint>& BaseCheckpoints() {
  static const auto* checkpoints = [] {
    auto* made = new std::vector<BaseCheckpoint>;
    db::ExportOptions options;
    made->push_back(MakeCheckpoint(db::CodecPolicy::kRaw, options, false));
    made->push_back(MakeCheckpoint(db::CodecPolicy::kRaw, options, true));
    options.zarr_format = 2;
    made->push_back(MakeCheckpoint(db::CodecPolicy::kBlosc, options, false));
    options.layout = db::ExportLayout::kV0;
    options.zarr_format = 3;
    made->push_back(MakeCheckpoint(db::CodecPolicy::kAuto, options, false));
    return made;
  }();
  return *checkpoints;
}

}  // namespace stepwell::fuzz
