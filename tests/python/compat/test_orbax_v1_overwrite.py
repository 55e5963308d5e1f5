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

import forks
import stepwell
from stepwell.compat import _resolve
from stepwell.compat import equinox as equinox_io
from stepwell.compat import orbax as v0
from stepwell.compat import orbax_v1 as ocp
from storm import in_a_storm


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


@pytest.mark.parametrize("door", ["load", "checkpointables", "metadata", "v0", "v0 metadata",
                                  "equinox"])
def test_a_checkpoint_replaced_while_it_is_opened(tmp_path: pathlib.Path, door: str,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that has the place of the old one's log, and then opens files of the new one, finds
    damage that is none."""
    path = tmp_path / "a"

    def save(value: int) -> None:
        tree = {"x": np.full(70_000, value), "y": np.full(9, value)}
        if door == "equinox":
            equinox_io.tree_serialise_leaves(path, tree)
        elif door.startswith("v0"):
            v0.PyTreeCheckpointer().save(path, tree, force=True)
        else:
            ocp.save(path, tree, overwrite=True)

    doors: dict[str, Any] = {
        "load": lambda: ocp.load(path)["x"],
        "v0": lambda: v0.PyTreeCheckpointer().restore(path)["x"],
        "checkpointables": lambda: ocp.load_checkpointables(path)["state"]["x"],
        "metadata": lambda: ocp.metadata(path).metadata["x"],
        "v0 metadata": lambda: v0.PyTreeCheckpointer().metadata(path).item_metadata["x"],
        "equinox": lambda: equinox_io.tree_deserialise_leaves(
            path, {"x": np.zeros(70_000, int), "y": np.zeros(9, int)})["x"]}
    save(0)
    original = stepwell.Store._source

    def damaged(replaced: bool) -> Any:
        def source(store: stepwell.Store, *arguments: Any) -> Any:
            monkeypatch.setattr(stepwell.Store, "_source", original)
            if replaced:
                save(1)
            raise stepwell.CorruptionError("files of two checkpoints")

        return source

    monkeypatch.setattr(stepwell.Store, "_source", damaged(replaced=True))
    found = doors[door]()
    if "metadata" not in door:
        assert set(found.tolist()) == {1}
    monkeypatch.setattr(stepwell.Store, "_source", damaged(replaced=False))
    with pytest.raises(stepwell.CorruptionError, match="files of two"):
        doors[door]()


@pytest.mark.parametrize("door", ["path", "root"])
def test_a_checkpoint_of_orbax_is_read_of_one_piece(tmp_path: pathlib.Path, door: str,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    """Each item is imported by itself: one that is replaced between two of them is read again."""
    path = tmp_path / "run/1"

    def trees(value: int) -> dict[str, Any]:
        return {name: {"x": np.full(9, value)} for name in ("model", "opt")}

    orbax.save_checkpointables(path, trees(0))
    original = _resolve.OrbaxCheckpoint.open

    def opened(self: Any, name: str) -> Any:
        given = original(self, name)
        monkeypatch.setattr(_resolve.OrbaxCheckpoint, "open", original)
        orbax.save_checkpointables(tmp_path / "other", trees(1))
        path.rename(tmp_path / "old")
        (tmp_path / "other").rename(path)
        return given

    monkeypatch.setattr(_resolve.OrbaxCheckpoint, "open", opened)
    if door == "path":
        found = ocp.load_checkpointables(path)
    else:
        with ocp.training.Checkpointer(tmp_path / "run") as checkpointer:
            found = checkpointer.load_checkpointables(1)
    assert (tmp_path / "old").exists()
    assert {name: set(found[name]["x"].tolist()) for name in found} == {"model": {1}, "opt": {1}}


def test_a_killed_overwrite_leaves_the_old_checkpoint_or_the_new_one(
        tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a"
    chance = random.Random(3)
    saved = -1
    for _ in range(in_a_storm(4)):
        program = """
import itertools, sys, numpy as np
import stepwell
from stepwell.compat import orbax_v1 as ocp
for step in itertools.count(int(sys.argv[2])):
    ocp.save(sys.argv[1], {"x": np.full(50_000, step), "step": step}, overwrite=True)
    print(step, flush=True)
"""
        child = forks.start(program, path, saved + 1)
        saved = int(child.stdout.readline())
        time.sleep(chance.random() * 0.1)
        child.kill()
        out, _ = child.communicate()
        saved = max([saved, *map(int, out.split())])
        found = ocp.load(path)
        assert found["step"] in (saved, saved + 1) and (found["x"] == found["step"]).all()
        saved = found["step"]
    ocp.save(path, {"x": 1}, overwrite=True)
    assert os.listdir(tmp_path) == ["a"]


_CLAIM = """
import os, sys
from stepwell._runtime.durable import Folder
claim = Folder(sys.argv[1])
os.makedirs(os.path.join(claim.temporary, "store"))
print(flush=True)
sys.stdin.read()
os._exit(9)
"""


def test_what_a_killed_save_left_is_replaced(tmp_path: pathlib.Path) -> None:
    subprocess.run([sys.executable, "-c", _CLAIM, tmp_path / "a"], input=b"", check=False)
    leftover = tmp_path / "a.orbax-checkpoint-tmp"
    assert leftover.exists()
    with pytest.raises(ocp.errors.InvalidLayoutError, match="incomplete"):
        ocp.load(leftover)
    ocp.save(tmp_path / "a", {"x": 1})
    assert ocp.load(tmp_path / "a") == {"x": 1} and os.listdir(tmp_path) == ["a"]


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
    path = tmp_path / "a"
    with subprocess.Popen([sys.executable, "-c", _CLAIM, path], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        with pytest.raises(stepwell.LockedError):
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


def test_a_killed_overwrite_of_a_step_of_orbax_is_finished(tmp_path: pathlib.Path) -> None:
    """The process dies once the new version is durable, and before the old one goes."""
    with orbax.training.Checkpointer(tmp_path) as real:
        real.save(5, {"x": np.zeros(3)})
    program = """
import os, sys, numpy as np
from stepwell._runtime import durable
from stepwell.compat import orbax_v1 as ocp
checkpointer = ocp.training.Checkpointer(sys.argv[1])
durable.remove = lambda path: os._exit(9)
checkpointer.save(5, {"x": np.ones(3)}, overwrite=True, force=True)
"""
    assert forks.run(program, tmp_path)[0] == 9
    with ocp.training.Checkpointer(tmp_path) as found:
        assert found.load(5)["x"].sum() == 3
        assert [each.step for each in found.checkpoints] == [5]
    for library in (ocp, orbax):
        assert library.load(tmp_path / "5")["x"].sum() == 3
    with ocp.training.Checkpointer(tmp_path) as found:
        found.delete(5)
        assert not found.checkpoints and not (tmp_path / "5").exists()


def test_what_a_killed_save_of_orbax_left_is_in_nobodys_way(tmp_path: pathlib.Path) -> None:
    left = tmp_path / "ckpt.orbax-checkpoint-tmp"
    (left / "state").mkdir(parents=True)
    (left / "state" / "half").write_text("half")
    ocp.save(tmp_path / "ckpt", {"w": np.arange(3.0)})
    assert ocp.load(tmp_path / "ckpt")["w"].tolist() == [0, 1, 2]
    assert os.listdir(tmp_path) == ["ckpt"]
