// SPDX-License-Identifier: Apache-2.0
// As fuzz_store, but in a directory of the real file system, with RocksDB, io_uring and threads:
// the index's files are damaged, too. Slower by far. The directory is in TMPDIR and goes away at
// the end.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "fuzz/support/check.h"
#include "fuzz/support/edit.h"
#include "fuzz/support/exercise.h"
#include "fuzz/support/frames.h"
#include "fuzz/support/input.h"

namespace stepwell::fuzz {
namespace {

class Scratch {
 public:
  Scratch() {
    std::string name = (std::filesystem::temp_directory_path() / "stepwell-fuzz-XXXXXX").string();
    Check(mkdtemp(name.data()) != nullptr, "cannot make ", name);
    path_ = name;
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

db::Store* Open(const std::string& path, std::unique_ptr<db::Store>* store) {
  db::StoreOptions options;
  options.threads = 1;
  options.staging_bytes = uint64_t{32} << 20;
  auto opened = db::Store::Open(path, options);
  Check(opened.ok(), "making a store: ", opened.status().ToString());
  *store = std::move(*opened);
  return store->get();
}

// One store of each sort that a process can leave behind: closed, and with its index missing the
// newest steps.
struct Originals {
  Originals() {
    std::unique_ptr<db::Store> store;
    // The killed store first: a child has the threads of its store, and only the fork's thread of
    // this process.
    const pid_t child = fork();
    Check(child >= 0, "cannot fork");
    if (child == 0) {
      Open(paths[1], &store);
      for (uint64_t step = 1; step < 4; ++step) Save(store.get(), step, step * 2, &histories[1]);
      _exit(0);  // as a kill: nothing is closed
    }
    int exit_status = -1;
    Check(waitpid(child, &exit_status, 0) == child && exit_status == 0, "the child failed");
    for (uint64_t step = 1; step < 4; ++step) histories[1][step] = {SeededState(step, step * 2)};

    Open(paths[0], &store);
    for (uint64_t step = 1; step < 5; ++step) Save(store.get(), step, step, &histories[0]);
    Save(store.get(), 2, 9, &histories[0]);
    store.reset();
  }
  static void Save(db::Store* store, uint64_t step, uint64_t seed, History* history) {
    const Status status = SaveSeeded(store, step, seed, db::IfExists::kReplace, history);
    Check(status.ok(), "making a store: ", status.ToString());
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
  std::filesystem::remove_all(path);
  std::filesystem::copy(originals.paths[which], path, std::filesystem::copy_options::recursive);
  auto environment = stepwell::db::MakeEnvironment({});
  Check(environment.ok(), environment.status().ToString());
  const EditResult edits = ApplyEdits(environment->file_system, path, &input);
  Exercise(
      [&](stepwell::db::StoreOptions options) {
        options.threads = 1;
        options.staging_bytes = uint64_t{32} << 20;
        return stepwell::db::Store::Open(path, options);
      },
      originals.histories[which], edits.forged);
  return 0;
}
