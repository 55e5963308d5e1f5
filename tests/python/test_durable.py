# SPDX-License-Identifier: Apache-2.0
"""The door for files and directories above the store, as Python has it; what a power cut or a
failing disk does to each call, tests/sim/durable_test.cc shows."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np
import pytest
from stepwell import _store
from stepwell._runtime import durable, files
from stepwell._runtime.threads import Thread, join_all

import stepwell


@pytest.fixture
def place(tmp_path: pathlib.Path) -> str:
    return os.path.join(tmp_path, "x")


def make(folder: durable.Folder, text: str = "new") -> None:
    os.makedirs(os.path.join(folder.temporary, "made", "deep"))
    pathlib.Path(folder.temporary, "made", "deep", "file").write_text(text)


def content(place: str) -> str:
    return pathlib.Path(place, "deep", "file").read_text()


def test_a_folder_appears_and_replaces(place):
    for text in ("one", "two"):
        with durable.Folder(place, replace=text == "two") as folder:
            make(folder, text)
            assert text == "two" or not os.path.exists(place)
            folder.commit("made")
        assert content(place) == text
    assert os.listdir(os.path.dirname(place)) == ["x"]


def test_what_is_not_committed_goes_also_with_an_exception(place):
    with pytest.raises(ZeroDivisionError), durable.Folder(place) as folder:
        make(folder)
        _ = 1 // 0
    folder = durable.Folder(place)
    make(folder)
    del folder
    assert os.listdir(os.path.dirname(place)) == []


def test_nothing_is_replaced_unasked_and_one_at_a_time(place):
    with durable.Folder(place) as folder:
        with pytest.raises(stepwell.LockedError):
            durable.Folder(place)
        make(folder)
        folder.commit("made")
    with pytest.raises(stepwell.StepExistsError):
        durable.Folder(place)
    os.symlink("/nowhere", place + "-link")
    with pytest.raises(stepwell.StepExistsError):
        durable.Folder(place + "-link")


def test_a_link_is_replaced_not_followed(place, tmp_path):
    target = tmp_path / "target"
    target.mkdir()
    (target / "keep").write_text("kept")
    os.symlink(target, place)
    with durable.Folder(place, replace=True) as folder:
        make(folder)
        folder.commit("made")
    assert not os.path.islink(place) and content(place) == "new"
    assert (target / "keep").read_text() == "kept"
    os.symlink(target, place + "2")
    durable.remove(place + "2")
    assert (target / "keep").read_text() == "kept"


def test_remove_write_and_move(place):
    with pytest.raises(stepwell.CheckpointNotFoundError):
        durable.remove(place)
    durable.write(place, b"1", mode=0o600)
    durable.write(place, b"22", mode=0o640)
    assert pathlib.Path(place).read_bytes() == b"22"
    assert os.stat(place).st_mode & 0o777 == 0o640
    os.mkdir(place + "-there")
    with pytest.raises(stepwell.StepExistsError):
        durable.move(place, place + "-there")
    durable.move(place, place + "-moved")
    durable.remove(place + "-moved")
    durable.remove(place + "-there")
    assert os.listdir(os.path.dirname(place)) == []


def test_names_of_any_bytes(tmp_path):
    place = os.path.join(tmp_path, os.fsdecode(b"\xff\xfe name"))
    with durable.Folder(place) as folder:
        make(folder)
        folder.commit("made")
    assert content(place) == "new"
    durable.remove(place)
    assert os.listdir(tmp_path) == []


KILLED = """
import os, sys, time
from stepwell._runtime import durable
folder = durable.Folder(sys.argv[1])
os.mkdir(os.path.join(folder.temporary, "made"))
scratch = durable.scratch("stepwell-killed-test-")
print(scratch.__enter__(), flush=True)
time.sleep(60)
"""


def test_what_a_killed_process_left_is_removed(place, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    (tmp_path / "tmp").mkdir()
    child = subprocess.Popen([sys.executable, "-c", KILLED, place], stdout=subprocess.PIPE)
    assert child.stdout is not None
    scratch = child.stdout.readline().decode().strip()
    with pytest.raises(stepwell.LockedError):  # it lives
        durable.Folder(place)
    durable.sweep(str(tmp_path))
    assert os.path.isdir(place + ".orbax-checkpoint-tmp") and os.path.isdir(scratch)
    with durable.scratch("stepwell-killed-test-"):
        assert os.path.isdir(scratch)
    child.kill()
    child.communicate()
    durable.sweep(str(tmp_path))
    assert not os.path.exists(place + ".orbax-checkpoint-tmp")
    with durable.scratch("stepwell-killed-test-") as mine:
        assert os.listdir(tmp_path / "tmp") == [os.path.basename(mine)]
    assert os.listdir(tmp_path / "tmp") == []


def test_other_programs_directories_stay(tmp_path):
    for name in ("5.orbax-checkpoint-tmp", "x.removed", "5.orbax-checkpoint-tmp-1234"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("theirs")
    durable.sweep(str(tmp_path))
    assert len(os.listdir(tmp_path)) == 3


# ---- small files --------------------------------------------------------------------------------


def test_json_of_others_is_read_with_care(place):
    with pytest.raises(FileNotFoundError):
        files.read_json(place)
    os.mkfifo(place)
    start = time.monotonic()
    with pytest.raises(FileNotFoundError):
        files.read_json(place)
    assert time.monotonic() - start < 30  # it waited for no writer
    assert files.read_json_object(place) == {}
    os.unlink(place)
    for text in ("{", "[" * 100_000, '{"a": ' * 50_000 + "1", "\xff"):
        pathlib.Path(place).write_bytes(text.encode("latin-1"))
        with pytest.raises(stepwell.CorruptionError, match="not JSON"):
            files.read_json(place)
    pathlib.Path(place).write_text(json.dumps({"a": 1}))
    assert files.read_json(place) == {"a": 1}
    with pytest.raises(stepwell.CorruptionError, match="more than 5 bytes"):
        files.read_json(place, 5)



@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "nul", b"\xff"])
def test_what_was_saved_as_json_and_is_none_is_damage(text):
    with pytest.raises(stepwell.CorruptionError, match="^the metrics of step 1 is not JSON: "):
        files.json_of(text, "the metrics of step 1")


# ---- threads ------------------------------------------------------------------------------------


def test_an_unpublished_store_has_no_thread_and_is_whole_where_it_is_published(place):
    array = np.arange(70_000, dtype=np.float32)
    with stepwell.open(place + "-other") as store:  # starts the threads that are the process'
        store.save(0, {"w": array}).result()
    with durable.Folder(place) as folder:
        inner = os.path.join(folder.temporary, "store")
        before = len(os.listdir("/proc/self/task"))
        store = _store.open_unpublished(inner, "auto", None)
        during = len(os.listdir("/proc/self/task"))
        store.save(3, {"w": array, "name": "x"}).result()
        during = max(during, len(os.listdir("/proc/self/task")))
        store.close()
        assert during == before
        folder.commit("store")
    with stepwell.open(place) as store:  # and goes on as every other
        assert not store.verify().problems
        store.save(4, {"w": array + 1, "name": "y"}).result()
        np.testing.assert_array_equal(store.load(3)["w"], array)
        assert store.steps() == [3, 4]


def test_waits_of_a_thread_end_with_it_each_by_itself():
    gate = threading.Event()
    thread = Thread("test", gate.wait)
    ended: list[bool] = []
    waits = [threading.Thread(target=lambda: ended.append(thread.join(100))) for _ in range(5)]
    for wait in waits:
        wait.start()
    assert not thread.join(0.01) and not thread.join(0) and not thread.join(-1)
    gate.set()
    for wait in waits:
        wait.join()
    assert ended == [True] * 5 and thread.join(1e12) and not thread._waiting


def test_join_after_the_end_returns_while_another_thread_joins():
    thread = Thread("test", lambda: None)
    assert thread.join()
    with thread._ended:  # another wait, between its two steps
        assert thread.join(1e6) and not thread.is_alive()


def test_a_thread_is_waited_for_and_joined():
    gate = threading.Event()
    thread = Thread("stepwell-test", gate.wait, waited_for=True)
    assert thread.is_alive() and not thread.join(0.01)
    threading.Timer(0.05, gate.set).start()
    join_all()
    assert not thread.is_alive() and thread.join() and thread.join(0)


INTERRUPTED = """
import signal, time
from stepwell._runtime.threads import Thread

def interrupt(*_):
    raise KeyboardInterrupt

def stop():
    while True:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0)
            return
        except KeyboardInterrupt:
            pass

signal.signal(signal.SIGALRM, interrupt)
end = time.monotonic() + 50
interrupts = started = 0
while interrupts <= 100 and time.monotonic() < end:
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.00003 + interrupts % 100 * 1e-6)
        thread = Thread("stepwell-test", time.sleep, 0.001, waited_for=True)
        started += 1
        thread.join()
    except KeyboardInterrupt:
        interrupts += 1
stop()
print(interrupts > 100, flush=True)
"""


def test_ctrl_c_while_threads_start_does_not_hang_the_exit():
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], timeout=60, capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0 and done.stdout.split() == ["True"], done.stderr
