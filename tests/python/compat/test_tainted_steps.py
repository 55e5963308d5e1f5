# SPDX-License-Identifier: Apache-2.0
"""Tainted steps, which the facades do not resume from."""

from __future__ import annotations

import functools
import threading
from pathlib import Path
from typing import Any

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


def tainted(path: Path) -> tuple[list[int], list[int]]:
    """All steps of a store, and the tainted ones."""
    with stepwell.open(path, mode="r") as store:
        return store.steps(), list(store.tainted_steps())


def save_v0(root: Path, *steps: int, value: int = 0, force: bool = False, **named: Any
            ) -> list[bool]:
    """Steps of a manager that is made anew; whether each was saved."""
    options = ocp_v0.CheckpointManagerOptions(**named)
    with ocp_v0.CheckpointManager(root, options=options) as manager:
        return [manager.save(step, args=ocp_v0.args.StandardSave({"w": np.full(4, value + step)}),
                             force=force) for step in steps]


def save_v1(root: Path, *steps: int, value: int = 0, policy: Any = None, **named: Any
            ) -> list[bool]:
    with ocp.training.Checkpointer(root, preservation_policy=policy) as checkpointer:
        return [checkpointer.save(step, {"w": np.full(3, value + step)}, **named)
                for step in steps]


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


def test_orbax_v0_trains_tainted_steps_anew(tmp_path: Path) -> None:
    store = tmp_path / ".stepwell"
    save_v0(tmp_path, *range(6), max_to_keep=3)
    taint(store, 4, 5)
    with ocp_v0.CheckpointManager(tmp_path) as manager:
        assert manager.latest_step() == 3
        assert not manager.should_save(3) and manager.should_save(4)
        with pytest.raises(ocp_v0.checkpoint_manager.StepAlreadyExistsError):
            manager.save(3, args=ocp_v0.args.StandardSave({"w": np.zeros(4)}), force=True)
    assert save_v0(tmp_path, 4, value=100, max_to_keep=3) == [True]
    assert tainted(store) == ([3, 4, 5], [5])
    assert save_v0(tmp_path, 5, 6, value=100, force=True, max_to_keep=3) == [True, True]
    assert tainted(store) == ([4, 5, 6], [])
    with ocp_v0.CheckpointManager(tmp_path) as manager:
        assert [manager.restore(step)["w"][0] for step in (4, 5, 6)] == [104, 105, 106]


def test_orbax_v0_begins_anew_where_every_step_is_tainted(tmp_path: Path) -> None:
    save_v0(tmp_path, 3, 4, max_to_keep=1)
    taint(tmp_path / ".stepwell", 4)
    assert save_v0(tmp_path, 2, max_to_keep=1, save_interval_steps=5) == [True]
    assert tainted(tmp_path / ".stepwell") == ([2], [])


def test_orbax_v0_forgets_the_metrics_of_a_tainted_step(tmp_path: Path) -> None:
    options = ocp_v0.CheckpointManagerOptions(best_fn=lambda metrics: metrics["acc"], max_to_keep=2,
                                              prevent_write_metrics=True)
    state = ocp_v0.args.StandardSave({"w": np.zeros(4)})
    with ocp_v0.CheckpointManager(tmp_path, options=options) as manager:
        manager.save(1, args=state, metrics={"acc": 0.5})
        manager.save(2, args=state, metrics={"acc": 0.9})
        manager.wait_until_finished()
        manager._steps._open().store.taint(2, "leak")
        manager.save(2, args=state)
        assert manager.best_step() == 1


def test_orbax_v0_has_no_tainted_step_for_the_best(tmp_path: Path) -> None:
    options = ocp_v0.CheckpointManagerOptions(best_fn=lambda metrics: metrics["acc"])
    state = ocp_v0.args.StandardSave({"w": np.zeros(4)})
    with ocp_v0.CheckpointManager(tmp_path, options=options) as manager:
        for step, acc in ((1, 0.5), (2, 0.9), (3, 0.7)):
            manager.save(step, args=state, metrics={"acc": acc})
    taint(tmp_path / ".stepwell", 2)
    with ocp_v0.CheckpointManager(tmp_path, options=options) as manager:
        assert manager.best_step() == 3


def test_orbax_v0_keeps_a_step_to_go_back_to(tmp_path: Path) -> None:
    store = tmp_path / ".stepwell"
    save_v0(tmp_path, 1, 2, max_to_keep=2)
    taint(store, 2)
    save_v0(tmp_path, 3, max_to_keep=2)
    assert tainted(store) == ([1, 2, 3], [2])
    taint(store, 3)
    with ocp_v0.CheckpointManager(tmp_path) as manager:
        assert manager.latest_step() == 1
    # Once another one is there, it is the step to go back to.
    save_v0(tmp_path, 4, 5, max_to_keep=2)
    assert tainted(store) == ([4, 5], [])


