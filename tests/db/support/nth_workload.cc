// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstring>
#include <optional>

#include "db/export/archive/archive.h"
#include "db/import/import.h"
#include "db/view/view.h"
#include "tests/db/support/big_state.h"
#include "tests/db/support/group_support.h"
#include "tests/db/support/nth.h"
#include "tests/db/support/nth_state.h"

namespace stepwell::db::nth {
namespace {

using soak::Change;

class Workload {
 public:
  Workload(const std::string& folder, io::DiskKind disk, const Fault& fault, int out)
      : path_(folder + "/store"),
        group_(folder + "/group"),
        view_path_(folder + "/view"),
        exports_(folder + "/exports"),
        disk_(disk),
        fault_(fault),
        out_(out) {}

  void Run() {
    Open(/*read_only=*/false);
    for (uint64_t step = 0; step < 3; ++step) Save(step, 100 + step);
    Save(1, 201);
    Make({Change::Kind::kPin, 0, 0});
    Check();
    Make({Change::Kind::kDelete, 2, 0});
    Save(3, 103);
    ShowInView();
    ExportStep(3, ExportMode::kCopy);
    ExportStep(1, ExportMode::kLink);
    ExportArchiveOf(3);
    Import();
    SaveAndDeleteItem();
    SendRequests();
    Use([&] { return store_->Reclaim().status(); });
    Use([&] { return store_->Verify({}).status(); });
    Use([&] { return store_->Repair(/*accept_losses=*/true).status(); });
    Use([&] {
      store_->Stats();
      return store_->Wait();
    });
    Make({Change::Kind::kUnpin, 0, 0});
    Make({Change::Kind::kDelete, 0, 0});
    Close();
    Open(/*read_only=*/true);
    Check();
    Use([&] { return store_->Verify({}).status(); });
    Close();
    Open(/*read_only=*/false);
    Save(4, 104);
    Check();
    if (fault_.kind == Fault::Kind::kMemory) SaveBig();
    Close();
    SaveAsGroup();
    PrintLine(StrCat("done ", Counted()));
  }

 private:
  // One write: a line is there whole or not at all, also when this process is killed.
  void PrintLine(const std::string& text) {
    const std::string line = text + "\n";
    if (write(out_, line.data(), line.size()) < 0) _exit(3);
  }

  // Returns the status of a call, or of the exception that it threw. Turning an exception into an
  // error is a task of the caller's side of an interface (api/c, api/python).
  template <typename Call>
  Status Of(Call&& call, bool has_json = false) {
    // nlohmann's JSON ends the process where its destructor has no memory, here and there.
    std::optional<StoresOwn> own;
    if (!has_json || fault_.kind != Fault::Kind::kAlloc) own.emplace();
    try {
      return call();
    } catch (const std::bad_alloc&) {
      threw_ = true;
    }
    return OkStatus();
  }
  template <typename Call>
  void Use(Call&& call) {
    if (store_ != nullptr) Try(call);
  }
  template <typename Call>
  void Try(Call&& call) {
    Of(call).IgnoreError("it changes nothing that is looked for");
    threw_ = false;
  }

  void Open(bool read_only) {
    StoreOptions options = OptionsOf(disk_);
    options.read_only = read_only;
    const Status status = Of([&] {
      auto store = Store::Open(path_, options);
      if (store.ok()) store_ = std::move(*store);
      return store.status();
    });
    PrintLine(threw_ ? "open threw" : "open " + status.ToString());
    threw_ = false;
  }

  void Close() {
    if (store_ == nullptr) return;
    const Status status = Of([&] { return store_->Close(); });
    PrintLine(threw_ ? "close threw" : "close " + status.ToString());
    threw_ = false;
    const StoresOwn own;
    store_.reset();
  }

  // `change` is there, is not, or nobody knows.
  void Outcome(const Status& status) {
    if (std::exchange(threw_, false)) {
      PrintLine("unknown it threw");
    } else if (status.ok()) {
      PrintLine("ok");
    } else {
      PrintLine((status.code() == StatusCode::kOutcomeUnknown ? "unknown " : "no ") +
                status.ToString());
    }
  }
  void Begin(const Change& change) {
    PrintLine(StrCat("begin ", static_cast<int>(change.kind), " ", change.step, " ", change.seed));
  }

  void SaveRequested(const Change& change, SaveRequest request) {
    if (store_ == nullptr) return;
    Begin(change);
    request.if_exists = IfExists::kReplace;
    Outcome(Of([&] {
      const auto handle = store_->Save(std::move(request));
      return handle.ok() ? handle->Wait() : handle.status();
    }));
  }
  void Save(uint64_t step, uint64_t seed) {
    std::vector<std::vector<float>> scratch;
    scratch.reserve(Leaves().size());
    SaveRequested({Change::Kind::kSave, step, seed}, MakeRequest(step, seed, Leaves(), &scratch));
  }

