# SPDX-License-Identifier: Apache-2.0
"""Pins, items that are deleted, reclaim, numbers, the trace file, log lines, Ctrl-C."""

from __future__ import annotations

import gc
import json
import logging
import os
import time
from collections import defaultdict
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pytest
from equality import same
from log_lines import wait_for

import stepwell


def state_of(seed, count=20_000):
    random = np.random.default_rng(seed)
    return {"w": random.standard_normal((count // 10, 10)).astype(np.float32),
            "n": {"b": random.integers(0, 9, count), "step": seed}}


# ---- pins ---------------------------------------------------------------------------------------


def test_pins(path):
    with stepwell.open(path, keep=stepwell.policy.LatestN(2)) as store:
        for step in range(4):
            store.save(step, {"x": step}).result()
            if step < 2:
                store.pin(step)
        assert store.steps() == [0, 1, 2, 3]
        assert store.pinned_steps() == [0, 1]
        assert store[0].pinned and not store[3].pinned
        assert ", pinned" in repr(store[0]) and "pinned" not in repr(store[3])
        assert store.stats()["pinned_steps"] == 2
        with pytest.raises(stepwell.StepPinnedError, match="step 1 is pinned; unpin it"):
            store.delete([3, 1])
        with pytest.raises(stepwell.StepPinnedError, match="step 1 is pinned; unpin it"):
            store.save(1, {"x": 9}, if_exists="replace")
        assert store.save(1, {"x": 9}, if_exists="skip").skipped
        assert store.steps() == [0, 1, 2, 3] and store.load(1) == {"x": 1}
    with stepwell.open(path, keep=stepwell.policy.LatestN(2)) as store:  # still there
        assert store.pinned_steps() == [0, 1]
        with stepwell.open(path, mode="r") as reader:
            assert reader.pinned_steps() == [0, 1]
            for call in (lambda: reader.pin(0), lambda: reader.unpin(0), reader.reclaim):
                with pytest.raises(stepwell.PermissionDeniedError, match="reading only"):
                    call()
        store.pin(0, [2, 3], range(2))
        assert store.pinned_steps() == [0, 1, 2, 3]
        store.unpin(range(4))
        store.unpin(3)  # it is not
        assert store.pinned_steps() == []
        store.delete(0)
        store.save(4, {"x": 4}).result()
        assert store.steps() == [3, 4]


def test_pins_of_what_is_not_there(store):
    store.save(1, 1).result()
    for call in (store.pin, store.unpin):
        with pytest.raises(stepwell.StepNotFoundError, match="7"):
            call(1, 7)
        with pytest.raises(stepwell.InvalidArgumentError, match="a step must be an int, not '1'"):
            call("1")
        with pytest.raises(stepwell.InvalidArgumentError, match="not -1"):
            call([-1])
    assert store.pinned_steps() == []
    store.pin()


# ---- items --------------------------------------------------------------------------------------


def test_deleted_items(path):
    trees = {"params": state_of(1), "opt": state_of(2), "data": {"position": 7}}
    with stepwell.open(path) as store:
        for step in range(3):
            store.save(step, items=trees, metadata={"step": step})
        store.wait()
        store.pin(2)
        before = store[0]
        store.delete([0, 2], item="opt")
        store.delete(0, items=["data"])
        assert store[0].items == ["params"]
        assert store[1].items == ["data", "opt", "params"]
        assert store[2].items == ["data", "params"] and store[2].pinned
        assert same(before["opt/w"][...], trees["opt"]["w"])  # as it was when it was opened
    for mode in ("a", "r"):
        with stepwell.open(path, mode=mode) as store:
            assert same(store.load(0, "params"), trees["params"])
            assert same(store.load(1, "opt"), trees["opt"])
            assert same(store.load(2, "params", like=trees["params"]), trees["params"])
            assert store.load(2, "data") == {"position": 7}
            assert store[0].metadata == {"step": 0}
            assert "opt" not in store[0] and "params/w" in store[0]
            with pytest.raises(stepwell.PathNotFoundError):
                store.load(0, "opt/w")
            assert store.steps() == [0, 1, 2]
            assert store.verify().ok


def test_items_that_cannot_be_deleted(store):
    store.save(0, items={"a": 1, "b": 2})
    store.save(1, items={"a": 1})
    store.wait()
    with pytest.raises(stepwell.PathNotFoundError, match="step 0 has no item 'c'; it has 'a', 'b'"):
        store.delete(0, items=["a", "c"])
    with pytest.raises(stepwell.InvalidArgumentError, match="delete the whole step"):
        store.delete([0, 1], item="a")
    with pytest.raises(stepwell.InvalidArgumentError, match="delete the whole step"):
        store.delete(0, items={"a", "b"})
    with pytest.raises(stepwell.StepNotFoundError):
        store.delete([0, 5], item="a")
    for bad in ({"items": "a"}, {"item": 3}, {"items": [None]}):
        with pytest.raises(stepwell.InvalidArgumentError, match="item must be one name"):
            store.delete(0, **bad)
    store.delete(0, items=[])
    assert store[0].items == ["a", "b"] and store[1].items == ["a"]


# ---- numbers ------------------------------------------------------------------------------------


def fits(value, kind):
    """Checks that a dict is what its TypedDict says, all the way down."""
    if hasattr(kind, "__required_keys__"):
        hints = get_type_hints(kind)
        return set(value) == set(hints) and all(fits(value[k], hints[k]) for k in hints)
    return type(value) is getattr(kind, "__origin__", kind)


def test_stats(path):
    with stepwell.open(path, keep=stepwell.policy.LatestN(2)) as store:
        assert fits(store.stats(), stepwell.StoreStats)
        size = 0
        for step in range(4):
            store.save(step, state_of(step)).result()
            size += store[step].nbytes
        stats = store.stats()
        assert fits(stats, stepwell.StoreStats)
        json.dumps(stats)
        assert stats["steps"] == 2 and stats["pinned_steps"] == 0
        assert stats["saves"] == 4 and stats["saves_failed"] == 0
        assert stats["bytes_saved"] == size
        assert stats["bytes_written"] >= sum(store[s].stored_bytes for s in (2, 3))
        assert stats["segments"] >= 1 and stats["syncs"] >= 4
        assert stats["saves_in_flight"] == 0
        for stage in ("snapshot", "encode", "write", "commit", "durable"):
            latency = stats["latency"][stage]
            assert latency["count"] == 4
            assert latency["p50_s"] <= latency["p99_s"] <= latency["max_s"] <= latency["total_s"]
        assert stats["latency"]["durable"]["total_s"] > 0


# ---- the trace ----------------------------------------------------------------------------------


def test_trace(path, tmp_path):
    file = tmp_path / "trace.json"
    with stepwell.open(path, trace=file) as store:
        for step in range(3):
            store.save(step, state_of(step, 1_000_000))
        for step in range(3, 40):  # of fewer steps there is no index
            store.save(step, step)
    events = json.loads(file.read_text())["traceEvents"]
    threads = {event["tid"]: event["args"]["name"] for event in events
               if event["ph"] == "M" and event["name"] == "thread_name"}
    stages = defaultdict(set)
    where = defaultdict(set)
    for event in events:
        if event["ph"] == "X":
            assert event["ts"] >= 0 and event["dur"] >= 0
            where[event["name"]].add(threads[event["tid"]])
            if "step" in event["args"]:
                stages[event["args"]["step"]].add(event["name"])
    for step in range(3):
        assert stages[step] >= {"snapshot", "encode", "write", "commit", "sync"}
    assert where["snapshot"] == {"caller"} and where["index"] == {"index"}
    assert all(name.startswith("disk") for name in where["write"])


def test_a_trace_that_cannot_be(path, tmp_path):
    with pytest.raises(stepwell.InvalidArgumentError, match="the trace's directory"):
        stepwell.open(path, trace=tmp_path / "no" / "trace.json")
    with stepwell.open(path) as store:  # the failed open left no lock
        store.save(0, 1)
    with pytest.raises(stepwell.InvalidArgumentError, match="needs mode='a'"):
        stepwell.open(path, mode="r", trace=tmp_path / "trace.json")


@pytest.mark.parametrize("private", [True, False])
def test_a_trace_is_as_private_as_its_store(tmp_path: Path, private: bool,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = os.umask(0o022)
    try:
        for name in ("trace.json", str(tmp_path / "other.json")):
            with stepwell.open(tmp_path / "run", private=private, trace=name) as store:
                store.save(len(store), {"w": 1}).result()
            assert os.stat(name).st_mode & 0o777 == (0o600 if private else 0o644)
    finally:
        os.umask(before)


# ---- the log ------------------------------------------------------------------------------------


def test_a_line_for_every_save(path, caplog):
    with (caplog.at_level(logging.INFO, "stepwell"),
          stepwell.open(path, keep=stepwell.policy.LatestN(1)) as store):
        for step in (3, 4):
            store.save(step, state_of(step)).result()
        wait_for(f"{path}: saved step 4: ", caplog)
    lines = [record for record in caplog.records if ": saved step " in record.message]
    assert [record.levelno for record in lines] == [logging.INFO] * 2
    for words in ("/s, the caller waited ", " written, retired step 3"):
        assert words in lines[1].message


def test_lines_that_nobody_wants_cost_nothing(path, caplog):
    with caplog.at_level(logging.WARNING, "stepwell"), stepwell.open(path) as store:
        store.save(1, 1).result()
        caplog.set_level(logging.INFO, "stepwell")  # from the next save on
        store.save(2, 2).result()
        wait_for("saved step 2", caplog)
    assert "saved step 1" not in caplog.text


# ---- Ctrl-C -------------------------------------------------------------------------------------


def test_ctrl_c_while_a_save_waits(run_python, path):
    status, out, err = run_python("""
import os, signal, sys, threading, time
import numpy as np, stepwell

signal.signal(signal.SIGINT, signal.default_int_handler)  # shells' background jobs ignore it
# Saves much larger than the staging memory: most of the time `save` waits, for several times as
# long as it takes until it asks whether to go on. What is unchanged, or there twice, isn't copied.
array = np.arange(128 << 20)  # 1 GiB
interrupted, saved = [], []
with stepwell.open(sys.argv[1], staging_bytes=20 << 20, codec="raw",
                   keep=stepwell.policy.LatestN(2)) as store:
    for step in range(50):
        array += 1
        timer = threading.Timer(0.005, os.kill, (os.getpid(), signal.SIGINT))
        try:
            timer.start()
            store.save(step, {"x": array})
            saved.append(step)
            timer.join()
            time.sleep(0.01)  # the signal may come here, too
        except KeyboardInterrupt:
            timer.join()
            if step in saved:
                continue
            try:
                store.save(step, {"again": 1})  # the number is free at once
                interrupted.append(step)
            except stepwell.StepExistsError:
                saved.append(step)  # the signal came when the save was through
        if interrupted:
            break
    else:
        sys.exit("no save was interrupted")
    store.wait()  # nothing is reported later, all that returned is there
    assert store.steps() == sorted({*saved, interrupted[0]})[-2:], store.steps()
    assert store.load(interrupted[0]) == {"again": 1}
    if saved:
        x = store.load(saved[-1], "x")
        assert x[0] == saved[-1] + 1 and (np.diff(x) == 1).all()
    assert store.stats()["saves_failed"] == 0
print("ok")
""", path)
    assert (status, out) == (0, "ok\n"), err


def test_saves_keep_the_collector_out(path):
    state = {f"x{i}": np.ones(1) for i in range(5000)}
    started: list[int] = []

    def count(phase, info):
        if phase == "start":
            started.append(info["generation"])

    with stepwell.open(path) as store:
        gc.collect()
        gc.callbacks.append(count)
        try:
            handle = store.save(1, state)
        finally:
            gc.callbacks.remove(count)
        handle.result()
        assert len(started) <= 2, started  # one a 700 tuples otherwise, three tuples a leaf
        assert gc.isenabled()
        with pytest.raises(stepwell.UnsupportedLeafError):
            store.save(2, {"x": object()})
        assert gc.isenabled()
        gc.disable()
        try:
            store.save(3, {"x": 1}).result()
            assert store.load(3, like={"x": 0}) == {"x": 1}
            assert not gc.isenabled()
        finally:
            gc.enable()
