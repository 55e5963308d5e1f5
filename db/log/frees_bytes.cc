// SPDX-License-Identifier: Apache-2.0
#include "db/log/frees_bytes.h"

#include <algorithm>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "db/log/recovery.h"
#include "db/log/step_records.h"
#include "format/key.h"

namespace stepwell::db {
namespace {

// The steps that need the same payloads of a segment: one that owns something there, or all that
// own nothing there and refer to the same.
struct Need {
  size_t step = 0;  // one of them
  bool several = false;
};

struct Payload {
  uint64_t stored_bytes = 0;
  size_t step = 0;      // that needs it
  bool shared = false;  // others do, too
};

struct SegmentNeeds {
  bool is_asked = false;  // an asked step alone has a need here
  bool known = true;      // all records were read
  std::vector<Need> needs;
  std::unordered_map<uint64_t, Payload> payloads;  // by offset
};

class FreesBytesQuery {
 public:
  FreesBytesQuery(SegmentFiles& files, const LiveSteps::List& live,
                  const LiveSteps::List& undecided, std::span<const uint64_t> asked)
      : files_(files) {
    const std::set<uint64_t> numbers(asked.begin(), asked.end());
    for (const auto& step : live) {
      is_asked_.push_back(asked.empty() || numbers.contains(step->record.step));
      steps_.push_back(step.get());
    }
    // One that was decided meanwhile is in both, with one commit frame.
    std::set<std::pair<uint64_t, uint64_t>> frames;
    for (const auto* step : steps_) frames.emplace(step->place.segment, step->place.offset_bytes);
    for (const auto& step : undecided) {
      if (frames.contains({step->place.segment, step->place.offset_bytes})) continue;
      is_asked_.push_back(false);
      steps_.push_back(step.get());
    }
  }

  std::map<uint64_t, std::optional<uint64_t>> Run() {
    FindNeeds();
    ReadNeeds();
    return Sum();
  }

 private:
  // By what the steps' extents say: nothing is read for it.
  void FindNeeds() {
    std::map<uint64_t, std::map<format::Hash128, Need>> referrers;
    std::vector<size_t> placeless;
    for (size_t i = 0; i < steps_.size(); ++i) {
      if (steps_[i]->record.extents.empty()) placeless.push_back(i);
      for (const format::SegmentExtent& extent : steps_[i]->record.extents) {
        if (extent.stored_bytes == 0) continue;  // frames alone
        if (!extent.owns_nothing()) {
          segments_[extent.segment].needs.push_back({i});
          continue;
        }
        const auto [it, is_first] = referrers[extent.segment].emplace(extent.places, Need{i});
        it->second.several = !is_first;
      }
    }
    for (const auto& [segment, by_places] : referrers) {
      for (const auto& [places, need] : by_places) segments_[segment].needs.push_back(need);
    }
    for (auto& [segment, found] : segments_) {
      // Where they are is unknown.
      for (const size_t i : placeless) found.needs.push_back({i});
      found.is_asked = std::any_of(found.needs.begin(), found.needs.end(), [&](const Need& need) {
        return !need.several && is_asked_[need.step];
      });
    }
  }

  // Each step's records are read once, for all segments.
  void ReadNeeds() {
    std::map<size_t, std::map<uint64_t, bool>> wanted;  // by step: segments, and Need::several
    for (const auto& [segment, found] : segments_) {
      if (!found.is_asked) continue;
      for (const Need& need : found.needs) wanted[need.step][segment] = need.several;
    }
    for (const auto& [step, segments] : wanted) {
      if (ReadStep(step, segments).ok()) continue;
      for (const auto& [segment, several] : segments) segments_[segment].known = false;
    }
  }

  Status ReadStep(size_t step, const std::map<uint64_t, bool>& segments) {
    STEPWELL_ASSIGN_OR_RETURN(const auto records, StepRecords::Open(&files_, steps_[step]->place));
    STEPWELL_ASSIGN_OR_RETURN(const auto leaves, records->In(format::KeysBelow("")));
    for (const format::LeafRecord& leaf : leaves) {
      for (const format::ChunkRecord& chunk : leaf.chunks) {
        format::EachPayload(chunk, [&](const format::StoredPayload& payload) {
          const auto segment = segments.find(payload.segment);
          if (segment == segments.end()) return;
          const auto [it, is_first] = segments_[payload.segment].payloads.emplace(
              payload.offset_bytes, Payload{payload.stored_bytes, step, segment->second});
          // Two leaves of one step may share a payload, too.
          if (!is_first && it->second.step != step) it->second.shared = true;
        });
      }
    }
    return OkStatus();
  }

  std::map<uint64_t, std::optional<uint64_t>> Sum() const {
    std::vector<uint64_t> freed(steps_.size(), 0);
    for (const auto& [segment, found] : segments_) {
      for (const auto& [offset, payload] : found.payloads) {
        if (!payload.shared) freed[payload.step] += payload.stored_bytes;
      }
    }
    std::map<uint64_t, std::optional<uint64_t>> answers;
    for (size_t i = 0; i < steps_.size(); ++i) {
      if (!is_asked_[i]) continue;
      const auto& extents = steps_[i]->record.extents;
      const bool known =
          !extents.empty() && std::all_of(extents.begin(), extents.end(), [&](const auto& extent) {
            const auto it = segments_.find(extent.segment);
            return extent.stored_bytes == 0 || it == segments_.end() || it->second.known;
          });
      answers[steps_[i]->record.step] = known ? std::optional(freed[i]) : std::nullopt;
    }
    return answers;
  }

  SegmentFiles& files_;
  std::vector<const LiveStep*> steps_;
  std::vector<bool> is_asked_;  // by step
  std::map<uint64_t, SegmentNeeds> segments_;
};

}  // namespace

std::map<uint64_t, std::optional<uint64_t>> FreesBytes(SegmentFiles& files,
                                                       const LiveSteps::List& live,
                                                       const LiveSteps::List& undecided,
                                                       std::span<const uint64_t> asked) {
  return FreesBytesQuery(files, live, undecided, asked).Run();
}

}  // namespace stepwell::db
