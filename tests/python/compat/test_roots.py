# SPDX-License-Identifier: Apache-2.0
"""A directory that several threads of a process use through the facades."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from orbax.checkpoint import v1 as real_v1

import stepwell
from stepwell import _stepwell
from stepwell._runtime import durable
from stepwell.compat import flax as checkpoints
from stepwell.compat import orbax as v0
from stepwell.compat import orbax_v1 as v1
from stepwell.compat._root import Root


def test_steps_that_come_and_go_while_they_are_listed(tmp_path: Path) -> None:
    over = threading.Event()

    def flicker() -> None:
        while not over.is_set():
            (tmp_path / "3").mkdir()
            (tmp_path / "3").rmdir()

    thread = threading.Thread(target=flicker)
    thread.start()
    try:
        with Root(tmp_path, name_format=real_v1.path.step.standard_name_format(),
                  read_only=True) as root:
            for _ in range(50_000):
                assert set(root.foreign(anew=True)) <= {3}
    finally:
        over.set()
        thread.join()


def test_a_save_waits_for_another_threads_close_of_the_directory(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closing, go_on = threading.Event(), threading.Event()
    close = stepwell.Store.close

    def slow_close(store: stepwell.Store) -> None:
        if not closing.is_set():
            closing.set()
            go_on.wait(60)
        close(store)

    monkeypatch.setattr(stepwell.Store, "close", slow_close)
    threads = [threading.Thread(target=checkpoints.save_checkpoint, args=(tmp_path, {"w": 1}, step),
                                kwargs={"keep": 2}) for step in range(2)]
    threads[0].start()
    closing.wait(60)
    threads[1].start()
    threads[1].join(0.2)  # meets the store that is being closed
    go_on.set()
    for thread in threads:
        thread.join()
    assert checkpoints.available_steps(tmp_path) == [0, 1]


def test_leftovers_go_whoever_has_the_root(tmp_path: Path) -> None:
    """Those of Orbax, whose owner is dead; what is being made here stays."""
    def left() -> Path:
        path = tmp_path / "7.orbax-checkpoint-tmp"
        path.mkdir()
        (path / "part").write_text("")
        return path

    with v0.CheckpointManager(tmp_path), durable.Folder(str(tmp_path / "9")) as making:
        mine = left()
        with v0.CheckpointManager(tmp_path, options=v0.CheckpointManagerOptions(
                cleanup_tmp_directories=True)):
            assert not mine.exists() and os.path.isdir(making.temporary)
        mine = left()
        with v1.training.Checkpointer(tmp_path, cleanup_tmp_directories=True):
            assert not mine.exists() and os.path.isdir(making.temporary)


@pytest.mark.parametrize("facade", ["v0", "v1"])
def test_two_managers_choose_what_goes_one_after_the_other(
        tmp_path: Path, facade: str) -> None:
    """Else both may choose from one list, and a step too many stays."""
    together = threading.Barrier(2)
    met: list[bool] = []

    def meet() -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            together.wait(0.5)
            met.append(True)

    class V0Policy(v0.checkpoint_managers.PreservationPolicy):
        def should_preserve(self, checkpoints: Any, *, context: Any) -> list[bool]:
            meet()
            return [True] * len(checkpoints)

    class V1Policy(v1.training.preservation_policies.PreservationPolicy):  # type: ignore[misc]
        def should_preserve(self, checkpoints: Any, *, context: Any) -> list[bool]:
            meet()
            return [True] * len(checkpoints)

    def save(step: int) -> None:
        if facade == "v0":
            with v0.CheckpointManager(tmp_path, options=v0.CheckpointManagerOptions(
                    preservation_policy=V0Policy())) as manager:
                manager.save(step, args=v0.args.StandardSave({"x": np.ones(2)}), force=True)
        else:
            with v1.training.Checkpointer(tmp_path, preservation_policy=V1Policy()) as manager:
                manager.save(step, {"x": np.ones(2)}, force=True)

    threads = [threading.Thread(target=save, args=(step,)) for step in (1, 2)]
    with v0.CheckpointManager(tmp_path):  # one store for all of them
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    assert not met
def test_a_step_that_goes_during_a_look_is_never_another_librarys(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a save would not retire the step that is then shown anew, or remove its directory."""
    with Root(tmp_path, name_format=v0.step.standard_name_format()) as root:
        for step in (1, 2):
            root.save(step, {"state": {"a": np.arange(3)}}).result()
        root.wait_for_view()
        look = _stepwell.made_by_view
        goes = [1]

        def look_too_late(path: str) -> Any:
            if goes and os.path.basename(path) == str(goes[0]):
                root.delete(goes.pop())
                root.wait_for_view()
            return look(path)

        monkeypatch.setattr(_stepwell, "made_by_view", look_too_late)
        assert root.foreign(anew=True) == {} and goes == []
        assert root.own_steps() == [2]


