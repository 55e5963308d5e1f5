# SPDX-License-Identifier: Apache-2.0
"""compat.orbax_v1: the functions on a path that is a root's step, and what a Checkpointer knows."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import pathlib
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from orbax.checkpoint import v1 as real

import stepwell
from equality import alike
from stepwell.compat import orbax_v1 as ocp

pytestmark = [pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
              pytest.mark.filterwarnings("ignore:Sharding info not provided:UserWarning")]

keeps = ocp.training.preservation_policies


def steps_of(checkpointer: Any) -> list[int]:
    return [each.step for each in checkpointer.checkpoints]


# ---- through the store --------------------------------------------------------------------------


@pytest.mark.parametrize("is_open", [True, False])
def test_paths_of_steps_change_the_root(tmp_path: pathlib.Path, is_open: bool) -> None:
    checkpointer = ocp.training.Checkpointer(tmp_path)
    for step in range(5):
        checkpointer.save(step, {"x": np.full(3, step)}, force=True)
    if not is_open:
        checkpointer.close()
    ocp.save(tmp_path / "3", {"x": np.full(3, 30)}, overwrite=True, custom_metadata={"a": 1})
    with pytest.raises(ValueError, match="already exists"):
        ocp.save(tmp_path / "2", {"x": np.full(3, 20)})
    assert ocp.delete(tmp_path / "4")
    if not is_open:
        checkpointer = ocp.training.Checkpointer(tmp_path)
    with checkpointer:
        assert steps_of(checkpointer) == [0, 1, 2, 3]
        assert checkpointer.load(3)["x"].tolist() == [30] * 3
        assert checkpointer.metadata(3).custom_metadata == {"a": 1}
        assert checkpointer.save(4, {"x": np.full(3, 40)}, force=True)
    for library in (ocp, real):
        for step, value in enumerate([0, 1, 2, 30, 40]):
            assert library.load(tmp_path / str(step))["x"].tolist() == [value] * 3


def test_items_of_a_steps_path_go_through_the_store(tmp_path: pathlib.Path) -> None:
    with ocp.training.Checkpointer(tmp_path) as checkpointer:
        checkpointer.save_checkpointables(0, {"state": {"x": 1}, "data": {"y": 2}})
        assert ocp.delete(tmp_path / "0", checkpointable_name="data")
        assert list(checkpointer.load_checkpointables(0)) == ["state"]
        assert list(ocp.checkpointables_metadata(tmp_path / "0").metadata) == ["state"]
        with pytest.raises(ocp.errors.InvalidLayoutError, match="is an item of the checkpoint"):
            ocp.load(tmp_path / "0" / "state")


def test_a_root_is_named_with_its_steps(tmp_path: pathlib.Path) -> None:
    with ocp.training.Checkpointer(tmp_path) as checkpointer:
        for step in (3, 7):
            checkpointer.save(step, {"x": step}, force=True)
        for call in (ocp.load, ocp.load_checkpointables, ocp.metadata,
                     ocp.checkpointables_metadata):
            with pytest.raises(ocp.errors.InvalidLayoutError,
                               match=r"root of several checkpoints, the steps \[3, 7\]"):
                call(tmp_path)
        assert not ocp.is_orbax_checkpoint(tmp_path)
        with pytest.raises(ocp.errors.InvalidLayoutError, match="Not an Orbax checkpoint root"):
            ocp.delete(tmp_path)


# ---- lists --------------------------------------------------------------------------------------


def test_a_failed_save_forgets_no_step(tmp_path: pathlib.Path) -> None:
    with ocp.training.Checkpointer(tmp_path, preservation_policy=keeps.LatestN(2)) as checkpointer:
        for step in range(2):
            checkpointer.save(step, {"x": step}, force=True)
        failing = {"x": np.zeros(3), "y": object()}
        for step, overwrite in ((2, False), (1, True)):
            with pytest.raises(ValueError, match="object"):
                checkpointer.save(step, failing, force=True, overwrite=overwrite)
            assert steps_of(checkpointer) == [0, 1] and checkpointer.load() == {"x": 1}


def test_a_save_that_fails_in_the_background_forgets_no_step(
        tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ocp.training.Checkpointer(tmp_path, preservation_policy=keeps.LatestN(2)) as checkpointer:
        for step in range(2):
            checkpointer.save(step, {"x": np.full(3, step)}, force=True)
        with monkeypatch.context() as patch:
            patch.setattr(stepwell.SaveHandle, "result", _full_disk)
            for step, overwrite in ((2, False), (1, True)):
                response = checkpointer.save_async(step, {"x": np.zeros(3)}, force=True,
                                                   overwrite=overwrite)
                assert response is not None
                with pytest.raises(stepwell.NoSpaceError):
                    response.result()
        checkpointer.reload()
        assert steps_of(checkpointer)[-1] in (1, 2) and 1 in steps_of(checkpointer)


def _full_disk(handle: Any, timeout: float | None = None) -> int:
    raise stepwell.NoSpaceError("no space left")


def test_lists_are_those_of_the_store(tmp_path: pathlib.Path) -> None:
    """Two Checkpointers of one directory, and what others change."""
    with (ocp.training.Checkpointer(tmp_path) as one,
          ocp.training.Checkpointer(tmp_path, preservation_policy=keeps.LatestN(2)) as two):
        for step in range(4):
            (one, two)[step % 2].save(step, {"x": step}, force=True)
        assert steps_of(one) == steps_of(two) == [2, 3]
        two.delete(3)
        assert steps_of(one) == [2] and one.latest.step == 2
        assert one.should_save(3)


def test_the_time_of_a_step_does_not_change(tmp_path: pathlib.Path) -> None:
    with ocp.training.Checkpointer(tmp_path) as checkpointer:
        checkpointer.save_async(0, {"x": np.zeros(3)}, force=True)
        before = checkpointer.checkpoints[0].time
        checkpointer.wait()
        assert checkpointer.checkpoints[0].time == before


def test_two_threads_save_and_delete(tmp_path: pathlib.Path) -> None:
    with ocp.training.Checkpointer(tmp_path, preservation_policy=keeps.LatestN(3)) as checkpointer:
        def save(first: int) -> None:
            for step in range(first, 40, 2):
                checkpointer.save_async(step, {"x": np.full(3, step)}, force=True)

        threads = [threading.Thread(target=save, args=(first,)) for first in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        checkpointer.wait()
        checkpointer.save(40, {"x": np.full(3, 40)}, force=True)
        assert len(steps_of(checkpointer)) == 3 and checkpointer.latest.step == 40
    assert len([name for name in os.listdir(tmp_path) if name.isdigit()]) == 3


# ---- cancelling ---------------------------------------------------------------------------------


def test_a_cancelled_overwrite_leaves_the_old_version(tmp_path: pathlib.Path) -> None:
    context = context_of(ocp)
    items = {"state": {"x": jnp.arange(3.0), "t": (1, None)}, "json": {"at": [1, None]}}
    with ocp.training.Checkpointer(tmp_path, context=context) as checkpointer:
        checkpointer.save_checkpointables(0, items, metrics={"loss": 1.0},
                                          custom_metadata={"a": 1})
        checkpointer.save_async(0, {"x": jnp.zeros(3)}, overwrite=True, force=True,
                                metrics={"loss": 2.0})
        checkpointer.cancel(0)
        assert steps_of(checkpointer) == [0]
        assert checkpointer.checkpoints[0].metrics == {"loss": 1.0}
        assert checkpointer.metadata(0).custom_metadata == {"a": 1}
        loaded = checkpointer.load_checkpointables(0, {"state": items["state"], "json": None})
        np.testing.assert_array_equal(loaded["state"]["x"], np.arange(3.0))
        assert loaded["state"]["t"] == (1, None) and loaded["json"] == items["json"]
    with context_of(real):
        assert real.load_checkpointables(tmp_path / "0")["json"] == items["json"]


def context_of(library: Any) -> Any:
    context = library.Context()
    registry = library.handlers.local_registry()
    registry.add(library.handlers.JsonHandler, checkpointable_name="json")
    context.checkpointables.registry = registry
    return context


def test_a_cancelled_save_keeps_what_retention_gave_up(tmp_path: pathlib.Path) -> None:
    with ocp.training.Checkpointer(tmp_path, preservation_policy=keeps.LatestN(1)) as checkpointer:
        checkpointer.save(0, {"x": np.zeros(3)})
        checkpointer.save_async(1, {"x": np.ones(3)}, force=True)
        checkpointer.cancel(1)
        assert steps_of(checkpointer) == [0]
        assert checkpointer.load()["x"].tolist() == [0, 0, 0]


# ---- donation, links, FIFOs ---------------------------------------------------------------------


@pytest.mark.parametrize("make", [
    lambda: jnp.arange(1000.0), lambda: jnp.ones(10, bool), lambda: jnp.zeros((0, 3)),
    lambda: jnp.arange(9).astype(jnp.bfloat16), lambda: jnp.float32(3),
    lambda: jax.random.split(jax.random.key(3), 4)])
def test_an_array_may_be_deleted_once_save_async_has_returned(
        tmp_path: pathlib.Path, make: Any) -> None:
    array, expected = make(), make()
    response = ocp.save_async(tmp_path / "one", {"a": array})
    array.delete()
    response.result()
    loaded = ocp.load(tmp_path / "one", {"a": expected})["a"]
    assert alike(loaded, expected)


@pytest.mark.parametrize("name", ["_CHECKPOINT_METADATA", "_CHECKPOINT_DELETION"])
def test_a_fifo_hangs_nothing(tmp_path: pathlib.Path, name: str) -> None:
    real.save(tmp_path / "a", {"x": np.ones(3)})
    path = tmp_path / "a" / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    thread = threading.Thread(target=lambda: ocp.is_orbax_checkpoint(tmp_path / "a"))
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    with contextlib.suppress(ValueError, stepwell.Error):
        assert ocp.load(tmp_path / "a")["x"].tolist() == [1, 1, 1]


def test_deep_metadata_are_no_recursion_error(tmp_path: pathlib.Path) -> None:
    real.save(tmp_path / "a", {"x": np.ones(3)})
    (tmp_path / "a" / "_CHECKPOINT_METADATA").write_text("[" * 100_000 + "]" * 100_000)
    with pytest.raises((ocp.errors.InvalidLayoutError, stepwell.CorruptionError)):
        ocp.load(tmp_path / "a")


# ---- parts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("first, second", [
    ({"a": {"b": 1}}, {"a": 2}), ({"a": 1}, {"a": {"b": 2}}), ({"a": 1}, {"a": {}}),
    ({"a": {"b": 1}}, {"a": {"b": 2}})])
def test_a_part_that_does_not_fit_is_refused_at_once(
        tmp_path: pathlib.Path, first: Any, second: Any) -> None:
    path = tmp_path / "a"
    ocp.partial.save(path, first)
    with pytest.raises(Exception, match="REPLACEMENT") as raised:
        ocp.partial.save(path, second)
    assert type(raised.value).__module__.startswith("orbax.checkpoint")
    ocp.partial.save(path, {"c": 3})
    ocp.partial.finalize(path)
    assert ocp.load(path) == {**first, "c": 3}


def test_steps_of_v0_from_before_it_described_them(tmp_path: pathlib.Path) -> None:
    with real.training.Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(0, {"x": np.ones(3)})
    for name in ("_CHECKPOINT_METADATA", "orbax.checkpoint"):
        (tmp_path / "0" / name).unlink(missing_ok=True)
    assert ocp.is_orbax_checkpoint(tmp_path / "0")
    for library in (ocp, real):
        assert library.load(tmp_path / "0")["x"].tolist() == [1, 1, 1]
        assert library.metadata(tmp_path / "0").metadata["x"].shape == (3,)
        assert library.checkpointables_metadata(tmp_path / "0").metadata.keys() == {"state"}


class Saves:
    """Has `save`, and no `load`: Orbax has no handler for it."""

    async def save(self, directory: Any) -> Any:
        raise AssertionError


def test_objects_that_save_and_do_not_load_are_refused(tmp_path: pathlib.Path) -> None:
    kinds = []
    for library in (real, ocp):
        with pytest.raises(KeyError) as raised:
            library.save_checkpointables(tmp_path / library.__name__, {"a": Saves()})
        kinds.append(type(raised.value))
        del raised
        gc.collect()  # Orbax leaves a coroutine behind
    assert kinds[0] is kinds[1] and os.listdir(tmp_path) == []


def test_handlers_metadata_stay_with_a_replaced_step(tmp_path: pathlib.Path) -> None:
    """A step replaced by its path names the handlers of its items."""
    with ocp.training.Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(0, {"x": 1})
    with context_of(ocp):
        ocp.save_checkpointables(tmp_path / "0", {"state": {"x": 2}, "json": {"at": 3}},
                                 overwrite=True)
    described = json.loads((tmp_path / "0" / "_CHECKPOINT_METADATA").read_text())
    assert described["item_handlers"]["json"].startswith("orbax.checkpoint.")
    assert ocp.load_checkpointables(tmp_path / "0")["json"] == {"at": 3}
