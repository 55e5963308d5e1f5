// SPDX-License-Identifier: Apache-2.0
// Payloads of frames.
#include <span>

#include "format/codec.h"
#include "format/frame.h"
#include "format/key.h"
#include "format/records_internal.h"
#include "format/records_leaves.h"
#include "format/schema/frame.capnp.h"

namespace stepwell::format {
namespace {

using internal::DataWords;
using internal::DecodeMessage;
using internal::EncodeMessage;
using internal::FromData;
using internal::LeafList;
using internal::LeavesToWrite;
using internal::ListWords;
using internal::ReadId;
using internal::ReadLeaves;
using internal::ReadList;
using internal::ReadNumbers;
using internal::Require;
using internal::StructWords;
using internal::ToData;
using internal::WithLeaves;

constexpr size_t kPlaceWords = StructWords<schema::Place>();
constexpr size_t kIdWords = DataWords(sizeof(Id128));

void WritePlace(const FramePlace& place, schema::Place::Builder out) {
  out.setSegment(place.segment);
  out.setOffset(place.offset_bytes);
  out.setLengthBytes(place.length_bytes);
  out.setCrc(place.crc);
}

// A null pointer reads as a place of length 0.
FramePlace ReadPlace(schema::Place::Reader in) {
  return {in.getSegment(), in.getOffset(), in.getLengthBytes(), in.getCrc()};
}

void WriteNumbers(const std::vector<uint64_t>& numbers, capnp::List<uint64_t>::Builder out) {
  for (uint32_t i = 0; i < out.size(); ++i) out.set(i, numbers[i]);
}

template <typename T>
uint32_t Count(const std::vector<T>& list) {
  return static_cast<uint32_t>(list.size());
}

void ReadCommitHead(schema::Commit::Reader in, Commit* commit) {
  internal::ReadStep(in.getStep(), &commit->step);
  ReadNumbers(in.getKills(), &commit->kills);
  ReadList(in.getBlocks(), &commit->blocks,
           [](schema::RecordsBlock::Reader block, RecordsBlock* out) {
             out->place = ReadPlace(block.getPlace());
             out->first_key = FromData(block.getFirstKey());
             out->first_chunk = block.getFirstChunk();
             Require(out->place.length_bytes > 0, "records block without a place");
           });
}

void WriteLoss(const LossRecord& loss, schema::Loss::Builder out) {
  out.setFirstCommit(loss.first_commit);
  out.setLastCommit(loss.last_commit);
  out.setFoundNs(loss.found_ns);
  out.setReason(loss.reason);
  out.setAccepted(loss.accepted);
}

void ReadLoss(schema::Loss::Reader in, LossRecord* loss) {
  loss->first_commit = in.getFirstCommit();
  loss->last_commit = in.getLastCommit();
  loss->found_ns = in.getFoundNs();
  loss->reason = in.getReason().cStr();
  loss->accepted = in.getAccepted();
  Require(loss->first_commit <= loss->last_commit, "a loss that ends before it begins");
}

}  // namespace

std::string EncodeSegmentHeader(const SegmentHeader& header) {
  const size_t words = 1 + StructWords<schema::SegmentHeader>() + 3 * kIdWords;
  return EncodeMessage<schema::SegmentHeader>(words, [&](schema::SegmentHeader::Builder out) {
    out.setStoreId(ToData(header.store_id));
    out.setNonce(ToData(header.nonce));
    out.setSegment(header.segment);
    out.setCreatedNs(header.created_ns);
    out.setPart(header.part);
    if (header.group_id != Id128{}) out.setGroupId(ToData(header.group_id));
  });
}

Result<SegmentHeader> DecodeSegmentHeader(ConstBytes bytes) {
  return DecodeMessage<schema::SegmentHeader, SegmentHeader>(
      "segment header", bytes, [](schema::SegmentHeader::Reader in, SegmentHeader* header) {
        header->store_id = ReadId(in.getStoreId(), "store id is not 16 bytes");
        header->nonce = ReadId(in.getNonce(), "nonce is not 16 bytes");
        header->segment = in.getSegment();
        header->created_ns = in.getCreatedNs();
        header->part = in.getPart();
        if (in.hasGroupId()) header->group_id = ReadId(in.getGroupId(), "group id is not 16 bytes");
      });
}

std::string EncodeCatalog(const Catalog& catalog) {
  size_t words = 1 + StructWords<schema::Catalog>() + kPlaceWords +
                 ListWords<schema::LiveCommit>(catalog.live.size()) +
                 ListWords<schema::Segment>(catalog.segments.size()) +
                 catalog.segments.size() * kIdWords +
                 ListWords<schema::Loss>(catalog.losses.size());
  for (const LossRecord& loss : catalog.losses) words += DataWords(loss.reason.size() + 1);
  for (const LiveCommit& live : catalog.live) {
    words += StructWords<schema::Step>() + internal::StepTailWords(live.step) + kPlaceWords;
  }
  words += kPlaceWords + catalog.gone.size() + catalog.segments_gone.size() +
           ListWords<schema::Place>(catalog.pages.size());
  return EncodeMessage<schema::Catalog>(words, [&](schema::Catalog::Builder out) {
    out.setEpoch(catalog.epoch);
    out.setLastCommit(catalog.last_commit);
    WritePlace(catalog.last_place, out.initLastPlace());
    auto live = out.initLive(Count(catalog.live));
    for (uint32_t i = 0; i < live.size(); ++i) {
      internal::WriteStep(catalog.live[i].step, live[i].initStep());
      WritePlace(catalog.live[i].place, live[i].initPlace());
    }
    auto segments = out.initSegments(Count(catalog.segments));
    for (uint32_t i = 0; i < segments.size(); ++i) {
      const SegmentEntry& entry = catalog.segments[i];
      segments[i].setSegment(entry.segment);
      segments[i].setNonce(ToData(entry.nonce));
      segments[i].setLengthBytes(entry.length_bytes);
    }
    if (catalog.previous.length_bytes > 0) WritePlace(catalog.previous, out.initPrevious());
    if (!catalog.gone.empty()) WriteNumbers(catalog.gone, out.initGone(Count(catalog.gone)));
    if (!catalog.segments_gone.empty()) {
      WriteNumbers(catalog.segments_gone, out.initSegmentsGone(Count(catalog.segments_gone)));
    }
    if (!catalog.pages.empty()) {
      auto pages = out.initPages(Count(catalog.pages));
      for (uint32_t i = 0; i < pages.size(); ++i) WritePlace(catalog.pages[i], pages[i]);
    }
    out.setLiveCount(catalog.live_count);
    if (catalog.losses.empty()) return;
    auto losses = out.initLosses(Count(catalog.losses));
    for (uint32_t i = 0; i < losses.size(); ++i) WriteLoss(catalog.losses[i], losses[i]);
  });
}

Result<Catalog> DecodeCatalog(ConstBytes bytes) {
  return DecodeMessage<schema::Catalog, Catalog>(
      "catalog", bytes, [](schema::Catalog::Reader in, Catalog* catalog) {
        catalog->epoch = in.getEpoch();
        catalog->last_commit = in.getLastCommit();
        catalog->last_place = ReadPlace(in.getLastPlace());
        ReadList(in.getLive(), &catalog->live,
                 [](schema::LiveCommit::Reader live, LiveCommit* out) {
                   internal::ReadStep(live.getStep(), &out->step);
                   out->place = ReadPlace(live.getPlace());
                 });
        ReadList(in.getSegments(), &catalog->segments,
                 [](schema::Segment::Reader segment, SegmentEntry* out) {
                   out->segment = segment.getSegment();
                   out->nonce = ReadId(segment.getNonce(), "nonce is not 16 bytes");
                   out->length_bytes = segment.getLengthBytes();
                 });
        catalog->previous = ReadPlace(in.getPrevious());
        if (catalog->previous.length_bytes == 0) catalog->previous = {};  // a base names none
        ReadNumbers(in.getGone(), &catalog->gone);
        ReadNumbers(in.getSegmentsGone(), &catalog->segments_gone);
        ReadList(in.getPages(), &catalog->pages, [](schema::Place::Reader page, FramePlace* out) {
          *out = ReadPlace(page);
          Require(out->length_bytes > 0, "catalog page without a place");
        });
        catalog->live_count = in.getLiveCount();
        Require(catalog->previous.length_bytes > 0 ||
                    (catalog->gone.empty() && catalog->segments_gone.empty()),
                "a base from which something went");
        ReadList(in.getLosses(), &catalog->losses, ReadLoss);
      });
}

// Pages of a catalog: a Catalog message of entries in one LZ4 frame. The entries of neighbouring
// steps differ in a few bytes, so a page takes a fifth of its message or less.
Result<std::string> EncodeCatalogPage(const Catalog& entries) {
  const std::string message = EncodeCatalog(entries);
  std::string packed(internal::Lz4FrameBytesMax(message.size()), '\0');
  STEPWELL_ASSIGN_OR_RETURN(
      const size_t size,
      internal::Lz4FrameEncode(AsBytes(message), std::as_writable_bytes(std::span(packed))));
  packed.resize(size);
  const size_t words = 1 + StructWords<schema::CatalogPage>() + DataWords(packed.size());
  return EncodeMessage<schema::CatalogPage>(words, [&](schema::CatalogPage::Builder out) {
    out.setPacked(ToData(packed));
    out.setPlainBytes(message.size());
  });
}

Result<Catalog> DecodeCatalogPage(ConstBytes bytes) {
  // LZ4 expands 255 times at most: what a page makes of memory stays in proportion to its bytes.
  constexpr uint64_t kExpansionMax = 256;
  STEPWELL_ASSIGN_OR_RETURN(
      const std::string message,
      (DecodeMessage<schema::CatalogPage, std::string>(
          "catalog page", bytes, [](schema::CatalogPage::Reader in, std::string* plain) {
            const capnp::Data::Reader packed = in.getPacked();
            const uint64_t size = in.getPlainBytes();
            Require(size <= kFramePayloadBytesMax && size <= kExpansionMax * packed.size(),
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

std::string EncodeEpoch(const EpochRecord& record) {
  const size_t words = 1 + StructWords<schema::Epoch>() + kPlaceWords;
  return EncodeMessage<schema::Epoch>(words, [&](schema::Epoch::Builder out) {
    out.setEpoch(record.epoch);
    out.setLastCommit(record.last_commit);
    WritePlace(record.last_place, out.initLastPlace());
  });
}

Result<EpochRecord> DecodeEpoch(ConstBytes bytes) {
  return DecodeMessage<schema::Epoch, EpochRecord>(
      "epoch", bytes, [](schema::Epoch::Reader in, EpochRecord* record) {
        record->epoch = in.getEpoch();
        record->last_commit = in.getLastCommit();
        record->last_place = ReadPlace(in.getLastPlace());
      });
}

std::string EncodeCommit(const Commit& commit) {
  return CommitEncoder(commit.records).Encode(commit);
}

CommitEncoder::CommitEncoder(std::span<const LeafRecord> records)
    : leaves_(std::make_unique<LeavesToWrite>(records)) {}
CommitEncoder::~CommitEncoder() = default;

std::string CommitEncoder::Encode(const Commit& commit) const {
  size_t words = 1 + StructWords<schema::Commit>() + StructWords<schema::Step>() +
                 internal::StepTailWords(commit.step) + commit.kills.size() +
                 ListWords<schema::RecordsBlock>(commit.blocks.size()) + leaves_->words();
  for (const RecordsBlock& block : commit.blocks) {
    words += kPlaceWords + DataWords(block.first_key.size());
  }
  return EncodeMessage<schema::Commit>(words, [&](schema::Commit::Builder out) {
    internal::WriteStep(commit.step, out.initStep());
    WriteNumbers(commit.kills, out.initKills(Count(commit.kills)));
    auto blocks = out.initBlocks(Count(commit.blocks));
    for (uint32_t i = 0; i < blocks.size(); ++i) {
      WritePlace(commit.blocks[i].place, blocks[i].initPlace());
      blocks[i].setFirstKey(ToData(commit.blocks[i].first_key));
      blocks[i].setFirstChunk(commit.blocks[i].first_chunk);
    }
    leaves_->Write(out);
  });
}

Result<Commit> DecodeCommit(ConstBytes bytes) {
  return DecodeMessage<schema::Commit, Commit>(
      "commit", bytes, [](schema::Commit::Reader in, Commit* commit) {
        ReadCommitHead(in, commit);
        WithLeaves(in, [commit](LeafList leaves) { ReadLeaves(leaves, &commit->records); });
      });
}

Result<CommitHead> DecodeCommitHead(ConstBytes bytes) {
  return DecodeMessage<schema::Commit, CommitHead>(
      "commit", bytes, [](schema::Commit::Reader in, CommitHead* head) {
        ReadCommitHead(in, &head->commit);
        WithLeaves(in, [head](LeafList leaves) {
          if (leaves.size() == 0) return;
          head->first_key = FromData(leaves[0].getKey());
          head->first_chunk = leaves[0].getFirstChunk();
          Require(!head->first_key.empty(), "leaf without a key");
        });
      });
}

std::string EncodeDelete(const Delete& record) {
  const size_t words =
      1 + StructWords<schema::Delete>() + record.kills.size() + record.steps.size();
  return EncodeMessage<schema::Delete>(words, [&](schema::Delete::Builder out) {
    WriteNumbers(record.kills, out.initKills(Count(record.kills)));
    WriteNumbers(record.steps, out.initSteps(Count(record.steps)));
  });
}

Result<Delete> DecodeDelete(ConstBytes bytes) {
  return DecodeMessage<schema::Delete, Delete>("delete", bytes,
                                               [](schema::Delete::Reader in, Delete* record) {
                                                 ReadNumbers(in.getKills(), &record->kills);
                                                 ReadNumbers(in.getSteps(), &record->steps);
                                               });
}

std::string EncodeDecided(const Decided& record) {
  const size_t words = 1 + StructWords<schema::Decided>() + StructWords<schema::Group>() +
                       internal::GroupTailWords(record.group) + record.kills.size() +
                       record.steps.size();
  return EncodeMessage<schema::Decided>(words, [&](schema::Decided::Builder out) {
    internal::WriteGroup(record.group, out.initGroup());
    out.setCommit(record.commit);
    out.setCommitted(record.committed);
    WriteNumbers(record.kills, out.initKills(Count(record.kills)));
    WriteNumbers(record.steps, out.initSteps(Count(record.steps)));
  });
}

Result<Decided> DecodeDecided(ConstBytes bytes) {
  return DecodeMessage<schema::Decided, Decided>(
      "decided", bytes, [](schema::Decided::Reader in, Decided* record) {
        Require(in.hasGroup(), "a decision without its group");
        internal::ReadGroup(in.getGroup(), &record->group);
        record->commit = in.getCommit();
        record->committed = in.getCommitted();
        ReadNumbers(in.getKills(), &record->kills);
        ReadNumbers(in.getSteps(), &record->steps);
        Require(record->committed || record->kills.empty(), "an aborted step that kills");
      });
}

std::string EncodeLoss(const LossRecord& loss) {
  const size_t words = 1 + StructWords<schema::Loss>() + DataWords(loss.reason.size() + 1);
  return EncodeMessage<schema::Loss>(words,
                                     [&](schema::Loss::Builder out) { WriteLoss(loss, out); });
}

Result<LossRecord> DecodeLoss(ConstBytes bytes) {
  return DecodeMessage<schema::Loss, LossRecord>("loss", bytes, ReadLoss);
}

std::string EncodeMeta(const Meta& meta) {
  size_t words =
      1 + StructWords<schema::Meta>() + ListWords<schema::Meta::Change>(meta.changes.size());
  for (const MetaChange& change : meta.changes) {
    words += internal::TextWords(change.taint.value_or("").size());
  }
  return EncodeMessage<schema::Meta>(words, [&](schema::Meta::Builder out) {
    auto changes = out.initChanges(Count(meta.changes));
    for (uint32_t i = 0; i < changes.size(); ++i) {
      changes[i].setCommit(meta.changes[i].commit);
      changes[i].setSetPinned(meta.changes[i].pinned.has_value());
      changes[i].setPinned(meta.changes[i].pinned.value_or(false));
      const auto& taint = meta.changes[i].taint;
      changes[i].setSetTaint(taint.has_value());
      if (taint && !taint->empty()) changes[i].setTaint(internal::ToText(*taint));
      changes[i].setSetVerified(meta.changes[i].verified.has_value());
      changes[i].setVerified(meta.changes[i].verified.value_or(false));
    }
  });
}

Result<Meta> DecodeMeta(ConstBytes bytes) {
  return DecodeMessage<schema::Meta, Meta>("meta", bytes, [](schema::Meta::Reader in, Meta* meta) {
    ReadList(in.getChanges(), &meta->changes,
             [](schema::Meta::Change::Reader change, MetaChange* out) {
               out->commit = change.getCommit();
               if (change.getSetPinned()) out->pinned = change.getPinned();
               if (change.getSetTaint()) out->taint = internal::FromText(change.getTaint());
               if (change.getSetVerified()) out->verified = change.getVerified();
             });
  });
}

std::string EncodeFooter(const Footer& footer) {
  const size_t words = 1 + StructWords<schema::Footer>() +
                       ListWords<schema::FooterEntry>(footer.frames.size()) +
                       footer.frames.size() * kPlaceWords;
  return EncodeMessage<schema::Footer>(words, [&](schema::Footer::Builder out) {
    auto frames = out.initFrames(Count(footer.frames));
    for (uint32_t i = 0; i < frames.size(); ++i) {
      frames[i].setKind(footer.frames[i].kind);
      frames[i].setCommit(footer.frames[i].commit);
      WritePlace(footer.frames[i].place, frames[i].initPlace());
    }
  });
}

Result<Footer> DecodeFooter(ConstBytes bytes) {
  return DecodeMessage<schema::Footer, Footer>(
      "footer", bytes, [](schema::Footer::Reader in, Footer* footer) {
        ReadList(in.getFrames(), &footer->frames,
                 [](schema::FooterEntry::Reader entry, FooterEntry* out) {
                   out->kind = entry.getKind();
                   out->commit = entry.getCommit();
                   out->place = ReadPlace(entry.getPlace());
                   Require(out->kind > 0, "frame kind 0");
                 });
      });
}

std::string EncodeTrailer(const Trailer& trailer) {
  const size_t words = 1 + StructWords<schema::Trailer>() + kPlaceWords;
  return EncodeMessage<schema::Trailer>(words, [&](schema::Trailer::Builder out) {
    WritePlace(trailer.footer, out.initFooter());
    out.setCommitMin(trailer.commit_min);
    out.setCommitMax(trailer.commit_max);
  });
}

Result<Trailer> DecodeTrailer(ConstBytes bytes) {
  return DecodeMessage<schema::Trailer, Trailer>("trailer", bytes,
                                                 [](schema::Trailer::Reader in, Trailer* trailer) {
                                                   trailer->footer = ReadPlace(in.getFooter());
                                                   trailer->commit_min = in.getCommitMin();
                                                   trailer->commit_max = in.getCommitMax();
                                                 });
}

}  // namespace stepwell::format
