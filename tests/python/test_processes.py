# SPDX-License-Identifier: Apache-2.0
"""Other processes: fork, second writers, readers, SIGKILL, the end of the interpreter."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time

import numpy as np
import pytest

import stepwell
from storm import in_a_storm


def test_a_forked_child_must_not_use_the_store(run_python, path):
    status, out, err = run_python("""
import os, sys, stepwell
with stepwell.open(sys.argv[1]) as store:
    handle = store.save(0, {"x": 1})
    handle.result()
    view = store[0]
    child = os.fork()
    if child == 0:
        refused = 0
        for call in (lambda: store.save(1, {}), store.steps, store.wait, store.close, handle.result,
                     lambda: view["x"], store.stats, store.__enter__):
            try:
                call()
            except stepwell.ForkError as error:
                refused += "before fork" in str(error)
        with stepwell.open(sys.argv[1], mode="r") as reader:  # a store of its own is fine
            refused += reader.load(0) == {"x": 1}
        del store, view, handle
        sys.exit(refused)
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status))
    store.save(1, {"x": 2}).result()  # the parent goes on
    print(store.steps(), store.load(1))
""", path)
    assert (status, out) == (0, "9\n[0, 1] {'x': 2}\n"), err


def test_a_trainer_restarted_while_its_forked_worker_lives(start_python, path):
    trainer = start_python("""
import os, sys, time, stepwell
store = stepwell.open(sys.argv[1])
store.save(0, {"x": 1}).result()
child = os.fork()
if child == 0:
    os.close(1), os.close(2)
    time.sleep(120)
    os._exit(0)
print(child, flush=True)
time.sleep(120)
""", path)
    worker = int(trainer.stdout.readline())
    trainer.kill()
    trainer.wait()
    try:
        os.kill(worker, 0)  # it lives
        with stepwell.open(path) as store:
            assert store.load(0) == {"x": 1}
            store.save(1, {"x": 2}).result()
    finally:
        os.kill(worker, signal.SIGKILL)


def test_a_second_writer_is_told_who_has_the_lock(start_python, path):
    holder = start_python("""
import sys, stepwell
with stepwell.open(sys.argv[1]) as store:
    store.save(0, 1).result()
    print("open", flush=True)
    sys.stdin.read() if False else __import__("time").sleep(120)
""", path)
    assert holder.stdout.readline() == "open\n"
    with pytest.raises(stepwell.LockedError, match=str(holder.pid)):
        stepwell.open(path)
    with stepwell.open(path, mode="r") as reader:
        assert reader.steps() == [0]


def test_a_reader_process_beside_a_live_writer(start_python, path):
    with stepwell.open(path) as store:
        store.save(0, {"x": np.zeros(10_000)}).result()
        reader = start_python("""
import sys, stepwell
seen = 0
with stepwell.open(sys.argv[1], mode="r") as store:
    print("ready", flush=True)
    while seen < 30:
        step = store.latest
        assert (store.load(step, "x") == step).all(), step
        seen = max(seen, step)
print("ok")
""", path)
        assert reader.stdout.readline() == "ready\n"
        for step in range(1, 31):
            store.save(step, {"x": np.full(10_000, step, float)}).result()
        out, err = reader.communicate(timeout=120)
        assert out == "ok\n", err


TRAINER = """
import sys, numpy as np, stepwell
store = stepwell.open(sys.argv[1])
start = (store.latest if store.latest is not None else -1) + 1
handles = []
print("start", start, flush=True)
for step in range(start, start + 10_000):
    rng = np.random.default_rng(step)
    state = {"w": rng.standard_normal(300_000), "n": [rng.integers(0, 9, 50), step]}
    handles.append(store.save(step, state))
    if len(handles) == 3:  # three in flight
        print("done", handles.pop(0).result(), flush=True)
"""


def test_sigkill_with_three_steps_in_flight(start_python, path):
    chance = random.Random(0)
    returned: set[int] = set()
    for _ in range(in_a_storm(4)):
        trainer = start_python(TRAINER, path)
        assert trainer.stdout.readline().startswith("start")
        returned.add(int(trainer.stdout.readline().split()[1]))
        time.sleep(chance.random() * 0.3)
        trainer.kill()
        out, err = trainer.communicate()
        assert err == ""
        # The last line may have been cut off by the kill.
        whole = [line for line in out.splitlines(keepends=True) if line.endswith("\n")]
        returned |= {int(line.split()[1]) for line in whole if line.count(" ") == 1}
        with stepwell.open(path) as store:
            assert returned <= set(store.steps())
            for step in store.steps():
                rng = np.random.default_rng(step)
                loaded = store.load(step)
                assert loaded["w"].tobytes() == rng.standard_normal(300_000).tobytes()
                assert loaded["n"][0].tobytes() == rng.integers(0, 9, 50).tobytes()
                assert loaded["n"][1] == step
            assert store.verify().ok
            store.delete(store.steps()[:-2])
            returned &= set(store.steps())


def test_exit_waits_for_saves(run_python, path):
    status, _, err = run_python("""
