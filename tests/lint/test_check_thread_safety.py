# SPDX-License-Identifier: Apache-2.0
"""Plants one breach of each rule of locks and sees it refused; a file without one passes."""

import pathlib
import shutil
import subprocess
import sys

import pytest

LINT = pathlib.Path(__file__).resolve().parent
ROOT = LINT.parents[1]

CLASS = """#include "io/mutex.h"
namespace io = stepwell::io;
class Counter {
 public:
  int Add() {
    const io::MutexLock lock(&mutex_);
    while (count_ == 0) changed_.Wait(&mutex_);
    AddLocked();
    const auto is_odd = [this]() STEPWELL_REQUIRES(mutex_) { return count_ % 2 != 0; };
    (void)is_odd;
    {
      const io::MutexUnlock unlocked(&mutex_);
      changed_.NotifyAll();
    }
    return count_;
  }
  bool TryAdd() {
    if (!mutex_.TryLock()) return false;
    const io::MutexLock lock(&mutex_, std::adopt_lock);
    AddLocked();
    return true;
  }
  void Both() {
    const io::MutexLock first(&first_);
    const io::MutexLock lock(&mutex_);
  }
  BREACH

 private:
  void AddLocked() STEPWELL_REQUIRES(mutex_) { ++count_; }
  void AddUnlocked() STEPWELL_EXCLUDES(mutex_) { Add(); }
  io::Mutex first_ STEPWELL_ACQUIRED_BEFORE(mutex_);
  io::Mutex mutex_;
  io::CondVar changed_;
  int count_ STEPWELL_GUARDED_BY(mutex_) = 0;
  int* const place_ STEPWELL_PT_GUARDED_BY(mutex_) = nullptr;
};
"""

LOCK = "const io::MutexLock lock(&mutex_); "


@pytest.mark.parametrize(
    ("breach", "message"),
    [
        ("", ""),
        ("int Get() { return count_; }", "reading variable 'count_' requires holding mutex"),
        ("void Set() { *place_ = 1; }", "writing the value pointed to by 'place_' requires"),
        ("void Call() { AddLocked(); }", "calling function 'AddLocked' requires holding mutex"),
        ("void Twice() { " + LOCK + "AddUnlocked(); }", "while mutex 'mutex_' is held"),
        ("void Keep() { mutex_.Lock(); }", "'mutex_' is still held at the end of function"),
        ("void GiveBack() { mutex_.Unlock(); }", "releasing mutex 'mutex_' that was not held"),
        ("void Wait() { changed_.Wait(&mutex_); }", "calling function 'Wait' requires holding"),
        ("int Get() { " + LOCK + "const io::MutexUnlock unlocked(&mutex_); return count_; }",
         "reading variable 'count_' requires holding mutex"),
        ("int Get() { " + LOCK + "return [this] { return count_; }(); }",
         "reading variable 'count_' requires holding mutex"),
        ("void Order() { " + LOCK + "const io::MutexLock first(&first_); }",
         "mutex 'first_' must be acquired before 'mutex_'"),
    ],
)  # fmt: skip
def test_a_breach_is_refused(tmp_path: pathlib.Path, breach: str, message: str) -> None:
    (tmp_path / "io").mkdir()
    (tmp_path / "api/python").mkdir(parents=True)
    for name in ("io/mutex.h", "io/thread_annotations.h"):
        shutil.copy(ROOT / name, tmp_path / name)
    source = tmp_path / "api/python/counter.cc"
    source.write_text(CLASS.replace("BREACH", breach))
    script = [sys.executable, str(LINT / "check_thread_safety.py"), str(tmp_path), "clang++"]
    result = subprocess.run(script, capture_output=True, text=True, check=False)
    assert result.returncode == (1 if message else 0), result.stderr
    assert message in result.stderr
    assert result.stderr.count("error:") == (1 if message else 0), result.stderr
