// SPDX-License-Identifier: Apache-2.0
// Reports for people which steps the rules of a store keep, and which the next save removes. Pure.
// Also reads and writes the file that tells other processes the rules of the last writer.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <stepwell/reports.h>

#include "db/commit/retention.h"
#include "db/log/recovery.h"
#include "io/disk.h"
#include "io/result.h"

namespace stepwell::db {

KeepCandidate CandidateOf(const LiveStep& live);

// "the 2 steps with the lowest "loss"".
std::string DescribeRule(const KeepRule& rule);

// `candidates` ascend by step. The next save is taken to have the next number, the size of the
// newest step and no metrics. With `lost` frames nothing is deleted.
RetentionReport ReportRetention(std::vector<KeepRule> rules, std::vector<KeepCandidate> candidates,
                                bool lost);

// The rules that a writer has applied, and the newest commit before it.
struct AppliedRules {
  uint64_t since = 0;
  std::vector<KeepRule> rules;
};
// The rules of the last process that saved; none where no process had any. The errors are those of
// what another version, or another program, wrote.
Result<AppliedRules> ReadRules(io::FileSystem* file_system, const std::string& store_path);
// Not synced: what a power cut leaves of it is none of the store's promises.
Status WriteRules(io::FileSystem* file_system, const std::string& store_path,
                  const AppliedRules& applied);

}  // namespace stepwell::db