import sys, numpy as np, stepwell
store = stepwell.open(sys.argv[1])
store.save(0, {"x": np.ones(1 << 22)})
""", path)
    assert (status, err) == (0, "")
    with stepwell.open(path) as store:
        assert store.load(0, "x").sum() == 1 << 22


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 MiB."""
    where = tmp_path / "small"
    where.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", where], check=True)
    yield where
    subprocess.run(["umount", "-l", where], check=True)


LOSE_A_SAVE = """
import atexit, sys, numpy as np, stepwell
atexit.register(lambda: print("earlier handlers run", flush=True))
store = stepwell.open(sys.argv[1] + "/store", codec="raw")
store.save(0, {"x": 1}).result()
try:
    store.save(1, {"x": np.random.default_rng(0).standard_normal(12 << 20)})
except stepwell.NoSpaceError:
    # Refused at once: nothing is lost in the background. Fail one by hand to see the exit.
    stepwell._runtime.service.report_lost(store.path, stepwell.NoSpaceError("no room"))
"""


def test_exit_with_a_lost_save_is_loud(run_python, small_disk):
    status, out, err = run_python(LOSE_A_SAVE, small_disk)
    assert status == 1, err
    assert out == "earlier handlers run\n"
    assert "stepwell: error in the background of store" in err
    assert "NoSpaceError" in err
    status, _, _ = run_python(LOSE_A_SAVE + "\nsys.exit(3)", small_disk / "..")
    assert status == 3  # the program's own status stays


def test_a_part_of_a_draft_that_a_full_disk_refused_can_be_added_again(small_disk):
    small, big = np.arange(1000), np.random.default_rng(0).standard_normal(12 << 20)  # 96 MiB
    with stepwell.open(small_disk / "store", codec="raw") as store:
        draft = store.draft(0)
        draft.add({"a": small}).result()
        with pytest.raises(stepwell.NoSpaceError):
            draft.add({"b": big}).result()
        assert draft.parts == 1
        draft.add({"c": small}).result()
        draft.close()
        draft = store.draft(0)
        assert draft.parts == 2
        draft.add({"b": small}).result()
        draft.finalize()
        assert sorted(store.load(0)) == ["a", "b", "c"]


def test_a_full_disk_fails_that_save_alone(small_disk):
    big = {"x": np.random.default_rng(0).standard_normal(12 << 20)}  # 96 MiB
    small = {"x": np.arange(1000)}
    with stepwell.open(small_disk / "store", codec="raw") as store:
        store.save(0, small).result()
        with pytest.raises(stepwell.NoSpaceError) as info:
            store.save(1, big).result()
        assert isinstance(info.value, OSError)
        assert store.steps() == [0]
        np.testing.assert_array_equal(store.load(0, "x"), small["x"])
        store.save(2, small).result()
        assert store.steps() == [0, 2]


def test_a_background_error_is_raised_once(small_disk):
    store = stepwell.open(small_disk / "store", codec="raw")
    filler = small_disk / "filler"
    with filler.open("wb") as file, pytest.raises(OSError):
        while True:
            file.write(b"x" * (1 << 20))
            file.flush()
    errors = []
    for call in (lambda: store.save(0, {"x": np.random.default_rng(0).bytes(200 << 20)}),
                 store.wait, store.wait, store.close, store.close):
        try:
            call()
        except stepwell.NoSpaceError as error:
            errors.append(error)
    assert len(errors) == 1


def test_read_only_media(tmp_path, run_python):
    path = tmp_path / "media"
    with stepwell.open(path) as store:
        store.save(3, {"x": np.arange(5)})
    subprocess.run(["mount", "--bind", path, path], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", path], check=True)
        with stepwell.open(path, mode="r") as store:
            assert store.load(3, "x").tolist() == [0, 1, 2, 3, 4]
            assert store.verify().ok
        with pytest.raises(stepwell.PermissionDeniedError):
            stepwell.open(path)
    finally:
        subprocess.run(["umount", "-l", path], check=True)


def test_ctrl_c_interrupts_a_wait(start_python, path):
    process = start_python("""
import sys, signal, numpy as np, stepwell, os, threading
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells' background jobs ignore it
store = stepwell.open(sys.argv[1])
handle = store.save(0, {"x": np.ones(1 << 24)})
threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    while True:
        handle.result()
except KeyboardInterrupt:
    print("interrupted", flush=True)
store.close()
""", path)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (0, "interrupted\n"), err


def test_where_no_thread_can_be_started_calls_run_on_the_callers(run_python):
    status, out, err = run_python("""
import os, resource, sys, tempfile, numpy, stepwell
directory = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
path = directory.name + "/store"
store = stepwell.open(path)
def everything(step):
    store.save(step, {"x": numpy.arange(1000)}).result()
    store.pin(step), store.unpin(step)
    assert not store.verify().problems
    store.export(step, f"{path}_{step}")
    store.reclaim()
    store.delete(step)
    return store.steps()
print(everything(0))
for folder, _, files in os.walk(directory.name):
    for name in [folder, *(os.path.join(folder, file) for file in files)]:
        os.chown(name, 64322, 64322)
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))  # of a user that has no other process
os.setresuid(64322, 64322, 64322)
print(everything(1))
try:
    stepwell.open(path, "r")
except stepwell.StorageError as error:
    print("cannot be started" in str(error))
store.close()
""")
    assert (status, out) == (0, "[]\n[]\nTrue\n"), err
