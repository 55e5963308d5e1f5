// SPDX-License-Identifier: Apache-2.0
// The engine's operations in flight; private to db/commit/engine*.cc.
#pragma once

#include <sys/uio.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "db/commit/engine.h"
#include "io/buffer.h"

namespace stepwell::db {

struct Engine::BlockWrite final : io::Op {
  Engine* engine = nullptr;
  ReadyBlock ready;
  int64_t submitted_ns = 0;
  Segment* segment = nullptr;
  iovec vector{};
  void OnComplete() override { engine->BlockWritten(this); }
};

struct Engine::FrameWrite final : io::Op {
  Engine* engine = nullptr;
  io::AlignedBuffer buffer;
  Segment* segment = nullptr;
  int64_t submitted_ns = 0;
  iovec vector{};
  void OnComplete() override { engine->FrameWritten(this); }
};

struct Engine::SegmentSync final : io::Op {
  Engine* engine = nullptr;
  Segment* segment = nullptr;
  int64_t submitted_ns = 0;
  void OnComplete() override { engine->SegmentSynced(this); }
};

struct Engine::SlotSync final : io::Op {
  Engine* engine = nullptr;
  uint64_t commit = 0;  // that the slot names
  bool killed = false;  // something died by a commit that no earlier sync covers
  void OnComplete() override { engine->SlotSynced(); }
};

// A job whose chain frame is placed.
struct Engine::BatchEntry {
  std::shared_ptr<SaveJob> job;
  format::FramePlace place;
  LiveSteps::Change change;
};

// By number, not by address: the same run submits the same operations.
struct OlderSegment {
  bool operator()(const Segment* a, const Segment* b) const { return a->id < b->id; }
};

// Jobs that share one flush.
struct Engine::CommitBatch {
  std::vector<BatchEntry> entries;
  std::vector<std::shared_ptr<SaveJob>> repeated;  // decisions that an entry may have taken already
  std::vector<std::unique_ptr<FrameWrite>> frames;
  std::vector<std::unique_ptr<SegmentSync>> sync_ops;
  std::set<Segment*, OlderSegment> touched;
  size_t writes_left = 0;
  size_t syncs_left = 0;
  BatchTimes times;
  Status error;
  bool reached_disk = false;  // some frame, or a part of one: recovery may find it
};

}  // namespace stepwell::db
