# SPDX-License-Identifier: Apache-2.0
"""The Orbax v0 facade: what a path means, checkpoints of older Orbax, handlers of one's own."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as real
import pytest
from orbax_v0_saves import STATE, options, save

from stepwell.compat import orbax as ocp

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sharding info not provided:UserWarning"),
    # Orbax leaves reads behind where a restore fails.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(autouse=True)
def quiet() -> Any:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def equal(found: Any, expected: Any) -> bool:
    return bool(jax.tree.all(jax.tree.map(lambda x, y: bool(np.all(x == y)), found, expected)))


# ---- items of a step ----------------------------------------------------------------------------


@pytest.mark.parametrize("lib", [ocp, real], ids=["ours", "orbaxs"])
def test_an_item_of_a_step_is_a_checkpoint(lib: Any, tmp_path: Path) -> None:
    """MaxText loads the parameters of a run so."""
    state = {"params": {"w": jnp.arange(4.0)}, "step": 3}
    with lib.CheckpointManager(tmp_path / "run") as manager:
        manager.save(0, args=lib.args.Composite(items=lib.args.PyTreeSave(state),
                                                data=lib.args.JsonSave({"at": 1})))
        manager.wait_until_finished()
        path = tmp_path / "run" / "0" / "items"
        assert equal(ocp.PyTreeCheckpointer().restore(path), state)
        with ocp.StandardCheckpointer() as checkpointer:
            assert equal(checkpointer.restore(path, state), state)
            described = checkpointer.metadata(path).item_metadata
            assert described["params"]["w"].shape == (4,)
        part = {"params": {"w": jnp.zeros(4)}}
        found = ocp.PyTreeCheckpointer().restore(
            path, args=ocp.args.PyTreeRestore(part, partial_restore=True))
        assert equal(found, {"params": state["params"]})
        with ocp.Checkpointer(ocp.JsonCheckpointHandler()) as checkpointer:
            assert checkpointer.restore(tmp_path / "run" / "0" / "data") == {"at": 1}


def test_a_wrong_directory_names_the_right_one(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        manager.save(5, args=ocp.args.Composite(items=ocp.args.StandardSave(STATE)))
        manager.wait_until_finished()
        for call in (ocp.PyTreeCheckpointer().restore, ocp.StandardCheckpointer().restore,
                     ocp.StandardCheckpointer().metadata):
            with pytest.raises(FileNotFoundError, match="5/items"):
                call(tmp_path / "run" / "5")
            with pytest.raises(FileNotFoundError, match="5"):
                call(tmp_path / "run")
            with pytest.raises(FileNotFoundError, match="items"):
                call(tmp_path / "run" / "5" / "other")


def test_a_checkpointer_replaces_an_item_of_a_step(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        save(manager, 1, custom_metadata={"note": 1})
        with ocp.StandardCheckpointer() as checkpointer:
            with pytest.raises(ValueError, match="already exists"):
                checkpointer.save(tmp_path / "run" / "1" / "default", {"w": jnp.zeros(9)})
            checkpointer.save(tmp_path / "run" / "1" / "default", {"w": jnp.zeros(9)}, force=True)
            checkpointer.wait_until_finished()
            assert checkpointer.restore(tmp_path / "run" / "1" / "default")["w"].shape == (9,)
        assert manager.restore(1)["w"].shape == (9,)
        assert manager.metadata(1).custom_metadata == {"note": 1}
    with real.CheckpointManager(tmp_path / "run") as reader:
        assert reader.restore(1, args=real.args.StandardRestore())["w"].shape == (9,)


def test_names_of_temporary_directories() -> None:
    name = "7.orbax-checkpoint-tmp-123"
    for lib in (real, ocp):
        with pytest.raises(ValueError):
            lib.utils.step_from_checkpoint_name("no number")
    assert ocp.utils.step_from_checkpoint_name is real.utils.step_from_checkpoint_name
    assert ocp.utils.is_tmp_checkpoint("/x/" + name) == real.utils.is_tmp_checkpoint("/x/" + name)


def test_an_unfinished_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.orbax-checkpoint-tmp").mkdir()
    with pytest.raises(ValueError, match="incomplete"):
        ocp.PyTreeCheckpointer().restore(tmp_path / "a.orbax-checkpoint-tmp")


# ---- checkpoints of older Orbax -----------------------------------------------------------------


def test_checkpoints_without_orbaxs_metadata(tmp_path: Path) -> None:
    state = {"w": jnp.arange(4.0), "n": np.arange(3)}
    with real.CheckpointManager(tmp_path / "run") as manager:
        for step in (1, 2):
            manager.save(step, args=real.args.StandardSave(state))
    os.remove(tmp_path / "run" / "1" / "_CHECKPOINT_METADATA")
    for name in ("_CHECKPOINT_METADATA", "default/_METADATA"):
        os.remove(tmp_path / "run" / "2" / name)
    target = jax.tree.map(jnp.zeros_like, state)
    asked = ocp.args.PyTreeRestore(
        target, restore_args=ocp.checkpoint_utils.construct_restore_args(target))
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        assert manager.all_steps() == [1, 2]
        assert equal(manager.restore(1), state)
        assert manager.metadata(1).item_metadata["w"].shape == (4,)
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        assert equal(manager.restore(2, args=asked), state)
        with pytest.raises(FileNotFoundError):
            manager.restore(2, args=ocp.args.PyTreeRestore())
    for step in "12":
        found = ocp.PyTreeCheckpointer().restore(tmp_path / "run" / step / "default", args=asked)
        assert equal(found, state)
    with real.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "flat", state)
    os.remove(tmp_path / "flat" / "_METADATA")
    assert equal(ocp.PyTreeCheckpointer().restore(tmp_path / "flat", args=asked), state)


def test_orbaxs_own_handlers_read_and_write_files(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        manager.save(0, args=ocp.args.Composite(state=ocp.args.StandardSave(STATE),
                                                data=ocp.args.JsonSave([1])))
        manager.wait_until_finished()
        path = manager.directory / "0"
        found = ocp.CompositeCheckpointHandler().restore(path, args=ocp.args.Composite(
            state=ocp.args.StandardRestore(STATE), data=ocp.args.JsonRestore()))
        assert found.data == [1] and equal(found.state, STATE)
        found = ocp.StandardCheckpointHandler().restore(path / "state")
        assert equal(found, STATE)
    handler = ocp.StandardCheckpointHandler()
    (tmp_path / "files").mkdir()
    handler.save(manager.directory.parent / "files", args=ocp.args.StandardSave(STATE))
    handler.finalize(manager.directory.parent / "files")
    assert equal(ocp.PyTreeCheckpointer().restore(tmp_path / "files"), STATE)


def test_a_legacy_transform_reads_orbaxs_files(tmp_path: Path) -> None:
    def rename(item: Any, structure: Any, infos: Any) -> Any:
        return {"v": structure["w"]}, {"v": infos["w"]}

    with ocp.CheckpointManager(tmp_path / "run") as manager:
        save(manager, 0)
        with ocp.PyTreeCheckpointer() as checkpointer:
            found = checkpointer.restore(
                tmp_path / "run" / "0" / "default", item={"v": np.zeros(4)},
                restore_args={"v": ocp.RestoreArgs(restore_type=np.ndarray)},
                legacy_transform_fn=rename)
    np.testing.assert_array_equal(found["v"], STATE["w"])


# ---- what is empty ------------------------------------------------------------------------------

EMPTY: dict[str, Any] = {"array": jnp.arange(3.0), "None": None, "{}": {}, "[]": [],
                         "masked": optax.MaskedNode()}


@pytest.mark.parametrize("saved", ["array", "None", "{}", "masked"])
@pytest.mark.parametrize("how", ["standard", "pytree", "arguments"])
def test_what_is_empty_matches_a_leaf(saved: str, how: str, tmp_path: Path) -> None:
    found: list[list[Any]] = []
    for lib in (real, ocp):
        path = tmp_path / lib.__name__
        checkpointer = (lib.StandardCheckpointer if how == "standard"
                        else lib.PyTreeCheckpointer)()
        checkpointer.save(path, {"x": EMPTY[saved], "y": 1})
        if how == "standard":
            checkpointer.wait_until_finished()
        found.append([])
        for value in EMPTY.values():
            target = {"x": value, "y": 0}
            more: dict[str, Any] = {}
            if how == "arguments":
                more["restore_args"] = lib.checkpoint_utils.construct_restore_args(target)
            restored = (checkpointer.restore(path, target) if how == "standard"
                        else checkpointer.restore(path, item=target, **more))
            found[-1].append(jax.tree.map(np.asarray, restored))
    assert str(found[1]) == str(found[0])


# ---- handlers of one's own ----------------------------------------------------------------------


class Renamed(ocp.PyTreeCheckpointHandler):  # type: ignore[misc]
    """Changes nothing, and has no arguments of its own."""


class Counting(ocp.AsyncCheckpointHandler):  # type: ignore[misc]
    """Wraps another one."""

    def __init__(self) -> None:
        self.inner = ocp.PyTreeCheckpointHandler()

    async def async_save(self, directory: Any, args: Any) -> Any:
        return await self.inner.async_save(directory, args=args)

    def save(self, directory: Any, args: Any) -> None:
        self.inner.save(directory, args=args)

    def restore(self, directory: Any, args: Any = None) -> Any:
        return {"counted": self.inner.restore(directory, args=args)}

    def metadata(self, directory: Any) -> Any:
        return self.inner.metadata(directory)

    def finalize(self, directory: Any) -> None:
        self.inner.finalize(directory)

    def close(self) -> None:
        self.inner.close()


@ocp.args.register_with_handler(Counting, for_save=True)
class CountingSave(ocp.args.PyTreeSave):  # type: ignore[misc]
    pass


@ocp.args.register_with_handler(Counting, for_restore=True)
class CountingRestore(ocp.args.PyTreeRestore):  # type: ignore[misc]
    pass


def test_a_subclass_without_arguments_of_its_own(tmp_path: Path) -> None:
    for name, checkpointer in (("a", ocp.Checkpointer(Renamed())),
                               ("b", ocp.AsyncCheckpointer(Renamed()))):
        checkpointer.save(tmp_path / name, STATE)
        checkpointer.close()
        target = {"w": jnp.zeros(4)}
        assert equal(checkpointer.restore(tmp_path / name), STATE)
        assert equal(checkpointer.restore(tmp_path / name, item=target), STATE)
        assert (tmp_path / name / "_METADATA").exists()  # a tree, not files
        assert checkpointer.metadata(tmp_path / name).item_metadata["w"].shape == (4,)


@pytest.mark.parametrize("kind", ["Checkpointer", "AsyncCheckpointer"])
def test_a_handler_that_wraps_another_as_a_single_checkpoint(kind: str, tmp_path: Path) -> None:
    with getattr(ocp, kind)(Counting()) as checkpointer:
        for n in range(2):
            checkpointer.save(tmp_path / "a", args=CountingSave({"n": np.arange(n + 2)}),
                              force=True)
        checkpointer.close()
        found = checkpointer.restore(tmp_path / "a", args=CountingRestore())
        assert equal(found, {"counted": {"n": np.arange(3)}})
        assert checkpointer.metadata(tmp_path / "a").item_metadata["n"].shape == (3,)
    with getattr(real, kind)(Counting()) as checkpointer:
        assert equal(checkpointer.restore(tmp_path / "a", args=CountingRestore()),
                     {"counted": {"n": np.arange(3)}})
    assert equal(ocp.PyTreeCheckpointer().restore(tmp_path / "a"), {"n": np.arange(3)})
    with ocp.CheckpointManager(tmp_path / "run", options=options(max_to_keep=1)) as manager:
        for step in range(2):
            manager.save(step, args=ocp.args.Composite(it=CountingSave({"n": np.arange(step + 1)})))
        found = manager.restore(1, args=ocp.args.Composite(it=CountingRestore()))
        assert equal(found.it, {"counted": {"n": np.arange(2)}})


def test_random_keys_are_orbaxs(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        manager.save(0, args=ocp.args.Composite(
            key=ocp.args.JaxRandomKeySave(jax.random.key(3)),
            numpy=ocp.args.NumpyRandomKeySave(np.random.RandomState(5).get_state())))
        manager.wait_until_finished()
        for lib in (ocp, real):
            read_only = lib.CheckpointManagerOptions(read_only=True)
            with lib.CheckpointManager(tmp_path / "run", options=read_only) as reader:
                found = reader.restore(0, args=lib.args.Composite(
                    key=lib.args.JaxRandomKeyRestore(), numpy=lib.args.NumpyRandomKeyRestore()))
                assert found.key == jax.random.key(3) and found.numpy[2] == 624


class _AroundComposite(ocp.CompositeCheckpointHandler):
    """Does something more at a save, and is no handler of Orbax's own for that."""

    def save(self, *args: Any, **kwargs: Any) -> None:
        super().save(*args, **kwargs)

    async def async_save(self, *args: Any, **kwargs: Any) -> Any:
        return await super().async_save(*args, **kwargs)


@ocp.args.register_with_handler(_AroundComposite, for_save=True, for_restore=True)
class _Around(ocp.args.Composite):
    """Its arguments: each attribute is an item."""


def test_a_handler_around_a_composite_one(tmp_path: Path) -> None:
    for kind in (ocp.Checkpointer, ocp.AsyncCheckpointer):
        path = tmp_path / kind.__name__
        with kind(_AroundComposite()) as checkpointer:
            checkpointer.save(path, args=_Around(
                state=ocp.args.StandardSave({"w": np.arange(3)})))
            if isinstance(checkpointer, ocp.AsyncCheckpointer):
                checkpointer.wait_until_finished()
            restored = checkpointer.restore(path, args=_Around(
                state=ocp.args.StandardRestore({"w": np.zeros(3, int)})))
            assert np.array_equal(restored["state"]["w"], np.arange(3))
