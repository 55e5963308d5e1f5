// SPDX-License-Identifier: Apache-2.0
// Small texts and messages that come from files and from other processes, one kind a run, by the
// first byte: checksums of an export, what is sent to a writer and back, LOCK, readers' pins,
// VIEWS, shardings, meshes, RETENTION. What decodes encodes to what decodes to the same.
#include <array>
#include <vector>

#include "db/commit/retention_report.h"
#include "db/export/orbax/digests.h"
#include "db/layout.h"
#include "db/log/lock.h"
#include "db/log/pins.h"
#include "db/mesh/sharding.h"
#include "db/store/mailbox.h"
#include "db/view/options.h"
#include "fuzz/support/check.h"
#include "fuzz/support/frames.h"
#include "fuzz/support/input.h"
#include "fuzz/support/memory.h"
#include "tests/sim/support/sim_disk.h"

namespace stepwell::fuzz {
namespace {

const std::string kPath = "/s";

void Digests(Input* input) {
  const auto first = db::DecodeDigests("file", input->rest_text());
  if (!first.ok()) {
    Check(first.status().code() == StatusCode::kDataLoss, first.status().ToString());
    return;
  }
  for (const db::DataDigest& data : first->data) {
    uint64_t end = 0;
    for (const db::ChunkDigest& chunk : data.chunks) {
      Check(chunk.offset_bytes >= end, "chunks overlap");
      end = chunk.offset_bytes + chunk.stored_bytes;
    }
    Check(end <= data.bytes, "a chunk behind the end of its file");
  }
  const auto second = db::DecodeDigests("file", db::EncodeDigests(*first));
  Check(second.ok() && *second == *first, "checksums changed on the way");
}

bool Same(const db::WriterRequest& a, const db::WriterRequest& b) {
  return a.kind == b.kind && a.steps == b.steps && a.items == b.items;
}

std::string KeyOf(Input* input) { return std::string(input->Text(input->Below(64))); }

void Request(Input* input) {
  const std::string key = KeyOf(input);
  const auto first = db::DecodeRequest(key, input->rest_text());
  if (!first.ok()) return;
  const std::string encoded = db::EncodeRequest(key, *first);
  const auto second = db::DecodeRequest(key, encoded);
  Check(second.ok() && Same(*second, *first), "a request changed on the way");
  Check(!db::DecodeRequest(key + "x", encoded).ok(), "a request with another key is believed");
}

void Reply(Input* input) {
  const std::string key = KeyOf(input);
  const auto first = db::DecodeReply(key, input->rest_text());
  if (!first.ok()) return;
  const std::string encoded = db::EncodeReply(key, *first);
  const auto second = db::DecodeReply(key, encoded);
  Check(second.ok(), "an answer cannot be read back: ", second.status().ToString());
  Check(second->status().code() == first->status().code() &&
            second->status().os_error() == first->status().os_error() &&
            db::EncodeReply(key, *second) == encoded,
        "an answer changed on the way");
  Check(!db::DecodeReply(key + "x", encoded).ok(), "an answer with another key is believed");
}

// A store's directory with one file of the input's bytes.
class Folder {
 public:
  Folder(const std::string& path, std::string_view bytes) {
    for (size_t slash = 1; (slash = path.find('/', slash)) != std::string::npos; ++slash) {
      files_.CreateDirectory(path.substr(0, slash)).IgnoreError("it is there");
    }
    WriteFile(&files_, path, 0, "");
    WriteFile(&files_, path, 0, bytes);
  }
  io::FileSystem* files() { return &files_; }

