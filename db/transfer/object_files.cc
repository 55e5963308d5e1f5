// SPDX-License-Identifier: Apache-2.0
#include "db/transfer/object_files.h"

#include <cstring>
#include <utility>
#include <vector>

namespace stepwell::db {
namespace {

// An object to read, of which nothing else can be asked. (Each of its names has one content.)
class ObjectFile final : public io::File {
 public:
  ObjectFile(std::string path, std::shared_ptr<RunObjects> objects,
             const format::DataObject& object)
      : File(std::move(path), std::make_shared<io::Freeze>()),
        objects_(std::move(objects)),
        name_(format::DataObjectName(object)),
        size_bytes_(object.size_bytes) {}

  Result<size_t> ReadAt(uint64_t offset, MutableBytes out) override {
    auto count = objects_->Read(name_, offset, out);
    if (!count.ok()) return count.status().WithContext(path());
    return count;
  }
  Result<io::FileInfo> Info() override {
    io::FileInfo info;
    info.size_bytes = info.allocated_bytes = size_bytes_;
    return info;
  }
  io::Alignment alignment() const override { return {}; }

  Status WriteAt(uint64_t, ConstBytes) override { return Refused(); }
  Status Sync() override { return Refused(); }
  Status Allocate(uint64_t, uint64_t) override { return Refused(); }
  Status PunchHole(uint64_t, uint64_t) override { return Refused(); }
  Status Truncate(uint64_t) override { return Refused(); }
  Result<bool> TryLock(io::LockKind) override { return Refused(); }
  Status Unlock() override { return Refused(); }
  Result<bool> LockedByOther() override { return Refused(); }

 private:
  Status Refused() const { return FailedPreconditionError(path() + ": objects are only read"); }

  const std::shared_ptr<RunObjects> objects_;
  const std::string name_;
  const uint64_t size_bytes_;
};

// The names are hashes, so any eight bytes of one tell it from the others of a run.
uint64_t NumberOf(const format::DataObject& object) {
  uint64_t number = 0;
  std::memcpy(&number, object.sha256.data(), sizeof number);
  return number ^ object.salt;
}

}  // namespace

ObjectFiles::ObjectFiles(std::shared_ptr<RunObjects> objects)
    : SegmentFiles(nullptr, objects->name()), objects_(std::move(objects)) {}

Result<std::shared_ptr<const void>> ObjectFiles::Number(format::PushedStep* step) {
  auto held = std::make_shared<std::vector<Object>>();
  {
    const io::MutexLock lock(&mutex_);
    std::erase_if(by_number_, [](const auto& each) { return each.second.expired(); });
    for (const format::DataObject& object : step->objects) {
      std::weak_ptr<const format::DataObject>& known = by_number_[NumberOf(object)];
      Object same = known.lock();
      if (same == nullptr) {
        same = std::make_shared<const format::DataObject>(object);
        known = same;
      }
      if (*same != object) return DataLossError("two objects with one number");
      held->push_back(std::move(same));
    }
  }
  for (format::LeafRecord& leaf : step->leaves) {
    for (format::ChunkRecord& chunk : leaf.chunks) {
      format::EachPayload(chunk, [step](format::StoredPayload& payload) {
        payload.segment = NumberOf(step->objects[payload.segment]);
      });
    }
  }
  return std::shared_ptr<const void>(std::move(held));
}

ObjectFiles::Object ObjectFiles::Find(uint64_t segment) const {
  const io::MutexLock lock(&mutex_);
  const auto found = by_number_.find(segment);
  return found == by_number_.end() ? nullptr : found->second.lock();
}

std::string ObjectFiles::PathOf(uint64_t segment) const {
  const Object object = Find(segment);
  if (object == nullptr) return objects_->name();
  return StrCat(objects_->name(), "/data/", format::DataObjectName(*object));
}

void ObjectFiles::DropCached(uint64_t segment) {
  if (const Object object = Find(segment)) objects_->DropCached(format::DataObjectName(*object));
}

Result<std::unique_ptr<io::File>> ObjectFiles::Open(uint64_t segment) {
  const Object object = Find(segment);
  if (object == nullptr) return NotFoundError("an object that no list names");
  return std::unique_ptr<io::File>(
      std::make_unique<ObjectFile>(PathOf(segment), objects_, *object));
}

}  // namespace stepwell::db
