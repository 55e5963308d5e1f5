// SPDX-License-Identifier: Apache-2.0
// Locates the bytes of an Orbax item: its small files, and the values of its arrays by key, in an
// OCDBT database or as files of their own. Private to db/.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "db/export/orbax/digests.h"
#include "io/disk.h"
#include "io/result.h"

namespace stepwell::db::import {

// A value: bytes that are in the index itself, or a range of a file, which has not been read.
struct ValuePlace {
  static constexpr uint32_t kInline = UINT32_MAX;
  uint32_t file = kInline;  // of ValueIndex::path
  uint64_t offset_bytes = 0;
  uint64_t length_bytes = 0;
  std::string_view inline_value;  // lives as long as the ValueIndex
};

// The keys of one item. One thread at a time.
class ValueIndex {
 public:
  // With `is_ocdbt` reads all nodes of the newest version of `folder`/manifest.ocdbt; files that it
  // names are below `folder`. Else `folder`/KEY is the value of KEY.
  static Result<std::unique_ptr<ValueIndex>> Open(io::FileSystem* file_system,
                                                  const std::string& folder, bool is_ocdbt);

  // Nothing when there is no such key. kInvalidArgument: a key that would leave the folder.
  Result<std::optional<ValuePlace>> Find(std::string_view key);
  // The bytes of a small value.
  Result<std::string> Read(const ValuePlace& place);
  // For messages: where a value is, or would be.
  std::string Describe(const ValuePlace& place) const;
  std::string DescribeAbsent(std::string_view key) const;

  const std::vector<std::string>& paths() const { return paths_; }

  // Sets the digests that the chunks of an export must have, by the paths of their files.
  void SetDigests(std::shared_ptr<const std::map<std::string, DataDigest>> digests) {
    digests_ = std::move(digests);
  }
  // Null where nothing is known of the value. Thread-safe.
  const ChunkDigest* DigestOf(const ValuePlace& place) const;

 private:
  // Keys ascend, and lie one behind another in text_.
  struct Entry {
    size_t key_offset = 0;
    uint32_t key_bytes = 0;
    uint32_t file = ValuePlace::kInline;
    uint64_t offset_bytes = 0;  // in text_ for inline values
    uint64_t length_bytes = 0;
  };

  ValueIndex(io::FileSystem* file_system, std::string folder, bool is_ocdbt)
      : file_system_(file_system), folder_(std::move(folder)), is_ocdbt_(is_ocdbt) {}
  Status Fill();
  uint32_t FileOf(const std::string& path);
  std::string_view KeyOf(const Entry& entry) const {
    return std::string_view(text_).substr(entry.key_offset, entry.key_bytes);
  }

  io::FileSystem* const file_system_;
  const std::string folder_;
  const bool is_ocdbt_;
  std::vector<std::string> paths_;
  std::unordered_map<std::string, uint32_t> files_;
  std::vector<Entry> entries_;
  std::string text_;
  std::shared_ptr<const std::map<std::string, DataDigest>> digests_;
};

}  // namespace stepwell::db::import