  // Copied, not held: with the copy it is more than the process may have, or about that.
  void SaveBig() {
    SaveRequest request = BigRequest(kBig, fault_.n << 19);
    request.items[0].leaves[0].hold.reset();
    const std::vector<uint32_t> data = BigData(kBig, fault_.n << 19);
    request.items[0].leaves[0].data = reinterpret_cast<const std::byte*>(data.data());
    request.metadata_json = StrCat("{\"seed\": ", fault_.n << 19, "}");
    SaveRequested({Change::Kind::kSave, kBig, fault_.n << 19}, std::move(request));
  }

  void Make(const Change& change) { MakeThrough(store_.get(), change); }
  void MakeThrough(Store* store, const Change& change) {
    if (store == nullptr) return;
    Begin(change);
    Outcome(Of([&] {
      return change.kind == Change::Kind::kDelete
                 ? store->Delete({&change.step, 1})
                 : store->SetPinned({&change.step, 1}, change.kind == Change::Kind::kPin);
    }));
  }

  // A step of two items, then without the second: a change of the step like a replacement.
  void SaveAndDeleteItem() {
    std::vector<std::vector<float>> scratch;
    scratch.reserve(Leaves().size());
    SaveRequest request = MakeRequest(kOfItems, 110, Leaves(), &scratch);
    ItemInput extra;
    extra.name = "extra";
    LeafInput leaf;
    leaf.record.key = KeyOf("extra", "text");
    leaf.record.kind = format::LeafKind::kValue;
    leaf.record.value_type = format::ValueType::kStr;
    leaf.value = "more";
    extra.leaves.push_back(std::move(leaf));
    request.items.push_back(std::move(extra));
    SaveRequested({Change::Kind::kSave, kOfItems, 110 + kWithExtra}, std::move(request));
    if (store_ == nullptr) return;
    Begin({Change::Kind::kSave, kOfItems, 110});
    const std::vector<std::string> items = {"extra"};
    Outcome(Of([&] { return store_->DeleteItems(kOfItems, items); }));
  }

  // The same changes, asked of the writer by a second store.
  void SendRequests() {
    if (store_ == nullptr) return;
    StoreOptions options = OptionsOf(disk_);
    options.through_writer = true;
    options.create = false;
    std::unique_ptr<Store> beside;
    Of([&] {
      auto opened = Store::Open(path_, options);
      if (opened.ok()) beside = std::move(*opened);
      return opened.status();
    }).IgnoreError("then the rest is left out");
    threw_ = false;
    MakeThrough(beside.get(), {Change::Kind::kPin, 1, 0});
    MakeThrough(beside.get(), {Change::Kind::kUnpin, 1, 0});
    MakeThrough(beside.get(), {Change::Kind::kDelete, kOfItems, 0});
    Use([&] { return beside != nullptr ? beside->Reclaim().status() : OkStatus(); });
    const StoresOwn own;
    beside.reset();
  }

  // The thread of a view makes JSON, whose destructor ends the process where it has no memory.
  void ShowInView() {
    if (fault_.kind == Fault::Kind::kAlloc) return;
    Use([&]() -> Status {
      STEPWELL_ASSIGN_OR_RETURN(const auto view, OpenView(*store_, view_path_, {}));
      // One that fails tries again later: that is not waited for.
      return view->WaitUntilCurrent(std::chrono::milliseconds(200)).status();
    });
  }

  void ExportArchiveOf(uint64_t step) {
    if (store_ == nullptr) return;
    ArchiveOptions options;
    options.on_unsupported = OnUnsupported::kSkip;  // the text
    const std::string name = StrCat("archive", step);
    const Status status =
        Of([&] { return ExportArchive(*store_, step, exports_ + "/" + name, options).status(); },
           /*has_json=*/true);
    if (!std::exchange(threw_, false) && status.ok()) PrintLine("archived " + name);
  }

