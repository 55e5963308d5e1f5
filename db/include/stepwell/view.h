// SPDX-License-Identifier: Apache-2.0
// A directory in which every committed step is an Orbax checkpoint: it appears when the step is
// committed and goes when the step does. The checkpoints are whole: clones or hard links of the
// store's bytes where the file system can, else copies; so a copy of one is its own.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include <stepwell/export.h>
#include <stepwell/log.h>
#include <stepwell/orbax_export.h>
#include <stepwell/reports.h>
#include <stepwell/result.h>

namespace stepwell {

struct ViewOptions {
  // Shapes the checkpoints: layout, leaves, zarr_format, items, step_prefix, step_digits,
  // unnamed_default, file_mode. Every layout has one directory a step, named as in the root of a
  // CheckpointManager. A step that on_unsupported does not let pass is not shown.
  ExportOptions checkpoint{};
  // The store lies in the view's directory, as ".stepwell" or ".stepwell-NAME", among files and
  // directories of any programs, which stay as they are: a step whose name one of them has is not
  // shown. Only a store that is open for writing has such a view. The directory can be moved and
  // copied as a whole, and the store goes on with the view wherever it is then.
  bool beside = false;
  // The interval at which a store is polled that is read-only, or shared by several processes.
  // Other processes send no notifications.
  std::chrono::milliseconds poll{200};
  LogSink log{};
};

// Works on a thread of its own; nothing of it ever fails or delays a save. Errors are logged,
// counted, and tried again. Thread-safe. Closed with its store; the next open for writing serves it
// again.
class STEPWELL_API View {
 public:
  View() = default;
  View(const View&) = delete;
  View& operator=(const View&) = delete;
  virtual ~View();

  // Waits until the directory has what was committed when this was called, as far as it can have
  // it. False: not within `timeout`, or `keep_waiting`, which is asked about every 100 ms on this
  // thread, said so. (Calls in short turns would each wait for a look of their own.)
  virtual Result<bool> WaitUntilCurrent(std::chrono::milliseconds timeout,
                                        const std::function<bool()>& keep_waiting) = 0;
  Result<bool> WaitUntilCurrent(std::chrono::milliseconds timeout) {
    return WaitUntilCurrent(timeout, nullptr);
  }
  // Nothing more is made: what is being made is given up within a few chunks, and Close ends soon.
  // Deleted steps are still removed.
  virtual void StopMaking() = 0;
  // Shows what is committed now, then ends. Without `keep` it removes the steps' directories,
  // except those that readers hold, and the directory stops being a view. Idempotent.
  virtual Status Close(bool keep) = 0;

  virtual const std::string& path() const = 0;
  // Returns the path of a step's directory, whether the step is shown or not.
  virtual std::string PathOf(uint64_t step) const = 0;
  virtual ViewStats Stats() const = 0;
};

}  // namespace stepwell
