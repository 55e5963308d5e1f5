// SPDX-License-Identifier: Apache-2.0
// Stores that cp, rsync or mv took while a writer saved, or over an older copy. Files are copied
// one after the other, at different times: what a copy gives is right, and what it lacks is named.
#include <algorithm>
#include <atomic>
#include <fstream>
#include <iostream>
#include <random>
#include <set>

#include "tests/db/support/reclaim_support.h"

namespace stepwell::db {
namespace {

const std::vector<LeafSpec> kLeaves = {{"w", {40, 1000}, true, false}, {"b", {100}, false, false}};

// The versions of each step, oldest first; none: deleted.
using Versions = std::map<uint64_t, std::vector<std::optional<uint64_t>>>;

// Copies as cp and rsync do: file after file, in no order that the store knows of, a piece at a
// time.
void CopyFiles(const std::string& from, const std::string& to, std::mt19937_64* random) {
  std::vector<std::string> names;
  std::error_code gone;
  for (fs::recursive_directory_iterator it(from, gone), end; it != end; it.increment(gone)) {
    if (it->is_regular_file(gone)) names.push_back(fs::relative(it->path(), from).string());
  }
  std::shuffle(names.begin(), names.end(), *random);
  for (const std::string& name : names) {
    std::ifstream in(from + "/" + name, std::ios::binary);
    if (!in) continue;  // vanished, of which they only warn
    fs::create_directories(fs::path(to + "/" + name).parent_path());
    std::ofstream out(to + "/" + name, std::ios::binary | std::ios::trunc);
    std::vector<char> piece(size_t{1} << 16);
    while (in.read(piece.data(), static_cast<std::streamsize>(piece.size())) || in.gcount() > 0) {
      out.write(piece.data(), in.gcount());
      if ((*random)() % 8 == 0) std::this_thread::yield();
    }
  }
}

class CopiedTest : public ReclaimTest {
 protected:
  StoreOptions SmallOptions() {
    StoreOptions options = Options();
    options.segment_bytes = 1 << 20;
    return options;
  }

  // Saves, replaces and deletes, so that segments fill, die, and are recycled. Only this thread
  // changes `versions_`; the lock is for those that look.
  void ChangeOnce(Store* store, std::mt19937_64* random) {
    std::vector<uint64_t> live;
    for (const auto& [step, versions] : versions_) {
      if (versions.back().has_value()) live.push_back(step);
    }
    const uint64_t what = (*random)() % 4;
    if (what == 0 && live.size() > 6) {
      const std::vector<uint64_t> chosen{live[(*random)() % live.size()]};
      Note(chosen[0], std::nullopt, [&] { return store->Delete(chosen); });
      return;
    }
    const uint64_t step = what == 1 && !live.empty() ? live[(*random)() % live.size()] : next_++;
    const uint64_t seed = ++seeds_;
    Note(step, seed, [&] {
      const auto handle = SaveSeeded(store, step, seed, kLeaves, IfExists::kReplace);
      return handle.ok() ? handle->Wait() : handle.status();
    });
  }

  template <typename Change>
  void Note(uint64_t step, std::optional<uint64_t> version, const Change& change) {
    {
      const std::lock_guard lock(mutex_);
      versions_[step].push_back(version);  // it may be seen from now on
    }
    EXPECT_OK(change());
    const std::lock_guard lock(mutex_);
    acknowledged_[step] = versions_[step].size();
  }

  // Returns for each step how many of its versions were acknowledged.
  std::map<uint64_t, size_t> Acknowledged() {
    const std::lock_guard lock(mutex_);
    return acknowledged_;
  }

  // "" when `copy` gives each step in a version that is none before the one acknowledged in
  // `before`, or an error, and names what is missing.
  std::string Look(const std::string& copy, bool read_only,
                   const std::map<uint64_t, size_t>& before) {
    StoreOptions options = SmallOptions();
    options.read_only = read_only;
    const auto store = Store::Open(copy, options);
    if (!store.ok()) {
      ++refused_;
      return "";
    }
    const auto report = (*store)->Verify({});
    bool named =
        !(*store)->recovery().problems.empty() || !report.ok() || !report->problems.empty();
    bool whole = true;
    for (const auto& [step, versions] : versions_) {
      const auto acknowledged = before.find(step);
      const size_t first = acknowledged == before.end() ? 0 : acknowledged->second - 1;
      std::set<std::optional<uint64_t>> legal(versions.begin() + static_cast<std::ptrdiff_t>(first),
                                              versions.end());
      if (acknowledged == before.end()) legal.insert(std::nullopt);
      const auto reader = (*store)->Read(step);
      if (reader.status().code() == StatusCode::kNotFound) {
        if (!legal.contains(std::nullopt) && !named) return StrCat("step ", step, " is missing");
        whole = whole && legal.contains(std::nullopt);
        continue;
      }
      if (!reader.ok()) {
        whole = false;
        if (!named) return StrCat("unnamed: ", reader.status().ToString());
        continue;
      }
      const std::string& metadata = (*reader)->step().metadata_json;
      const auto version = std::find_if(versions.begin(), versions.end(), [&](const auto& seed) {
        return seed.has_value() && metadata == StrCat("{\"seed\": ", *seed, "}");
      });
      if (version == versions.end()) return StrCat("step ", step, " is of no version");
      const Status status = CheckSeeded(reader->get(), **version, kLeaves);
      if (status.code() == StatusCode::kInternal) return status.ToString();
      if (!status.ok() && !named) return StrCat("unnamed: ", status.ToString());
      whole = whole && status.ok();
      if (status.ok() && !legal.contains(*version)) {
        return StrCat("step ", step, " in version ", **version, ", older than acknowledged before");
      }
    }
    ++(whole ? whole_ : damaged_);
    return "";
  }

