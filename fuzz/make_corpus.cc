// SPDX-License-Identifier: Apache-2.0
// stepwell_make_corpus FOLDER: writes the seeds of every target to FOLDER/TARGET/. The same files
// on every machine and at every run.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "db/export/orbax/digests.h"
#include "db/store/mailbox.h"
#include "db/view/options.h"
#include "format/codec.h"
#include "format/endian.h"
#include "format/frame.h"
#include "fuzz/support/check.h"
#include "fuzz/support/checkpoints.h"
#include "fuzz/support/edit.h"
#include "fuzz/support/frames.h"
#include "fuzz/support/stores.h"
#include "tests/format/support/examples.h"
#include "tests/format/support/ocdbt_bytes.h"
#include "tests/format/support/orbax_examples.h"

namespace stepwell::fuzz {
namespace {

class Corpus {
 public:
  explicit Corpus(std::string folder) : folder_(std::move(folder)) {}

  void Add(const std::string& target, const std::string& bytes) {
    const std::string folder = folder_ + "/" + target;
    std::filesystem::create_directories(folder);
    std::ofstream file(StrCat(folder, "/seed-", counts_[target]++), std::ios::binary);
    file << bytes;
    file.close();
    Check(file.good(), "cannot write below ", folder);
  }

 private:
  const std::string folder_;
  std::map<std::string, int> counts_;
};

std::string Byte(uint64_t value) { return std::string(1, static_cast<char>(value)); }

std::string Little(uint64_t value) {
  std::string bytes(sizeof(value), '\0');
  format::StoreLittle(reinterpret_cast<std::byte*>(bytes.data()), value);
  return bytes;
}

void Keys(Corpus* corpus) {
  const std::string path = format::EncodePath(format::ExamplePath()).value();
  const std::string leaf = format::EncodeLeafKey("params", format::ExamplePath()).value();
  corpus->Add("keys", Byte(0) + path);
  corpus->Add("keys", Byte(0) + leaf);
  corpus->Add("keys", Byte(0) + format::EncodeStep(12000));
  corpus->Add("keys", Byte(0) + std::string("\x03\x00\xff/\\*\x00\x01\x04\x00\x01", 10));
  // Two paths: components of every type.
  corpus->Add("keys", Byte(1) + Byte(2) + Byte(2) + Byte(1) + "a" + Byte(1) + Little(3) + Byte(3) +
                          Byte(2) + Byte(2) + "a" + Byte(0) + Byte(0) + Little(~uint64_t{0}));
}

void Records(Corpus* corpus) {
  // Numbered as the decoders in fuzz_records.cc.
  const std::map<std::string, uint64_t> decoders = {
      {"leaf_array", 0},   {"leaf_value", 0},   {"leaf_node", 0},     {"segment_header", 1},
      {"catalog_base", 2}, {"epoch", 3},        {"records", 4},       {"commit", 5},
      {"delete", 6},       {"meta", 7},         {"footer", 8},        {"trailer", 9},
      {"pushed_step", 15}, {"push_marker", 15}, {"commit_packed", 5}, {"records_packed", 4}};
  const format::Catalog entries = format::ExampleCatalogEntries();
  corpus->Add("records", Byte(10) + format::EncodeCatalogPage(entries).value());
  corpus->Add("records", Byte(11) + format::EncodeDecided(format::ExampleDecided()));
  corpus->Add("records", Byte(12) + format::EncodeLoss(format::ExampleLoss()));
  const std::string range = Byte(3) + "a" + Byte(0) + "b" + Byte(2) + "zz";
  corpus->Add("records", Byte(13) + range + format::EncodeCommit(format::ExampleCommit()));
  const std::vector<format::LeafRecord> leaves = {format::ExampleArray(), format::ExampleValue()};
  corpus->Add("records", Byte(14) + range + format::EncodeRecords(leaves));
  const format::Commit packed = format::ExamplePackedCommit();
  const std::string in = Byte(8) + packed.records[3].key.substr(0, 8) + Byte(0);
  corpus->Add("records", Byte(13) + in + format::EncodeCommit(packed));
  corpus->Add("records", Byte(14) + in + format::EncodeRecords(packed.records));
  for (const format::Golden& golden : format::MakeGolden()) {
    const auto decoder = decoders.find(golden.name);
    if (decoder != decoders.end()) corpus->Add("records", Byte(decoder->second) + golden.bytes);
  }
}

void Frames(Corpus* corpus) {
  for (const uint64_t fix : {0U, 1U}) {
    const std::string commit = format::EncodeCommit(format::ExampleCommit());
    corpus->Add("frames",
                Byte(fix) + format::EncodeFrame(format::ExampleFrameHeader(), commit, 1, nullptr));
    corpus->Add("frames",
                Byte(fix) + format::EncodeFrame(format::ExampleFrameHeader(), "", 1, nullptr));
    const auto slot = format::EncodeSlot(format::ExampleSlot());
    corpus->Add("frames", Byte(2 | fix) + std::string(AsText(slot)));
    format::FrameCopy copy;
    copy.place = format::ExamplePlace(3);
    copy.bytes = format::EncodeFrame(format::ExampleFrameHeader(), commit, 1, &copy.place.crc);
    copy.place.length_bytes = static_cast<uint32_t>(copy.bytes.size());
    for (const size_t cut : {size_t{0}, size_t{4}}) {  // whole, and shorter than the original
      copy.bytes.resize(copy.bytes.size() - cut);
      std::string encoded(format::FrameCopySpace(copy.bytes.size()), '\0');
      format::EncodeFrameCopy(copy, {},
                              {reinterpret_cast<std::byte*>(encoded.data()), encoded.size()});
      corpus->Add("frames", Byte(4 | fix) + encoded);
    }
  }
}

// Each type of element, with few and many changes, and with room for the delta and without.
void DeltaRoundTrips(Corpus* corpus) {
  const std::string head = Byte(static_cast<uint64_t>(format::CodecId::kDelta) << 1 | 1);
  for (const uint64_t type : {0U, 1U, 2U, 3U}) {
    for (const uint64_t changed_of_256 : {0U, 1U, 20U, 90U, 250U}) {
      for (const uint64_t limit_percent : {20U, 150U}) {
        corpus->Add("codec", head + Byte(type) + Byte(type != 0) + Byte(15) +
                                 Little(changed_of_256).substr(0, 4) + Byte(limit_percent) +
                                 Little(type).substr(0, 4) + format::ExampleLogical());
      }
    }
  }
}

void Codecs(Corpus* corpus) {
  const std::string logical = format::ExampleLogical();
  for (const format::CodecInfo& codec : format::Codecs()) {
    const auto number = static_cast<uint64_t>(codec.id) << 1;
    std::string body = format::ExamplePayload(codec.id);
    body.resize(body.size() - format::kCrcBytes);
    for (const uint64_t flags : {0U, 2U}) {
      corpus->Add("codec", Byte(number) + Byte(flags) + Little(logical.size()).substr(0, 4) + body);
    }
    if (codec.needs_base) continue;
    corpus->Add("codec", Byte(number | 1) + Byte(3) + Byte(0) + logical);
    corpus->Add("codec", Byte(number | 1) + Byte(0) + Byte(40) + "a long text of few letters");
  }
  DeltaRoundTrips(corpus);
}

void Grids(Corpus* corpus) {
  Prng prng(7);
  for (int i = 0; i < 24; ++i) {
    std::string bytes = Byte(static_cast<uint64_t>(i % 2));
    for (int k = 0; k < 60; ++k) bytes += Byte(prng.Next());
    corpus->Add("grid", bytes);
  }
}

// The body of a frame.
std::string Body(const std::string& frame) { return frame.substr(14, frame.size() - 18); }

void Ocdbt(Corpus* corpus) {
  namespace orbax = format::orbax;
  const auto build = [](bool compress) {
    orbax::OcdbtOptions options;
    options.nodes_path = "n";
    options.node_entries_max = 3;
    options.compress = compress;
    auto builder = orbax::OcdbtBuilder::Create(options).value();
    for (int i = 100; i < 110; ++i) {
      const std::string value(static_cast<size_t>(40 * (i % 2)), 'v');
      Check(builder.AddInline(StrCat("key/", i), value).ok(), "a key");
    }
    return builder.Finish().value();
  };
  // Decode: flags, then the body.
  corpus->Add("ocdbt", Byte(0) + Byte(0) + Body(orbax::RealManifest()));
  corpus->Add("ocdbt", Byte(0) + Byte(2) + Body(orbax::RealLeaf()));
  corpus->Add("ocdbt", Byte(0) + Byte(2) + orbax::RealLeaf());
  // Uses the first node's body: a leaf, compressed.
  const std::string compressed = build(true).nodes;
  corpus->Add("ocdbt", Byte(0) + Byte(3) +
                           Body(compressed.substr(0, static_cast<unsigned char>(compressed[4]))));
  // Walk: height, place of the root, range, then a file of bodies. Two leaves with whole keys, or
  // one part of which their parent has; then a leaf alone.
  const auto leaf = [](const std::string& keys) {
    return orbax::Varints({0, 0, 2, 0, 1, 1}) + keys + orbax::Varints({1, 1, 0, 0}) + "vw";
  };
  const uint64_t leaf_bytes = leaf("ab").size();
  const auto root = [&](const std::string& keys, uint64_t key_bytes, uint64_t common) {
    return orbax::Varints({1, 1, 1, 0}) + "n" +
           orbax::Varints({2, 0, key_bytes, key_bytes, common, common}) + keys +
           orbax::Varints(
               {0, 0, 0, leaf_bytes, 18 + leaf_bytes, 18 + leaf_bytes, 2, 2, 9, 9, 0, 0});
  };
  const auto add = [&](uint64_t height, uint64_t root_at, const std::string& bodies) {
    corpus->Add("ocdbt", Byte(1) + Byte(height) + Little(root_at).substr(0, 2) +
                             Little(bodies.size() - root_at).substr(0, 2) + Byte(1) + "c" + bodies);
  };
  add(1, 2 * leaf_bytes, leaf("ac") + leaf("eg") + root("ae", 1, 0));
  add(1, 2 * leaf_bytes, leaf("ab") + leaf("bc") + root("aabb", 2, 1));
  add(0, 0, leaf("bd"));
  // Build: bounds, range, then keys.
  std::string keys;
  for (uint64_t i = 0; i < 30; ++i) {
    keys += Byte(i % 3 == 0 ? 2 + 16 * (i % 4) : 2 + 8 + 16 * (i % 4)) + Byte(i == 0 ? 0 : 1) +
            Byte('a' + i) + "k" + (i % 3 == 0 ? Little(i).substr(0, 4) : std::string(i % 4, 'v'));
  }
  for (const uint64_t compress : {0U, 1U}) {
    corpus->Add("ocdbt",
                Byte(2) + Byte(compress) + Byte(8) + Byte(compress) + Byte(1) + "d" + keys);
  }
}

void OrbaxFiles(Corpus* corpus) {
  for (size_t kind = 0; kind < format::orbax::FileKinds().size(); ++kind) {
    for (const std::string& example : format::orbax::FileKinds()[kind].examples) {
      corpus->Add("orbax_json", Byte(kind) + example);
    }
  }
}

// Each store as it is, and with one edit of each kind in a few places.
void Stores(Corpus* corpus) {
  Prng prng(9);
  for (size_t store = 0; store < BaseStores().size(); ++store) {
    corpus->Add("store", Byte(store));
    corpus->Add("segments", Byte(store));
    corpus->Add("store_disk", Byte(store));
    for (uint8_t kind = 0; kind < static_cast<uint8_t>(EditKind::kCount); ++kind) {
      for (int i = 0; i < 2; ++i) {
        const std::string edit =
            EncodeEdit(static_cast<EditKind>(kind), static_cast<uint8_t>(prng.Next()),
                       static_cast<uint32_t>(prng.Next()), Little(prng.Below(20)));
        corpus->Add("store", Byte(store) + edit);
        corpus->Add("segments", Byte(store) + edit);
        if (store < 3 && i == 0) corpus->Add("store_disk", Byte(store) + edit);
      }
    }
  }
}

void Checkpoints(Corpus* corpus) {
  Prng prng(10);
  for (size_t checkpoint = 0; checkpoint < BaseCheckpoints().size(); ++checkpoint) {
    for (uint8_t flags = 0; flags < 4; ++flags) {
      const std::string begin = Byte(checkpoint) + Byte(flags);
      corpus->Add("import", begin);
      for (uint8_t kind = 0; kind < static_cast<uint8_t>(EditKind::kSlot); ++kind) {
        corpus->Add(
            "import",
            begin + EncodeEdit(static_cast<EditKind>(kind), static_cast<uint8_t>(prng.Next()),
                               static_cast<uint32_t>(prng.Next()), Little(prng.Below(20))));
      }
    }
  }
}

// Numbered as the kinds in fuzz_texts.cc.
void Texts(Corpus* corpus) {
  db::ExportDigests digests;
  digests.files = {{"_METADATA", 700, 0x12345678, 9}, {"a \"name\"", 0, 0, 0}};
  digests.data = {{"d/1", 9000, {{0, 4100, 7}, {4100, 4, 8}}}, {"d/2", 0, {}}};
  corpus->Add("texts", Byte(0) + db::EncodeDigests(digests));
  const std::string key = "0123456789abcdef";
  const std::string begin = Byte(key.size()) + key;
  using Kind = db::WriterRequest::Kind;
  corpus->Add("texts", Byte(1) + begin + db::EncodeRequest(key, {Kind::kDelete, {1, 2}, {}}));
  corpus->Add("texts",
              Byte(1) + begin + db::EncodeRequest(key, {Kind::kDeleteItems, {7}, {"a", ""}}));
  db::ReclaimReport report;
  report.bytes_before = 123;
  report.bytes_linked = 5;
  corpus->Add("texts", Byte(2) + begin + db::EncodeReply(key, report));
  corpus->Add("texts", Byte(2) + begin + db::EncodeReply(key, NotFoundError("no such step")));
  const std::string holder = "pid=7 boot=0123-4567 start=89";
  corpus->Add("texts", Byte(3) + holder + "\n");
  corpus->Add("texts", Byte(3) + holder + " socket=stepwell-1 ask=" + key + " answer=b\n");
  corpus->Add("texts", Byte(4) + "00000000000000000042\n" + Byte(0));
  corpus->Add("texts", Byte(4) + "18446744073709551615\n" + Byte(1));
  db::ExportOptions options;
  options.items = {"state"};
  corpus->Add("texts", Byte(5) + R"({"store": "/s", "views": [{"path": "/v", "options": )" +
                           db::ViewOptionsText(options) + "}]}\n");
  for (const char* spec : {R"(["x", "y"])", R"([["x"], null])", "[]"}) {
    corpus->Add(
        "texts",
        Byte(6) + Byte(2) + std::string("\x08\x00\x06\x00", 4) +
            R"({"sharding_type": "NamedSharding", "shape": [2, 2], "axis_names": ["x", "y"],)" +
            R"("partition_spec": )" + spec +
            R"(, "device_mesh": {"mesh": [[{"id": 3}, {"id": 2}], [{"id": 1}, {"id": 0}]]}})");
  }
  corpus->Add("texts", Byte(6) + Byte(0) +
                           R"({"sharding_type": "SingleDeviceSharding", "device_str": "TFRT_0"})");
  corpus->Add("texts", Byte(7) + Byte(14) + "data=2,model=4" + "((data, model), None)");
  corpus->Add("texts", Byte(7) + Byte(3) + "a=1" + "a");
  corpus->Add("texts", Byte(8) + R"({"since": 3, "rules": [{"kind": "best", "count": 2, )" +
                           R"("duration_ns": 0, "metric": "loss", "larger_is_better": false}]})");
}

void Commands(Corpus* corpus) {
  for (const char* arguments :
       {"ls\ns", "ls\ns\n--json", "show\ns", "show\ns\nlatest\nstate/w", "show\ns\n30\n--json",
        "cat\ns\n30\nstate/w", "cat\ns\n30\nstate/w2/3\n--json\n--full", "cat\ns\n30\nstate/lr",
        "cat\ns\nlatest\nconfig/bits", "verify\ns", "verify\ns\n--step\n30\n--json", "--help",
        "--version", "cat\ns\n30\nstate/ww", "ls\nmissing", "stats\ns", ""}) {
    corpus->Add("cli", Byte(0) + arguments);
  }
  corpus->Add("cli", Byte(1) + "state\\/w/w2/3");
  for (uint64_t type = 0; type < 12; ++type) corpus->Add("cli", Byte(2) + Byte(type) + "12345678");
  for (uint64_t dtype = 0; dtype < 28; ++dtype) {
    corpus->Add("cli", Byte(3) + Byte(dtype) + Byte(2) + Byte(3) + Byte(4) + std::string(64, 'z'));
  }
}

}  // namespace
}  // namespace stepwell::fuzz

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
    return 2;
  }
  stepwell::fuzz::Corpus corpus(argv[1]);
  stepwell::fuzz::Keys(&corpus);
  stepwell::fuzz::Records(&corpus);
  stepwell::fuzz::Frames(&corpus);
  stepwell::fuzz::Codecs(&corpus);
  stepwell::fuzz::Grids(&corpus);
  stepwell::fuzz::Ocdbt(&corpus);
  stepwell::fuzz::OrbaxFiles(&corpus);
  stepwell::fuzz::Stores(&corpus);
  stepwell::fuzz::Checkpoints(&corpus);
  stepwell::fuzz::Texts(&corpus);
  stepwell::fuzz::Commands(&corpus);
  return 0;
}
