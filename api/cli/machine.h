// SPDX-License-Identifier: Apache-2.0
// What a directory's machine offers a store, and what of it will hurt: for `stepwell doctor`.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/disk.h"
#include "io/result.h"

namespace stepwell::cli {

struct Warning {
  std::string code;  // stable, for programs
  std::string message;
};

struct UringFacts {
  bool available = false;
  std::string reason;               // why not
  bool registered_buffers = false;  // within RLIMIT_MEMLOCK
};

struct FileSystemFacts {
  std::string type;  // "ext4"
  std::string mount_point;
  std::string source;
  std::vector<std::string> options;  // of the mount and of the file system, each once
  bool direct_io = false;
  io::Alignment alignment;
  uint32_t block_bytes = 0;
  bool punch_hole = false;
  bool locks = false;  // open-file-description locks
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;  // for this user

  bool Has(const std::string& option) const;
};

// nullopt: unlimited.
struct LimitFacts {
  std::optional<uint64_t> memlock_bytes;
  std::optional<uint64_t> file_bytes;
  std::optional<uint64_t> address_space_bytes;
  std::optional<uint64_t> open_files;
};

struct MachineFacts {
  std::string kernel;  // "Linux 6.1.0 x86_64"
  uint64_t cores = 0;  // that this process may use
  uint64_t memory_bytes = 0;
  uint64_t memory_available_bytes = 0;
  std::optional<uint64_t> cgroup_memory_bytes;
  UringFacts uring;
  LimitFacts limits;
};

// A file in `directory` whose name is gone already, so that nothing stays behind, whatever happens.
Result<std::unique_ptr<io::File>> OpenNamelessFile(const std::string& directory);

MachineFacts LookAtMachine();
// `file`: of OpenNamelessFile in `directory`.
Result<FileSystemFacts> LookAtFileSystem(const std::string& directory, io::File* file);
// In words, the worst first.
std::vector<Warning> WarningsAbout(const MachineFacts& machine, const FileSystemFacts& file_system);

}  // namespace stepwell::cli