  std::string LookTwice(const std::string& copy, const std::map<uint64_t, size_t>& before) {
    for (const bool read_only : {true, false, true}) {
      const std::string wrong = Look(copy, read_only, before);
      if (!wrong.empty()) return StrCat(read_only ? "reader: " : "writer: ", wrong);
    }
    return "";
  }

  std::mutex mutex_;
  Versions versions_;                        // guarded by mutex_ while two threads run
  std::map<uint64_t, size_t> acknowledged_;  // likewise
  uint64_t next_ = 0;
  uint64_t seeds_ = 0;
  int whole_ = 0;
  int damaged_ = 0;
  int refused_ = 0;
};

TEST_F(CopiedTest, WhileItIsWritten) {
  auto store = Open(SmallOptions());
  ASSERT_NE(store, nullptr);
  std::mt19937_64 random(1);
  for (uint64_t round = 0; round < InAStorm(8); ++round) {
    std::atomic<bool> stop{false};
    std::thread writer([&, seed = random()] {
      std::mt19937_64 own(seed);
      while (!stop) ChangeOnce(store.get(), &own);
    });
    while (Acknowledged().size() < 4) std::this_thread::yield();
    const auto before = Acknowledged();
    fs::remove_all(dir_ / "copy");
    CopyFiles(path_, dir_ / "copy", &random);
    stop = true;
    writer.join();
    ASSERT_EQ(LookTwice(dir_ / "copy", before), "") << "round " << round;
  }
  EXPECT_GT(whole_ + damaged_, refused_);
  std::cout << whole_ << " whole, " << damaged_ << " with named losses, " << refused_
            << " refused\n";
}

// Copies as rsync does without --delete: files that the store has removed since stay in the copy.
// Between two changes nothing is missing, whether the store is closed or open.
TEST_F(CopiedTest, OverAnOlderCopy) {
  std::mt19937_64 random(2);
  for (uint64_t round = 0; round < InAStorm(4); ++round) {
    auto store = Open(SmallOptions());
    ASSERT_NE(store, nullptr);
    for (uint64_t i = 5 + random() % 20; i > 0; --i) ChangeOnce(store.get(), &random);
    if (random() % 2 == 0) {
      ASSERT_OK(store->Close());
    } else {
      ASSERT_OK(store->Reclaim().status());
    }
    CopyFiles(path_, dir_ / "copy", &random);
    const std::string copied = dir_ / "look";
    fs::remove_all(copied);
    fs::copy(dir_ / "copy", copied, fs::copy_options::recursive);
    store = nullptr;
    ASSERT_EQ(LookTwice(copied, Acknowledged()), "") << "round " << round;
  }
  EXPECT_EQ(damaged_ + refused_, 0);
  std::cout << whole_ << " whole, " << damaged_ << " with named losses, " << refused_
            << " refused\n";
}

// Does `mv run run.old` beside a training that goes on, and starts the next one in `run`. The first
// writer changes nothing of the second's.
TEST_F(CopiedTest, MovedUnderItsWriter) {
  auto store = Open(SmallOptions());
  ASSERT_NE(store, nullptr);
  std::mt19937_64 random(3);
  for (int i = 0; i < 20; ++i) ChangeOnce(store.get(), &random);
  const std::string moved = dir_ / "moved";
  fs::rename(path_, moved);
  for (int i = 0; i < 20; ++i) ChangeOnce(store.get(), &random);

  auto second = Open(SmallOptions());
  ASSERT_NE(second, nullptr);
  for (uint64_t step = 0; step < 40; ++step) {
    ASSERT_OK(SaveSeeded(second.get(), step, step, kLeaves)->Wait());
    ChangeOnce(store.get(), &random);
  }
  ASSERT_OK(store->Reclaim().status());
  EXPECT_EQ(Look(moved, true, Acknowledged()), "");
  EXPECT_EQ(Store::Open(moved, SmallOptions()).status().code(), StatusCode::kUnavailable);
  ASSERT_OK(store->Close());
  ASSERT_OK(second->Close());
  EXPECT_EQ(LookTwice(moved, Acknowledged()), "");
  EXPECT_EQ(whole_, 4);

  second = Open(SmallOptions());
  for (uint64_t step = 0; step < 40; ++step) {
    EXPECT_OK(CheckSeeded(second.get(), step, step, kLeaves));
  }
}

}  // namespace
}  // namespace stepwell::db
