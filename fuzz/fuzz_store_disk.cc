// SPDX-License-Identifier: Apache-2.0
// Does the work of fuzz_store in a directory of the real file system, with RocksDB, io_uring and
// threads, and damages the index's files, too. It is slower by far. The directory is in TMPDIR, or
// without one in memory, and goes away at the end.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "db/layout.h"
#include "db/save/plan.h"
#include "format/records.h"
#include "fuzz/support/check.h"
#include "fuzz/support/edit.h"
#include "fuzz/support/exercise.h"
#include "fuzz/support/input.h"
#include "fuzz/support/memory.h"

namespace stepwell::fuzz {
namespace {

namespace fs = std::filesystem;

fs::path ScratchRoot() {
  const fs::path in_memory = "/dev/shm";
  const bool is_free = std::getenv("TMPDIR") == nullptr && access(in_memory.c_str(), W_OK) == 0;
  return is_free ? in_memory : fs::temp_directory_path();
}

class Scratch {
 public:
  Scratch() {
    std::string name = (ScratchRoot() / "stepwell-fuzz-XXXXXX").string();
    Check(mkdtemp(name.data()) != nullptr, "cannot make ", name);
    path_ = name;
  }
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

Result<std::unique_ptr<db::Store>> OpenSmall(const std::string& path, db::StoreOptions options) {
  options.threads = 1;
  options.staging_bytes = 6 * db::kBlockBytes;
  options.segment_bytes = uint64_t{192} << 10;
  return db::Store::Open(path, options);
}

void Must(const Status& status) { Check(status.ok(), "making a store: ", status.ToString()); }

// A store with a step that was replaced, one that was deleted, one that is pinned. The last change
// is a save.
std::unique_ptr<db::Store> MakeOriginal(const std::string& path, uint64_t factor,
                                        History* history) {
  auto store = OpenSmall(path, {});
  Must(store.status());
  const auto save = [&](uint64_t step, uint64_t seed) {
    Must(SaveSeeded(store->get(), step, seed, db::IfExists::kReplace, history));
  };
  for (uint64_t step = 1; step < 4; ++step) save(step, step * factor);
  Must(PinStep(store->get(), 1, true, history));
  Must(DeleteStep(store->get(), 3, history));
  save(2, 8 + factor);
  return std::move(*store);
}

// STEPWELL names the newest commit when its write, for which no save waits, is done.
void WaitForSlot(db::Store* store) {
  const auto newest = store->Read(2);
  Must(newest.status());
  for (int tries = 0; tries < 10'000; ++tries) {
    std::ifstream file(db::SlotFilePath(store->path()), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    for (uint64_t at = 0; at + format::kSlotBytes <= bytes.size(); at += format::kSlotBytes) {
      const auto slot = format::DecodeSlot(AsBytes(bytes).subspan(at, format::kSlotBytes));
      if (slot.ok() && slot->durable_commit >= (*newest)->step().commit) return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  Check(false, "STEPWELL does not name the newest commit");
}

// One store of each sort that a process can leave behind: closed, and with its index missing the
// newest steps.
struct Originals {
  Originals() {
    // The killed store first: a child has the threads of its store, and only the fork's thread of
    // this process.
    const pid_t child = fork();
    Check(child >= 0, "cannot fork");
    if (child == 0) {
      const auto store = MakeOriginal(paths[1], 1, &histories[1]);
      WaitForSlot(store.get());
      _exit(0);  // as a kill: nothing is closed
    }
    int exit_status = -1;
    Check(waitpid(child, &exit_status, 0) == child && exit_status == 0, "the child failed");
    // Records the history that the child wrote.
    MakeOriginal(scratch.path() + "/again", 1, &histories[1]).reset();
    MakeOriginal(paths[0], 2, &histories[0]).reset();
    // 16 MiB that an open makes again.
    for (const std::string& path : paths) fs::remove(db::BallastFilePath(path));
  }

  Scratch scratch;
  const std::string paths[2] = {scratch.path() + "/closed", scratch.path() + "/killed"};
  History histories[2];
};

}  // namespace
}  // namespace stepwell::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stepwell::fuzz;
  static const Originals originals;
  Input input(data, size);
  const uint64_t which = input.Below(2);
  const std::string path = originals.scratch.path() + "/work";
  fs::remove_all(path);
  fs::copy(originals.paths[which], path, fs::copy_options::recursive);
  auto environment = stepwell::db::MakeEnvironment({});
  Check(environment.ok(), environment.status().ToString());
  const EditResult edits = ApplyEdits(environment->file_system, path, &input);
  const MemoryLimit limit(edits.input_bytes, {size_t{32} << 20, 16}, {size_t{512} << 20, 512});
  Exercise([&](stepwell::db::StoreOptions options) { return OpenSmall(path, std::move(options)); },
           originals.histories[which], DamageOf(edits, true));
  return 0;
}