def test_orbax_v1_trains_tainted_steps_anew(tmp_path: Path) -> None:
    store, keep = tmp_path / ".stepwell", ocp.training.preservation_policies.LatestN(2)
    save_v1(tmp_path, *range(5), policy=keep)
    taint(store, 4)
    with ocp.training.Checkpointer(tmp_path, preservation_policy=keep) as checkpointer:
        assert not checkpointer.should_save(3) and checkpointer.should_save(4)
        assert checkpointer.save(4, {"w": np.full(3, 104)})
        with pytest.raises(ocp.training.errors.StepAlreadyExistsError):
            checkpointer.save(4, {"w": np.full(3, 104)})
        assert checkpointer.latest.step == 4 and checkpointer.load()["w"][0] == 104
    assert tainted(store) == ([3, 4], [])
    taint(store, 4)
    assert save_v1(tmp_path, 4, value=200, policy=keep, force=True) == [True]
    assert tainted(store) == ([3, 4], [])


def test_orbax_v1_keeps_a_step_to_go_back_to(tmp_path: Path) -> None:
    store, keep = tmp_path / ".stepwell", ocp.training.preservation_policies.LatestN(2)
    save_v1(tmp_path, 0, 1, policy=keep)
    taint(store, 1)
    save_v1(tmp_path, 2, policy=keep)
    assert tainted(store) == ([0, 1, 2], [1])
    taint(store, 2)
    with ocp.training.Checkpointer(tmp_path) as checkpointer:
        assert checkpointer.latest.step == 0


def test_orbax_v1_keeps_a_step_below_tainted_ones(tmp_path: Path) -> None:
    store, keep = tmp_path / ".stepwell", ocp.training.preservation_policies.LatestN(1)
    save_v1(tmp_path, 7, 8, policy=keep)
    taint(store, 8)
    assert save_v1(tmp_path, 0, policy=keep) == [True]
    assert tainted(store) == ([0, 8], [8])
    assert save_v1(tmp_path, 1, 2, policy=keep) == [True, True]
    assert tainted(store) == ([1, 2, 8], [8])
    assert save_v1(tmp_path, 8, 9, policy=keep) == [True, True]
    assert tainted(store) == ([9], [])


def test_orbax_v1_cancels_a_save_over_a_tainted_step(tmp_path: Path) -> None:
    began, goes_on = threading.Event(), threading.Event()

    def finished() -> None:
        began.set()
        goes_on.wait(60)

    save_v1(tmp_path, 1, 2)
    taint(tmp_path / ".stepwell", 2)
    context = ocp.Context(async_options=ocp.options.AsyncOptions(
        post_finalization_callback=finished))
    with ocp.training.Checkpointer(tmp_path, context=context) as checkpointer:
        checkpointer.save_async(2, {"w": np.full(3, 102)})
        assert began.wait(60)
        thread = threading.Timer(0.05, goes_on.set)
        thread.start()
        checkpointer.cancel()
        assert checkpointer.latest.step == 1 and checkpointer.load(2)["w"][0] == 2
    assert tainted(tmp_path / ".stepwell") == ([1, 2], [2])


def test_following_passes_tainted_steps_over(tmp_path: Path) -> None:
    assert save_v0(tmp_path, 1, 2, 3) == [True] * 3
    taint(tmp_path / ".stepwell", 3)
    wait = functools.partial(ocp_v0.checkpoint_utils.wait_for_new_checkpoint, tmp_path, timeout=0.1,
                             seconds_to_sleep=0.01)
    assert list(ocp_v0.checkpoint_utils.checkpoints_iterator(
        tmp_path, timeout=0.1, seconds_to_sleep=0.01)) == [2]
    with wait() as step:
        assert step == 2
    with wait(until_step=3) as step:
        assert step == -1
    with ocp_v0.CheckpointManager(tmp_path) as manager, wait() as step:  # that has the store open
        assert step == manager.latest_step() == 2
    save_v0(tmp_path, 3)
    with wait() as step:
        assert step == 3


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


def test_flax_trains_tainted_steps_anew(folder: str) -> None:
    for step in range(4):
        checkpoints.save_checkpoint(folder, {"w": step}, step, keep=4)
    (store,) = Path(folder).glob(".stepwell*")
    taint(store, 2, 3)
    for step in (0, 1):
        with pytest.raises(ValueError):
            checkpoints.save_checkpoint(folder, {"w": 0}, step, keep=1)
    checkpoints.save_checkpoint(folder, {"w": 102}, 2, keep=1)
    assert tainted(store) == ([1, 2, 3], [3])
    assert checkpoints.restore_checkpoint(folder, {"w": 0}) == {"w": 102}
    with pytest.raises(ValueError):
        checkpoints.save_checkpoint(folder, {"w": 0}, 2, keep=1)
    checkpoints.save_checkpoint(folder, {"w": 103}, 3, keep=1)
    assert tainted(store) == ([3], [])


def test_flax_keeps_a_step_to_go_back_to(folder: str) -> None:
    for step in (1, 2):
        checkpoints.save_checkpoint(folder, {"w": step}, step, keep=2)
    (store,) = Path(folder).glob(".stepwell*")
    taint(store, 2)
    checkpoints.save_checkpoint(folder, {"w": 3}, 3, keep=2)
    assert tainted(store) == ([1, 2, 3], [2])
    taint(store, 3)
    assert checkpoints.restore_checkpoint(folder, {"w": 0}) == {"w": 1}
    # overwrite= deletes what is above, and `keep` the rest.
    checkpoints.save_checkpoint(folder, {"w": 4}, 1, keep=1, overwrite=True)
    assert tainted(store) == ([1], [])
