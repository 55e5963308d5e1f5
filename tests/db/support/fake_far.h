// SPDX-License-Identifier: Apache-2.0
// A FarSource whose boxes lie in memory of the test's, and which counts what is asked of it.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "db/store.h"

namespace stepwell::db {

class FakeFar final : public FarSource {
 public:
  // Takes the place of a shard's memory: the shard is this source's from now on.
  void Take(ShardInput* shard, uint64_t bytes) {
    shard->far = static_cast<uint32_t>(boxes_.size());
    boxes_.push_back(
        {{std::exchange(shard->data, nullptr), std::move(shard->strides_bytes)}, bytes});
    shard->strides_bytes.clear();
  }

  Status Start(std::span<const uint32_t> boxes) override {
    const std::lock_guard lock(mutex_);
    for (const uint32_t box : boxes) {
      order_.push_back(box);
      there_.insert(box);
      there_bytes_ += boxes_.at(box).bytes;
    }
    peak_bytes_ = std::max(peak_bytes_, there_bytes_);
    changed_.notify_all();
    return OkStatus();
  }
  Status Wait(std::span<const uint32_t> boxes, std::vector<Copy>* copies) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !held_; });
    for (const uint32_t box : boxes) {
      if (!there_.contains(box)) return InternalError("waited for, and not started");
      if (box == broken_) return InternalError("the device is gone");
      copies->push_back(boxes_.at(box).copy);
    }
    return OkStatus();
  }
  Status Release(std::span<const uint32_t> boxes) override {
    const std::lock_guard lock(mutex_);
    for (const uint32_t box : boxes) {
      if (there_.erase(box) != 0) there_bytes_ -= boxes_.at(box).bytes;
    }
    return OkStatus();
  }

  // The box whose copy fails.
  void Break(uint32_t box) { broken_ = box; }
  // Copies are not done before Hold(false).
  void Hold(bool held) {
    const std::lock_guard lock(mutex_);
    held_ = held;
    changed_.notify_all();
  }
  std::vector<uint32_t> order() const {
    const std::lock_guard lock(mutex_);
    return order_;
  }
  uint64_t there_bytes() const {
    const std::lock_guard lock(mutex_);
    return there_bytes_;
  }
  uint64_t peak_bytes() const {
    const std::lock_guard lock(mutex_);
    return peak_bytes_;
  }

 private:
  struct Box {
    Copy copy;
    uint64_t bytes = 0;
  };
  std::vector<Box> boxes_;
  std::optional<uint32_t> broken_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false;
  std::vector<uint32_t> order_;  // of starts
  std::set<uint32_t> there_;
  uint64_t there_bytes_ = 0;
  uint64_t peak_bytes_ = 0;
};

}  // namespace stepwell::db
