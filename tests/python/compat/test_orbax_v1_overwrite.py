# SPDX-License-Identifier: Apache-2.0
"""compat.orbax_v1: checkpoints that take the place of others, also when the process is killed."""

from __future__ import annotations

import os
import pathlib
import random
import shutil
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
from orbax.checkpoint import v1 as orbax

import stepwell
from stepwell.compat import orbax_v1 as ocp


def test_overwriting_leaves_no_instant_without_a_checkpoint(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a"
    ocp.save(path, {"x": np.zeros(100)})
    with pytest.raises(ValueError, match="already exists"):
        ocp.save(path, {"x": np.ones(100)})
    stop = threading.Event()
    seen: list[float] = []

    def read() -> None:
        while not stop.is_set():
            os.stat(path / "_CHECKPOINT_METADATA")  # it is always there
            seen.append(float(ocp.load(path)["x"].sum()))

    thread = threading.Thread(target=read)
    thread.start()
    for _ in range(5):
        ocp.save(path, {"x": np.ones(100)}, overwrite=True)
    stop.set()
    thread.join()
    assert seen and set(seen) <= {0.0, 100.0}
    assert os.listdir(tmp_path) == ["a"]


def test_a_killed_overwrite_leaves_the_old_checkpoint_or_the_new_one(
        tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a"
    chance = random.Random(3)
    saved = -1
    for _ in range(12):
        program = """
import itertools, sys, numpy as np
import stepwell
from stepwell.compat import orbax_v1 as ocp
for step in itertools.count(int(sys.argv[2])):
    ocp.save(sys.argv[1], {"x": np.full(50_000, step), "step": step}, overwrite=True)
    print(step, flush=True)
"""
        with subprocess.Popen([sys.executable, "-c", program, str(path), str(saved + 1)],
                              stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            saved = int(child.stdout.readline())
            time.sleep(chance.random() * 0.1)
            child.kill()
            saved = max([saved, *map(int, child.stdout.read().split())])
        found = ocp.load(path)
        assert found["step"] in (saved, saved + 1) and (found["x"] == found["step"]).all()
        saved = found["step"]
    ocp.save(path, {"x": 1}, overwrite=True)
    assert os.listdir(tmp_path) == ["a"]


def test_what_an_interrupted_save_left_is_replaced(tmp_path: pathlib.Path) -> None:
    leftover = tmp_path / "a.orbax-checkpoint-tmp"
    (leftover / "store").mkdir(parents=True)
    (leftover / "rubbish").write_text("x")
    ocp.save(tmp_path / "a", {"x": 1})
    assert ocp.load(tmp_path / "a") == {"x": 1} and os.listdir(tmp_path) == ["a"]
    with pytest.raises(ocp.errors.InvalidLayoutError, match="incomplete"):
        leftover.mkdir()
        ocp.load(leftover)


def test_saves_of_one_path_take_place_in_order(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a"
    for first in range(0, 12, 3):
        saves = [ocp.save_async(path, {"x": np.full(1000, first + each)}, overwrite=True)
                 for each in range(3)]
        for each in saves:
            each.result()
        assert set(ocp.load(path)["x"]) == {first + 2}
    ocp.save_async(tmp_path / "b", {"x": np.zeros(10)})
    with pytest.raises(ValueError, match="already exists"):
        ocp.save_async(tmp_path / "b", {"x": np.zeros(10)})
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_a_save_refuses_a_path_that_another_process_saves(tmp_path: pathlib.Path) -> None:
    program = """
import fcntl, os, sys
os.makedirs(sys.argv[1])
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)
print(flush=True)
sys.stdin.read()
"""
    path = tmp_path / "a"
    with subprocess.Popen([sys.executable, "-c", program, f"{path}.orbax-checkpoint-tmp"],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        with pytest.raises(stepwell.LockedError, match="another process saves this checkpoint"):
            ocp.save(path, {"x": np.ones(3)})
        child.communicate()
    ocp.save(path, {"x": np.ones(3)})
    assert os.listdir(tmp_path) == ["a"]


def test_a_save_that_fails_lets_the_next_one_have_the_path(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a"
    for values in (np.ones(3), np.ones(20 << 20)):  # the second is not copied at once
        with pytest.raises(ValueError):
            ocp.save(path, {"x": values, "y": object()})
        with pytest.raises(ValueError):
            ocp.save(path, {"x": values}, custom_metadata={"y": object()})
    ocp.save(path, {"x": np.ones(3)})
    assert sorted(os.listdir(tmp_path)) == ["a"]


def test_a_checkpoint_that_is_replaced_while_it_is_opened(
        tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, other = tmp_path / "a", tmp_path / "b"
    ocp.save(path, {"x": np.zeros(10)})
    ocp.save(other, {"x": np.ones(10)})
    opened = stepwell._store.open
    calls = []

    def replace_then_open(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        if len(calls) > 1:
            return opened(*args, **kwargs)
        shutil.rmtree(path / "state" / ".stepwell" / "segments")  # half of the old one is seen
        try:
            return opened(*args, **kwargs)
        finally:
            shutil.rmtree(path)
            os.rename(other, path)

    monkeypatch.setattr(stepwell._store, "open", replace_then_open)
    assert ocp.load(path)["x"].sum() == 10 and len(calls) == 2


def test_a_step_that_a_killed_overwrite_left_beside_its_successor(tmp_path: pathlib.Path) -> None:
    with orbax.training.Checkpointer(tmp_path) as real:
        real.save(5, {"x": np.zeros(3)})
    with stepwell.open(tmp_path / ".stepwell") as store:  # committed; Orbax's is there yet
        store.save(5, {"x": np.ones(3)}).result()
    with ocp.training.Checkpointer(tmp_path) as found:
        assert found.load(5)["x"].sum() == 3
        found.delete(5)
        found.reload()
        assert not found.checkpoints and not (tmp_path / "5").exists()
