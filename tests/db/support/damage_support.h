// SPDX-License-Identifier: Apache-2.0
// Damage to the files of a store, and what of it loads afterwards.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/db/support/store_support.h"

namespace stepwell::db {

inline std::vector<std::string> FilesIn(const std::string& directory) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

inline std::string ReadAll(const std::string& file) {
  std::string bytes(std::filesystem::file_size(file), '\0');
  const int descriptor = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  EXPECT_EQ(pread(descriptor, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  close(descriptor);
  return bytes;
}

inline void WriteOver(const std::string& file, uint64_t offset, std::string_view bytes) {
  const int descriptor = open(file.c_str(), O_WRONLY | O_CLOEXEC);
  EXPECT_EQ(pwrite(descriptor, bytes.data(), bytes.size(), static_cast<off_t>(offset)),
            static_cast<ssize_t>(bytes.size()));
  close(descriptor);
}

inline void FlipByte(const std::string& file, uint64_t offset, char mask) {
  char byte = 0;
  const int descriptor = open(file.c_str(), O_RDWR | O_CLOEXEC);
  EXPECT_EQ(pread(descriptor, &byte, 1, static_cast<off_t>(offset)), 1);
  byte = static_cast<char>(byte ^ mask);
  EXPECT_EQ(pwrite(descriptor, &byte, 1, static_cast<off_t>(offset)), 1);
  close(descriptor);
}

inline void CopyStore(const std::string& from, const std::string& to) {
  std::filesystem::remove_all(to);
  std::filesystem::copy(from, to, std::filesystem::copy_options::recursive);
}

// One leaf of a step: right, refused with an error, or wrong.
inline Status LoadLeaf(StepReader* reader, const format::LeafRecord& leaf, std::string* out) {
  out->assign(leaf.logical_bytes, '\0');
  LoadRequest request;
  request.leaf = &leaf;
  if (leaf.kind == format::LeafKind::kArray) request.box = format::WholeArray(leaf.shape);
  request.out = reinterpret_cast<std::byte*>(out->data());
  return reader->Load({&request, 1}).status();
}

inline std::string WantedBytes(const LeafSpec& spec, uint64_t seed) {
  const std::vector<float> data = LeafData(spec, seed);
  return {reinterpret_cast<const char*>(data.data()), data.size() * sizeof(float)};
}

// The readable part of a damaged store. A value is right or refused; `silent` lists values that are
// neither.
struct Survey {
  uint64_t right = 0;                // leaves
  std::vector<std::string> errors;   // of leaves and steps that were refused, in words
  std::vector<std::string> silent;   // wrong values, and steps that are missing unreported
  std::vector<VerifyProblem> found;  // by Verify
  Status open;
};

// `seeds`: step -> seed of the state that `specs` describe.
inline Survey SurveyStore(const std::string& path, const StoreOptions& options,
                          const std::map<uint64_t, uint64_t>& seeds,
                          const std::vector<LeafSpec>& specs) {
  Survey survey;
  auto store = Store::Open(path, options);
  survey.open = store.status();
  if (!store.ok()) return survey;
  const auto report = (*store)->Verify({});
  if (report.ok()) {
    survey.found = report->problems;
  } else {
    survey.errors.push_back("verify: " + report.status().ToString());
  }
  for (const auto& [step, seed] : seeds) {
    auto reader = (*store)->Read(step);
    if (!reader.ok()) {
      survey.errors.push_back(reader.status().ToString());
      if (reader.status().code() == StatusCode::kNotFound &&
          (*store)->recovery().problems.empty()) {
        survey.silent.push_back("missing: " + reader.status().ToString());
      }
      continue;
    }
    if ((*reader)->step().metadata_json != StrCat("{\"seed\": ", seed, "}")) {
      // A writer leaves out texts that it cannot read, and logs that.
      if ((*reader)->step().metadata_json.empty() && !survey.found.empty()) {
        survey.errors.push_back(StrCat("step ", step, ": no metadata"));
      } else {
        survey.silent.push_back("metadata of another step");
      }
    }
    auto leaves = (*reader)->Leaves("");
    if (!leaves.ok()) {
      survey.errors.push_back(leaves.status().ToString());
      continue;
    }
    if (leaves->size() != specs.size() + 1) survey.silent.push_back("leaves are missing");
    for (const auto& leaf : *leaves) {
      std::string bytes;
      const Status status = LoadLeaf(reader->get(), leaf, &bytes);
      if (!status.ok()) {
        survey.errors.push_back(status.ToString());
        if (survey.found.empty()) survey.silent.push_back("not verified: " + status.ToString());
        continue;
      }
      ++survey.right;
      std::string wanted = std::string(seed % 3 == 0 ? 5 : 5000, 'x') + std::to_string(seed);
      for (const LeafSpec& spec : specs) {
        if (leaf.key == KeyOf("state", spec.name)) wanted = WantedBytes(spec, seed);
      }
      if (bytes != wanted) survey.silent.push_back(StrCat("step ", step, ": a wrong value"));
    }
  }
  return survey;
}

inline StoreOptions PosixOptions() {
  StoreOptions options;
  options.disk = io::DiskKind::kPosix;
  options.threads = 1;
  options.steps_before_index = 0;  // so that there is one to damage
  return options;
}

inline StoreOptions ReaderOptions() {
  StoreOptions options = PosixOptions();
  options.read_only = true;
  return options;
}
}  // namespace stepwell::db