def test_a_killed_overwrite_is_shown_when_the_directory_is_opened(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the view looks before Orbax's directory has gone."""
    with real_v1.training.Checkpointer(tmp_path) as theirs:
        theirs.save(1, {"a": np.arange(3)})
    child = os.fork()
    if child == 0:
        monkeypatch.setattr(durable, "remove", lambda path: os._exit(9))
        with v1.training.Checkpointer(tmp_path) as ours:
            ours.save(1, {"a": np.arange(4)}, overwrite=True, force=True)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    finish = Root._finish_overwrites

    def late(root: Root, store: stepwell.Store) -> None:
        time.sleep(0.5)
        finish(root, store)

    monkeypatch.setattr(Root, "_finish_overwrites", late)
    with v1.training.Checkpointer(tmp_path):
        end = time.monotonic() + 30
        while not (tmp_path / "1" / "stepwell-view").exists() and time.monotonic() < end:
            time.sleep(0.01)
        assert real_v1.load(tmp_path / "1")["a"].shape == (4,)


@pytest.mark.parametrize("how", ["threads", "in the background", "beside the step"])
def test_items_of_a_step_that_are_saved_at_a_time_are_all_there(tmp_path: Path, how: str) -> None:
    def tree(value: int) -> dict[str, Any]:
        return {"x": np.full(3, value)}

    for attempt in range(8):
        path = tmp_path / str(attempt)
        with v1.training.Checkpointer(path) as root:
            root.save_checkpointables(3, {"a": tree(0), "b": tree(0)})
            saves = [functools.partial(v1.save, path / "3" / name, tree(value), overwrite=True)
                     for name, value in (("a", 5), ("b", 6))]
            if how == "threads":
                with concurrent.futures.ThreadPoolExecutor(2) as pool:
                    for each in [pool.submit(save) for save in saves]:
                        each.result()
            elif how == "in the background":
                for response in [v1.save_async(path / "3" / name, tree(value), overwrite=True)
                                 for name, value in (("a", 5), ("b", 6))]:
                    response.result()
            else:
                step = root.save_checkpointables_async(3, {"a": tree(5), "b": tree(5)},
                                                       overwrite=True, force=True)
                time.sleep(attempt / 2000)
                saves[1]()
                step.result()
        with v1.training.Checkpointer(path) as root:
            loaded = root.load_checkpointables(3)
        assert {name: int(item["x"][0]) for name, item in loaded.items()} == {"a": 5, "b": 6}


def test_a_step_is_read_by_its_path_while_it_is_replaced(tmp_path: Path) -> None:
    with v1.training.Checkpointer(tmp_path) as root:
        root.save(3, {"x": np.zeros(3)})
        saved = threading.Event()

        def read() -> list[float]:
            found = []
            while not saved.is_set():
                found.append(float(v1.load(tmp_path / "3")["x"][0]))
            return found

        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            reading = pool.submit(read)
            try:
                for value in range(1, 60):
                    root.save(3, {"x": np.full(3, value)}, overwrite=True, force=True)
            finally:
                saved.set()
            found = reading.result()
    assert found == sorted(found) and found[-1] <= 59
