# SPDX-License-Identifier: Apache-2.0
"""Checks what a store that was closed or dropped leaves behind, and signals' handlers that close
it."""

from __future__ import annotations

import gc
import os
import pathlib
from collections.abc import Collection

import numpy as np
import pytest

import stepwell


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _resident_mib() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") >> 20


@pytest.mark.parametrize("mode", ["a", "r"])
def test_a_closed_store_that_somebody_keeps_holds_no_thread(path, mode):
    with stepwell.open(path) as store:
        store.save(1, {"x": np.arange(9)})
    before = _threads()
    kept = []
    for _ in range(5):
        with stepwell.open(path, mode=mode) as store:
            assert store.load(1, "x").tolist() == list(range(9))
        kept.append(store)
    assert _threads() <= before
    for store in kept:
        store.close()
        with pytest.raises(stepwell.Error, match="closed"):
            store.steps()


def test_a_closed_store_that_a_handle_knows_holds_no_staging_memory(path):
    state = {"x": np.zeros(32 << 20, np.uint8)}
    handles, resident = [], []
    for step in range(4):
        with stepwell.open(path, keep=stepwell.policy.LatestN(1), codec="raw") as store:
            handles.append(store.save(step, state))
        resident.append(_resident_mib())
    assert resident[-1] < resident[0] + 32, resident  # one save's staging memory, not three
    assert [handle.result() for handle in handles] == [0, 1, 2, 3]


def test_a_view_of_a_closed_store_says_so(path, tmp_path):
    with stepwell.open(path) as store:
        store.save(1, {"x": np.arange(9)})
        view = store.orbax_view(tmp_path / "view")
    with pytest.raises(stepwell.Error, match="closed"):
        view.wait()
    assert not view.stats()["following"]
    view.close()


def test_a_store_that_is_dropped_is_closed_at_once(path):
    gc.disable()
    try:
        for step in range(5):
            store = stepwell.open(path)
            store.save(step, {"x": np.arange(9)})
            del store
    finally:
        gc.enable()
    with stepwell.open(path, mode="r") as store:
        assert store.steps() == list(range(5))


def test_a_signals_handler_closes_the_store_wherever_it_interrupts_it(run_python, path):
    status, out, err = run_python("""
import sys, numpy as np, stepwell

def close_at(line):  # at that line of what looks for errors, as a handler might
    lines = 0
    def trace(frame, event, argument):
        nonlocal lines
        if frame.f_code.co_name != "take_error":
            return trace
        if event == "line":
            lines += 1
            if lines == line:
                store.close()
        return trace
    sys.settrace(trace)
    try:
        store.wait()
    except stepwell.Error as error:
        assert "closed" in str(error), error
    finally:
        sys.settrace(None)
    store.close()
    return lines >= line

line = 1
while True:
    store = stepwell.open(sys.argv[1])
    store.save(line, {"x": np.arange(9)}).result()
    if not close_at(line):
        break
    line += 1
assert line > 5, line
""", path)
    assert (status, out) == (0, ""), err


def test_a_signals_handler_within_a_copy_is_refused_what_would_wait_for_it(run_python, path):
    status, out, err = run_python("""
import signal, sys, numpy as np, stepwell
store = stepwell.open(sys.argv[1], staging_bytes=20 << 20, codec="raw",
                      keep=stepwell.policy.LatestN(1))
store.save(1, {"x": 1}).result()
store.pin(1)

def handler(number, frame):
    if not store._backend.writer.is_copying():
        return
    assert store.load(1, "x") == 1
    for call in (store.close, lambda: store.delete(1), lambda: store.save(2, {"x": 2})):
        try:
            call()
        except stepwell.Error as error:
            assert "interrupted a save" in str(error), error
        else:
            print("not refused")
    signal.setitimer(signal.ITIMER_REAL, 0)
    raise SystemExit(7)

signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
# New content each time, for what is unchanged isn't copied; for longer than a save takes to ask.
array = np.arange(128 << 20)  # 1 GiB
for step in range(10, 60):
    array += 1
    store.save(step, {"x": array}).result()
sys.exit("no signal came while it copied")
""", path)
    assert (status, out) == (7, ""), err
    with stepwell.open(path) as store:
        assert store.steps()[0] == 1
        assert store.verify().ok


def test_what_encodes_behind_a_save_yields_to_training(path):
    def nice(name: str, known: Collection[str] = ()) -> dict[str, int]:
        tasks = [pathlib.Path(entry.path) for entry in os.scandir("/proc/self/task")]
        return {task.name: int((task / "stat").read_text().rpartition(")")[2].split()[16])
                for task in tasks if task.name not in known
                and (task / "comm").read_text().startswith(name)}

    own = os.getpriority(os.PRIO_PROCESS, 0)
    others = {entry.name for entry in os.scandir("/proc/self/task")}  # of other tests' stores
    with stepwell.open(path) as store:
        store.save(1, {"x": 1}).result()
        assert {*nice("stepwell-enc", others).values()} == {min(own + 5, 19)}
        assert {*nice("stepwell-engine", others).values()} == {own}
    assert nice("stepwell-enc", others) == {}