 private:
  sim::SimFileSystem files_{sim::SimWorld::Make({})};
};

void Lock(Input* input) {
  Folder folder(db::LockFilePath(kPath), input->rest_text());
  const auto contact = db::ReadContact(folder.files(), kPath);
  if (contact.ok()) {
    const auto file = folder.files()->Open(db::LockFilePath(kPath), {.write = true});
    Check(file.ok() && db::WriteContact(file->get(), *contact).ok(), "LOCK cannot be written");
    const auto again = db::ReadContact(folder.files(), kPath);
    // A long text is cut off where LOCK is read.
    Check(!again.ok() ||
              (again->socket == contact->socket && again->request_key == contact->request_key),
          "a contact changed on the way");
  }
  const auto lock = db::AcquireLock(folder.files(), kPath, std::chrono::milliseconds(0));
  Check(lock.ok(), "a lock that is free: ", lock.status().ToString());
}

void Pins(Input* input) {
  const std::string pin = db::ReadersPath(kPath) + "/0123456789abcdef-1";
  Folder folder(pin, input->rest_text());
  const auto file = folder.files()->Open(pin, {.write = true});
  const bool alive = input->Byte() % 2 == 0;
  if (alive) Check(file.ok() && (*file)->TryLock(io::LockKind::kExclusive).ok(), "no lock");
  (void)db::DescribeOldPins(folder.files(), kPath, 1000, 1);
  const auto pins = db::ReadPins(folder.files(), kPath);
  Check(pins.ok(), pins.status().ToString());
  Check(alive || !pins->any(), "a reader that is gone pins");
  Check(pins->commits.size() <= 1, "one file pins twice");
}

void Views(Input* input) {
  Folder folder(db::ViewsFilePath(kPath), input->rest_text());
  const auto views = db::ReadViews(folder.files(), kPath);
  if (!views.ok()) return;
  std::vector<std::string> before;
  for (const auto& view : views->views) before.push_back(db::ViewOptionsText(view.checkpoint));
  if (!db::WriteViews(folder.files(), kPath, views->views).ok()) return;
  const auto again = db::ReadViews(folder.files(), kPath);
  Check(again.ok() && again->views.size() == views->views.size(), "views changed on the way");
  for (size_t i = 0; i < views->views.size(); ++i) {
    Check(again->views[i].path == views->views[i].path &&
              db::ViewOptionsText(again->views[i].checkpoint) == before[i],
          "a view changed on the way");
  }
}

void Sharding(Input* input) {
  std::vector<uint64_t> shape(input->Below(5));
  for (uint64_t& extent : shape) extent = input->Take<uint16_t>();
  const auto sharding = ParseSharding(input->rest_text());
  Check(!sharding || sharding->devices.size() == sharding->mesh.device_count(),
        "other devices than the mesh has");
  const std::string text = ShardingText(shape, input->rest_text());
  Check(text.ends_with('\n'), "a text without an end");
  for (const char c : text) {
    Check(c == '\n' || static_cast<uint8_t>(c) >= 0x20, "a control character in a text");
  }
}

void Meshes(Input* input) {
  const std::string_view text = input->Text(input->Below(200));
  // One without axes has a text for people.
  if (const auto mesh = Mesh::Parse(text); mesh.ok() && !mesh->axes.empty()) {
    Check(mesh->Check().ok(), "a mesh that is none");
    const auto again = Mesh::Parse(mesh->ToText());
    Check(again.ok() && again->ToText() == mesh->ToText(), "a mesh changed on the way");
  }
  if (const auto spec = PartitionSpec::Parse(input->rest_text()); spec.ok()) {
    const auto again = PartitionSpec::Parse(spec->ToText());
    Check(again.ok() && *again == *spec, "a spec changed on the way: ", spec->ToText());
  }
}

void Rules(Input* input) {
  Folder folder(db::RetentionFilePath(kPath), input->rest_text());
  const auto rules = db::ReadRules(folder.files(), kPath);
  if (!rules.ok()) return;
  Check(db::WriteRules(folder.files(), kPath, *rules).ok(), "rules that cannot be written");
  const auto again = db::ReadRules(folder.files(), kPath);
  Check(again.ok() && again->since == rules->since && again->rules.size() == rules->rules.size(),
        "rules changed on the way");
  std::vector<db::KeepCandidate> candidates(2);
  candidates[0].step = 1;
  candidates[1].step = 2;
  const auto report = db::ReportRetention(rules->rules, std::move(candidates), /*lost=*/false);
  Check(report.steps.size() == 2, "steps that no report has");
}

using Kind = void (*)(Input*);
// In the order of make_corpus.cc.
constexpr std::array<Kind, 9> kKinds = {Digests, Request,  Reply,  Lock, Pins,
                                        Views,   Sharding, Meshes, Rules};

}  // namespace
}  // namespace stepwell::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stepwell::fuzz;
  // VIEWS is read into 1 MiB at once.
  const MemoryLimit limit(size, {size_t{2} << 20, 256}, {size_t{8} << 20, 8192});
  Input input(data, size);
  kKinds[input.Byte() % kKinds.size()](&input);
  return 0;
}