  // Two parts of a group in one process: a step that is committed, and one that is aborted.
  void SaveAsGroup() {
    std::optional<GroupStores> group;
    Of([&] {
      auto opened = GroupStores::Open(group_, 2, OptionsOf(disk_));
      if (opened.ok()) group.emplace(std::move(*opened));
      return opened.status();
    }).IgnoreError("then the rest is left out");
    threw_ = false;
    if (group) {
      PrintLine("group begin");
      Status status = Of([&]() -> Status {
        STEPWELL_RETURN_IF_ERROR(group->PrepareAll(1, 1));
        return group->part(0)->Decide(Commit(1, 1)).status();
      });
      // A decision that threw may have been made.
      if (std::exchange(threw_, false)) status = {StatusCode::kOutcomeUnknown, "it threw"};
      const bool unknown = status.code() == StatusCode::kOutcomeUnknown;
      PrintLine(status.ok() ? "group ok" : unknown ? "group unknown" : "group no");
      Try([&]() -> Status {
        STEPWELL_RETURN_IF_ERROR(group->PrepareAll(2, 2));
        return group->DecideAll(Abort(2, 2)).status();
      });
      Try([&] { return group->Close(); });
    }
    const StoresOwn own;
    group.reset();
  }

  void ExportStep(uint64_t step, ExportMode mode) {
    if (store_ == nullptr) return;
    const std::string name = StrCat("export", step);
    ExportOptions options;
    options.mode = mode;
    const std::string place = exports_ + "/" + name;
    const Status status = Of([&] { return Export(*store_, step, place, options).status(); },
                             /*has_json=*/true);
    if (!std::exchange(threw_, false) && status.ok()) PrintLine("exported " + name);
  }

  // A load gives the right values, or an error that blames the injected failure, not the store.
  void Check() {
    if (store_ == nullptr) return;
    std::vector<format::StepRecord> steps;
    if (!Of([&] {
           auto listed = store_->Steps();
           if (listed.ok()) steps = std::move(*listed);
           return listed.status();
         }).ok()) {
      return;
    }
    threw_ = false;
    for (const format::StepRecord& summary : steps) {
      const uint64_t step = summary.step;
      if (step >= kImported) continue;
      const Status status = Of([&] {
        STEPWELL_ASSIGN_OR_RETURN(const auto reader, store_->Read(step));
        const std::string& text = reader->step().metadata_json;  // {"seed": N}
        if (text.size() < 10) return InternalError("no metadata");
        return CheckSeeded(reader.get(), std::stoull(text.substr(9)), Leaves());
      });
      if (std::exchange(threw_, false)) continue;
      if (status.code() == StatusCode::kInternal || status.code() == StatusCode::kDataLoss ||
          status.code() == StatusCode::kNotFound) {
        PrintLine(StrCat("wrong: loading step ", step, ": ", status.ToString()));
      }
    }
  }

  void Import() {
    if (store_ == nullptr) return;
    SaveRequest request;
    const Status status = Of(
        [&] {
          STEPWELL_ASSIGN_OR_RETURN(
              const auto checkpoint,
              OrbaxCheckpoint::Open(io::LocalFileSystem(), exports_ + "/export3"));
          ImportOptions options;
          options.threads = 2;
          STEPWELL_ASSIGN_OR_RETURN(request, ImportRequest(checkpoint, kImported, options));
          return OkStatus();
        },
        /*has_json=*/true);
    if (std::exchange(threw_, false) || !status.ok()) return;
    SaveRequested({Change::Kind::kSave, kImported, 103}, std::move(request));
  }

  const std::string path_, group_, view_path_, exports_;
  const io::DiskKind disk_;
  const Fault fault_;
  const int out_;
  bool threw_ = false;
  std::unique_ptr<Store> store_;
};

// RocksDB is not made for exceptions: where its own functions have no memory they end the process,
// which then counts as killed. Says "crash", and whose, and waits to be looked at.
int g_out = -1;

bool IsInRocks(void* const* frames, int count) {
  for (int i = 0; i < count; ++i) {
    Dl_info info{};
    if (dladdr(frames[i], &info) == 0 || info.dli_fname == nullptr) continue;
    if (std::strstr(info.dli_fname, "librocksdb") != nullptr) return true;
  }
  return false;
}

void ReportCrash(int) {
  void* frames[64];
  const char* const line = IsInRocks(frames, backtrace(frames, 64)) ? "crash rocksdb\n" : "crash\n";
  if (write(g_out, line, std::strlen(line)) < 0) _exit(3);
  kill(getpid(), SIGSTOP);
  for (;;) pause();
}

}  // namespace

void RunWorkload(const std::string& folder, io::DiskKind disk, const Fault& fault, int out) {
  g_out = out;
  void* frame = nullptr;
  backtrace(&frame, 1);  // which loads what it needs
  for (const int signal_number : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) {
    signal(signal_number, ReportCrash);
  }
  Workload workload(folder, disk, fault, out);
  if (!Arm(fault)) _exit(4);
  workload.Run();
}

}  // namespace stepwell::db::nth
