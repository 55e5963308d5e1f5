# SPDX-License-Identifier: Apache-2.0
"""Tainted steps, which the facades do not resume from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from flax_folders import backend, folder

import stepwell
from stepwell.compat import flax as checkpoints
from stepwell.compat import orbax as ocp_v0
from stepwell.compat import orbax_v1 as ocp

pytestmark = [pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
              pytest.mark.filterwarnings("ignore:Sharding info not provided:UserWarning")]


def taint(path: Path, *steps: int) -> None:
    with stepwell.open(path) as store:
        store.taint(steps, "loss spike")


def test_orbax_v0(tmp_path: Path) -> None:
    with ocp_v0.CheckpointManager(tmp_path / "run") as manager:
        for step in (1, 2, 3):
            manager.save(step, args=ocp_v0.args.StandardSave({"w": np.full(4, step)}))
    taint(tmp_path / "run/.stepwell", 3)
    with ocp_v0.CheckpointManager(tmp_path / "run") as manager:
        assert manager.latest_step() == manager.best_step() == 2
        assert list(manager.all_steps()) == [1, 2, 3]
        assert manager.restore(None)["w"][0] == 2 and manager.restore(3)["w"][0] == 3
        with ocp_v0.CheckpointManager(tmp_path / "other") as other:
            assert other.restore(None, directory=tmp_path / "run")["w"][0] == 2
    taint(tmp_path / "run/.stepwell", 1, 2)
    with ocp_v0.CheckpointManager(tmp_path / "run") as manager:
        assert manager.latest_step() is None
        with pytest.raises(FileNotFoundError):
            manager.restore(None)


def test_orbax_v1(tmp_path: Path) -> None:
    with ocp.training.Checkpointer(tmp_path / "run") as checkpointer:
        for step in range(3):
            checkpointer.save(step, {"w": np.full(3, step)})
    taint(tmp_path / "run/.stepwell", 2)
    with ocp.training.Checkpointer(tmp_path / "run") as checkpointer:
        assert checkpointer.latest.step == 1
        assert [each.step for each in checkpointer.checkpoints] == [0, 1, 2]
        assert checkpointer.load()["w"][0] == 1
        assert checkpointer.load(2)["w"][0] == 2
        # Another one takes its place.
        checkpointer.save(2, {"w": np.full(3, 7)}, overwrite=True)
        assert checkpointer.latest.step == 2 and checkpointer.load()["w"][0] == 7


def test_flax(folder: str) -> None:
    for step in range(3):
        checkpoints.save_checkpoint(folder, {"w": step}, step, keep=3)
    (store,) = Path(folder).glob(".stepwell*")
    taint(store, 2)
    latest = checkpoints.latest_checkpoint(folder)
    assert latest is not None and latest.endswith("checkpoint_1")
    assert checkpoints.restore_checkpoint(folder, {"w": 0}) == {"w": 1}
    assert checkpoints.restore_checkpoint(folder, {"w": 0}, 2) == {"w": 2}
    assert checkpoints.available_steps(folder) == [0, 1, 2]
    taint(store, 0, 1)
    assert checkpoints.latest_checkpoint(folder) is None
    assert checkpoints.restore_checkpoint(folder, {"w": 5}) == {"w": 5}
