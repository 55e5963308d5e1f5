# SPDX-License-Identifier: Apache-2.0
"""The Orbax v0 facade: which steps a manager says there are, whatever fails, moves or shares."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as real
import pytest
from orbax_v0_saves import STATE, options, save

import stepwell
from stepwell.compat import orbax as ocp


class _FullDisk:
    """A save that fails."""

    def result(self, timeout: float | None = None) -> None:
        raise stepwell.NoSpaceError(28, "no space left")


def test_a_save_that_fails_forgets_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ocp.CheckpointManager(tmp_path, options=options(max_to_keep=1)) as manager:
        save(manager, 1)
        with monkeypatch.context() as patch:
            patch.setattr(stepwell.Store, "_save", lambda *_, **__: _FullDisk())
            manager.save(2, args=ocp.args.StandardSave(STATE))
            with pytest.raises(stepwell.NoSpaceError):
                manager.wait_until_finished()
        manager.check_for_errors()  # raised once
        assert manager.all_steps() == [1] and manager.latest_step() == 1
        np.testing.assert_array_equal(manager.restore(None)["w"], STATE["w"])
        save(manager, 2)
        assert manager.all_steps() == [2]  # step 1 went with the commit of this one


def test_steps_go_with_the_commit_that_retires_them(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ocp.CheckpointManager(tmp_path, options=options(max_to_keep=2)) as manager:
        save(manager, 1, 2)
        monkeypatch.setattr(stepwell.Store, "delete", None)  # no second transaction
        save(manager, 3, 4)
        assert manager.all_steps() == [3, 4]
    with stepwell.open(tmp_path / ".stepwell") as store:
        assert store.steps() == [3, 4]


def test_a_directory_that_was_renamed_gets_no_saves_of_another(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with ocp.CheckpointManager(run) as old:
        save(old, 1)
        os.rename(run, tmp_path / "run.old")
        with ocp.CheckpointManager(run) as new:
            assert new.all_steps() == []
            save(new, 7)
            assert (run / "7").is_dir()
            with pytest.raises(stepwell.Error, match="moved or removed"):
                save(old, 8)
    with real.CheckpointManager(run) as reader:
        assert list(reader.all_steps()) == [7]


def test_a_directory_that_was_removed_is_begun_anew(tmp_path: Path) -> None:
    run = tmp_path / "run"
    old = ocp.CheckpointManager(run)
    save(old, 1)
    while run.exists():  # the store may write something meanwhile
        shutil.rmtree(run, ignore_errors=True)
    with ocp.CheckpointManager(run) as new:
        assert save(new, 0, 1) == [True, True]
        assert new.all_steps() == [0, 1]
        np.testing.assert_array_equal(new.restore(1)["w"], STATE["w"])


def test_two_threads_with_managers_of_one_directory(tmp_path: Path) -> None:
    errors: list[BaseException] = []

    def run(first: int) -> None:
        try:
            with ocp.CheckpointManager(tmp_path, options=options(max_to_keep=4)) as manager:
                for step in range(first, 20, 2):
                    manager.save(step, args=ocp.args.StandardSave(STATE), force=True)
                manager.wait_until_finished()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(first,)) for first in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not errors
    with ocp.CheckpointManager(tmp_path, options=options(max_to_keep=4)) as manager:
        save(manager, 20)
        assert manager.all_steps() == [17, 18, 19, 20]


def test_two_prefixes_of_one_directory(tmp_path: Path) -> None:
    with (ocp.CheckpointManager(tmp_path, options=options(max_to_keep=1)) as one,
          ocp.CheckpointManager(tmp_path, options=options(
              max_to_keep=1, step_prefix="c")) as other):
        save(one, 1, 2)
        save(other, 1)
        assert (one.all_steps(), other.all_steps()) == ([2], [1])
        one.wait_until_finished()
        assert sorted(each.name for each in tmp_path.iterdir()
                      if each.name[0] != ".") == ["2", "c_1"]
        np.testing.assert_array_equal(other.restore(1)["w"], STATE["w"])


def test_a_manager_leaves_what_another_facade_saved(tmp_path: Path) -> None:
    from flax.training import checkpoints as flax

    for step in (10, 20):
        flax.save_checkpoint(tmp_path, {"w": np.ones(2)}, step, keep=9)
    with ocp.CheckpointManager(tmp_path, options=options(max_to_keep=1)) as manager:
        assert manager.all_steps() == []
        save(manager, 30)
        assert manager.all_steps() == [30]
    assert flax.available_steps(tmp_path) == [10, 20]


def test_a_save_while_another_manager_saves_is_listed(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path) as one, ocp.CheckpointManager(tmp_path) as other:
        one.save(3, args=ocp.args.StandardSave(STATE))
        assert other.latest_step() == 3 and not other.should_save(3)
        np.testing.assert_array_equal(other.restore(None)["w"], STATE["w"])  # waits for it


def test_steps_of_orbax_are_looked_for_again(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path) as manager:
        save(manager, 1)
        assert manager.all_steps() == [1]
        with real.CheckpointManager(tmp_path) as orbax:
            orbax.save(2, args=real.args.StandardSave(STATE), force=True)
        assert manager.all_steps(read=True) == [1, 2]
        assert not save(manager, 2)[0] and manager.latest_step() == 2
        with real.CheckpointManager(tmp_path) as orbax:
            orbax.delete(2)
        manager.reload()
        assert manager.all_steps() == [1]


def test_asking_at_every_step_is_cheap(tmp_path: Path) -> None:
    """A training loop asks `should_save` at each of its steps."""
    with ocp.CheckpointManager(tmp_path, options=options(save_interval_steps=1000)) as manager:
        for step in range(20):
            manager.save(step, args=ocp.args.StandardSave(STATE), force=True)
        manager.wait_until_finished()
        time.sleep(0.1)
        manager.should_save(21)
        start = time.perf_counter()
        for step in range(21, 121):
            manager.should_save(step)
        assert time.perf_counter() - start < 0.2


def test_a_checkpointer_of_two_threads(tmp_path: Path) -> None:
    errors: list[BaseException] = []
    with ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        def run(name: str) -> None:
            try:
                for n in range(10):
                    checkpointer.save(tmp_path / name, {"n": n}, force=True)
                checkpointer.wait_until_finished()
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=run, args=(name,)) for name in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    assert not errors
    for name in "ab":
        assert ocp.PyTreeCheckpointer().restore(tmp_path / name) == {"n": 9}
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_metrics_that_are_a_number_are_ranked_in_a_root_of_orbax(tmp_path: Path) -> None:
    best: dict[str, Any] = {"best_fn": lambda metric: metric}
    with real.CheckpointManager(tmp_path, options=real.CheckpointManagerOptions(**best)) as orbax:
        for step, metric in ((1, 5.0), (2, 3.0)):
            orbax.save(step, args=real.args.StandardSave(STATE), metrics=metric)
    with ocp.CheckpointManager(tmp_path, options=options(**best)) as manager:
        assert manager.metrics(2) == 3.0 and manager.best_step() == 1
