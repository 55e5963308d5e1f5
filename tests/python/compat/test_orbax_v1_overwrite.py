# SPDX-License-Identifier: Apache-2.0
"""compat.orbax_v1: checkpoints that take the place of others, also when the process is killed."""

from __future__ import annotations

import os
import pathlib
import random
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

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
