// SPDX-License-Identifier: Apache-2.0
// Picks the implementations: io_uring by probing, posix where it is forbidden or missing.
#pragma once

#include <memory>

#include "io/disk.h"
#include "io/log.h"

namespace stepwell::io {

enum class DiskKind { kAuto, kUring, kPosix };

struct DiskOptions {
  DiskKind kind = DiskKind::kAuto;  // kAuto obeys STEPWELL_DISK=uring|posix, then probes
  unsigned depth = 32;
  LogSink log;  // one kInfo line when io_uring cannot be used, with the reason
};

// kInvalidArgument when STEPWELL_DISK has another value; kUnimplemented when uring was forced and
// cannot be had (the message has the reason).
Result<std::unique_ptr<Disk>> OpenDisk(const DiskOptions& options);

// OpenDisk chooses from these disks. This one uses io_uring. An error has the reason of the
// kernel's refusal (and its errno).
Result<std::unique_ptr<Disk>> MakeUringDisk(unsigned depth);
// Disk on a few blocking threads: where io_uring is forbidden or missing, and the reference that
// the io_uring one is compared with. An error when the system has not even one thread to give.
Result<std::unique_ptr<Disk>> MakePosixDisk();
// The same on so many threads, for files whose reads wait for something else than a device.
Result<std::unique_ptr<Disk>> MakeBlockingDisk(size_t thread_count);
// The same on the thread that submits: Submit blocks.
Result<std::unique_ptr<Disk>> MakeInlineDisk();

// The machine's own file system; a process-wide instance.
FileSystem* LocalFileSystem();

}  // namespace stepwell::io
