# SPDX-License-Identifier: Apache-2.0
"""The Orbax v0 facade: handlers of one's own, arguments of leaves, single checkpoints."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import pathlib
import threading
import time
from pathlib import Path
from typing import Any

import grain.python as grain
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as real
import pytest

import stepwell
from orbax_v0_saves import STATE, save

from stepwell.compat import _single
from stepwell.compat import orbax as ocp


# ---- handlers of one's own ----------------------------------------------------------------------


class LinesHandler(ocp.CheckpointHandler):
    """Saves a list of strings as a file, and a copy in a folder."""

    closed = 0

    def save(self, directory: Any, args: Any) -> None:
        (directory / "lines.txt").write_text("\n".join(args.item))
        (directory / "deep" / "er").mkdir(parents=True)
        (directory / "deep" / "er" / "count").write_text(str(len(args.item)))

    def restore(self, directory: Any, args: Any = None) -> Any:
        lines = (directory / "lines.txt").read_text().split("\n")
        assert (directory / "deep" / "er" / "count").read_text() == str(len(lines))
        return [args.prefix + line for line in lines]

    def finalize(self, directory: Any) -> None:
        (directory / "finalized").write_text("")

    def close(self) -> None:
        LinesHandler.closed += 1


@ocp.args.register_with_handler(LinesHandler, for_save=True)
@dataclasses.dataclass
class LinesSave(ocp.args.CheckpointArgs):
    item: list[str]


@ocp.args.register_with_handler(LinesHandler, for_restore=True)
@dataclasses.dataclass
class LinesRestore(ocp.args.CheckpointArgs):
    prefix: str = ""


class AsyncBytesHandler(ocp.AsyncCheckpointHandler):
    """Writes bytes from a coroutine; has no class of arguments."""

    async def async_save(self, directory: Any, item: bytes) -> Any:
        await asyncio.sleep(0)

        class Write:
            def result(self, timeout: Any = None) -> None:
                (pathlib.Path(directory) / "bytes").write_bytes(item)

        return [Write()]

    def save(self, directory: Any, item: bytes) -> None:
        raise AssertionError("async_save is there")

    def restore(self, directory: Any, item: Any = None) -> bytes:
        return (pathlib.Path(directory) / "bytes").read_bytes()


def test_handlers_of_ones_own(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "a") as manager:
        manager.save(0, args=ocp.args.Composite(text=LinesSave(["a", "b"]),
                                                state=ocp.args.StandardSave(STATE)))
        found = manager.restore(0, args=ocp.args.Composite(text=LinesRestore("> ")))
        assert found.text == ["> a", "> b"]
        manager.wait_until_finished()
        assert (tmp_path / "a" / "0" / "text" / "finalized").exists()
    with ocp.CheckpointManager(tmp_path / "a") as manager:
        assert manager.restore(0).text == ["a", "b"]  # the step knows the handler
    assert LinesHandler.closed == 2
    with ocp.Checkpointer(LinesHandler()) as checkpointer:
        checkpointer.save(tmp_path / "b", args=LinesSave(["c"]))
        assert checkpointer.restore(tmp_path / "b", args=LinesRestore("+")) == ["+c"]


def test_handlers_without_arguments_of_their_own(tmp_path: Path) -> None:
    with ocp.CheckpointManager(
            tmp_path / "a", {"blob": ocp.Checkpointer(AsyncBytesHandler())}) as manager:
        manager.save(0, {"blob": b"123"})
        assert manager.restore(0, {"blob": None})["blob"] == b"123"

    async def inside_a_loop() -> Any:
        with ocp.Checkpointer(AsyncBytesHandler()) as checkpointer:
            checkpointer.save(tmp_path / "b", b"456")
            return checkpointer.restore(tmp_path / "b")

    assert asyncio.run(inside_a_loop()) == b"456"


class NoisyHandler(ocp.CheckpointHandler):
    """A handler that is built on another one."""

    def __init__(self) -> None:
        self.inner = ocp.PyTreeCheckpointHandler()

    def save(self, directory: Any, args: Any) -> None:
        self.inner.save(directory, args=ocp.args.PyTreeSave({"inner": args.item}))

    def restore(self, directory: Any, args: Any) -> Any:
        return self.inner.restore(directory, args=ocp.args.PyTreeRestore())["inner"]

    def finalize(self, directory: Any) -> None:
        self.inner.finalize(directory)


@ocp.args.register_with_handler(NoisyHandler, for_save=True, for_restore=True)
@dataclasses.dataclass
class Noisy(ocp.args.CheckpointArgs):
    item: Any = None


def test_handlers_built_on_others(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "a") as manager:
        manager.save(0, args=ocp.args.Composite(noisy=Noisy({"x": np.arange(3)})))
        found = manager.restore(0, args=ocp.args.Composite(noisy=Noisy()))
    np.testing.assert_array_equal(found.noisy["x"], np.arange(3))


def test_registry(tmp_path: Path) -> None:
    registry = ocp.DefaultCheckpointHandlerRegistry()
    registry.add("state", ocp.args.PyTreeSave)
    registry.add("state", ocp.args.PyTreeRestore, ocp.PyTreeCheckpointHandler())
    with pytest.raises(ValueError, match="already exists"):
        registry.add("state", ocp.args.PyTreeSave)
    with pytest.raises(KeyError):
        registry.get("other", ocp.args.PyTreeSave)
    with ocp.CheckpointManager(tmp_path / "a", handler_registry=registry) as manager:
        manager.save(0, args=ocp.args.Composite(state=ocp.args.PyTreeSave(STATE)))
        assert list(manager.restore(0)) == ["state"]
        with pytest.raises(ValueError, match="does not match with any registered handler"):
            manager.save(1, args=ocp.args.Composite(state=ocp.args.StandardSave(STATE)))


def test_handlers_that_others_registered_with_orbax(tmp_path: Path) -> None:
    class Handler(real.CheckpointHandler):
        def save(self, directory: Any, args: Any) -> None:
            (directory / "value").write_text(json.dumps(args.item))

        def restore(self, directory: Any, args: Any) -> Any:
            return json.loads((directory / "value").read_text())

    @real.args.register_with_handler(Handler, for_save=True, for_restore=True)
    @dataclasses.dataclass
    class Both(real.args.CheckpointArgs):
        item: Any = None

    with ocp.CheckpointManager(tmp_path / "a") as manager:
        manager.save(0, args=ocp.args.Composite(it=Both([1, 2]), s=real.args.StandardSave(STATE)))
        found = manager.restore(0, args=real.args.Composite(it=Both(),
                                                            s=real.args.StandardRestore()))
    assert found.it == [1, 2]
    np.testing.assert_array_equal(found.s["w"], STATE["w"])


# ---- arguments of leaves ------------------------------------------------------------------------


def test_save_args_convert(tmp_path: Path) -> None:
    tree = {"a": jnp.ones(3, jnp.float32), "b": np.ones(2), "c": 3}
    for lib in (real, ocp):  # SaveArgs of either
        path = tmp_path / lib.__name__
        save_args = jax.tree.map(lambda _: lib.SaveArgs(dtype=jnp.bfloat16), tree)  # noqa: B023
        ocp.PyTreeCheckpointer().save(path, tree, save_args=save_args)
        found = ocp.PyTreeCheckpointer().restore(path)
        assert (found["a"].dtype, found["b"].dtype, found["c"]) == (jnp.bfloat16, jnp.bfloat16, 3)


def test_what_standard_save_refuses(tmp_path: Path) -> None:
    """Orbax refuses the same, after minutes of waiting."""
    with ocp.CheckpointManager(tmp_path / "a") as manager:
        for item in (None, jnp.ones(3), 3):
            with pytest.raises(ValueError):
                manager.save(0, args=ocp.args.StandardSave(item))
        assert manager.all_steps() == []
        with pytest.raises(TypeError, match="Unsupported type"):
            ocp.Checkpointer(ocp.ArrayCheckpointHandler()).save(
                tmp_path / "array", args=ocp.args.ArraySave("text"))
        save(manager, 0)  # the manager goes on


def test_placeholders_are_not_read(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "a") as manager:
        manager.save(0, args=ocp.args.PyTreeSave({"a": jnp.ones(2), "b": 3}))
        found = manager.restore(0, args=ocp.args.PyTreeRestore({"a": ocp.PLACEHOLDER, "b": 0}))
        assert found == {"a": ..., "b": 3}


def test_metadata_is_a_target(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "a") as manager:
        manager.save(0, args=ocp.args.StandardSave({"a": jnp.ones((2, 3)), "b": [1, np.zeros(2)]}))
        described = manager.item_metadata(0)
        assert (described["a"].shape, described["a"].dtype) == ((2, 3), np.float32)
        assert described["b"][0].dtype == np.int64
        assert jax.tree.map(lambda leaf: leaf.shape, described).tree == {
            "a": (2, 3), "b": [(), (2,)]}
        for target in (described, described.tree,
                       jax.tree.map(ocp.utils.to_shape_dtype_struct, described.tree)):
            found = manager.restore(0, args=ocp.args.StandardRestore(target))
            assert found["a"].sharding == jnp.ones(1).sharding and found["b"][0] in (0, 1)
        args = ocp.checkpoint_utils.construct_restore_args(described)
        found = manager.restore(0)
        assert args["a"].global_shape == (2, 3) and args["b"][0].restore_type is int


def test_custom_metadata_of_items(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "a") as manager:
        manager.save(0, args=ocp.args.Composite(
            s=ocp.args.PyTreeSave(STATE, custom_metadata={"of": "item"})),
            custom_metadata={"of": "step"})
        step = manager.metadata(0)
        assert step.custom_metadata == {"of": "step"}
        assert step.item_metadata.s.custom_metadata == {"of": "item"}
        assert step.item_handlers["s"].endswith(".PyTreeCheckpointHandler")
        assert step.commit_timestamp_nsecs > 0


def test_leaves_that_orbax_cannot_keep_apart_or_save(tmp_path: Path) -> None:
    tree = {"a.b": jnp.ones(2), "a": {"b": jnp.zeros(3)}, "text": "x", "bytes": b"12",
            "big": 2**70, "empty": jnp.zeros((0, 3)), "complex": 1j, "none": {},
            "a/b": np.arange(2)}
    with ocp.CheckpointManager(tmp_path / "a") as manager:
        manager.save(0, args=ocp.args.StandardSave(tree))
        manager.wait_until_finished()
        for args in (None, ocp.args.StandardRestore(tree), ocp.args.PyTreeRestore(tree)):
            with ocp.CheckpointManager(tmp_path / "a") as other:
                found = other.restore(0, args=args)
            assert jax.tree.structure(found) == jax.tree.structure(tree)
            for one, wanted in zip(jax.tree.leaves(found), jax.tree.leaves(tree), strict=True):
                assert type(one) is type(wanted)
                np.testing.assert_array_equal(one, wanted)
        with pytest.raises(ValueError, match="default/x: is of type builtins.object"):
            manager.save(1, args=ocp.args.StandardSave({"x": object()}))
    with pytest.raises(ValueError, match="builtins.object"):
        ocp.PyTreeCheckpointer().save(tmp_path / "b", {"x": object()})
    assert not (tmp_path / "b").exists()


def test_damage_is_found(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "a") as manager:
        manager.save(0, args=ocp.args.StandardSave({"w": np.random.default_rng(0).random(50_000)}))
        manager.wait_until_finished()
        segment = max((tmp_path / "a" / ".stepwell" / "segments").rglob("*"),
                      key=lambda path: path.stat().st_size)
        with open(segment, "r+b") as file:
            file.seek(200_000)
            byte = file.read(1)
            file.seek(200_000)
            file.write(bytes([byte[0] ^ 1]))
        with pytest.raises(stepwell.CorruptionError):
            manager.restore(0)


def test_a_second_process_reads(start_jax: Any, tmp_path: Path) -> None:
    child = start_jax("""
import sys, time
from stepwell.compat import orbax as ocp
with ocp.CheckpointManager(sys.argv[1]) as manager:
    manager.save(0, args=ocp.args.StandardSave({"w": 1}))
    manager.wait_until_finished()
    print("saved", flush=True)
    time.sleep(600)
""", tmp_path / "a")
    assert child.stdout.readline() == "saved\n"
    with ocp.CheckpointManager(tmp_path / "a") as manager:
        assert manager.restore(0) == {"w": 1}
        for change in (lambda: save(manager, 1), lambda: manager.delete(0)):
            with pytest.raises(stepwell.LockedError, match=str(child.pid)):
                change()
    child.kill()
    child.wait()


def test_grain_iterators(tmp_path: Path) -> None:
    dataset = grain.MapDataset.range(20).map(lambda x: x * 2).to_iter_dataset()
    iterator = iter(dataset)
    for _ in range(5):
        next(iterator)
    with ocp.CheckpointManager(tmp_path / "a") as manager:
        manager.save(0, args=ocp.args.Composite(
            data=grain.PyGrainCheckpointSave(iterator), state=ocp.args.StandardSave(STATE)))
        other = iter(dataset)
        found = manager.restore(0, args=ocp.args.Composite(
            data=grain.PyGrainCheckpointRestore(other)))
        assert next(found.data) == next(iterator) == 10


# ---- single checkpoints -------------------------------------------------------------------------


def test_composite_checkpointer(tmp_path: Path) -> None:
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        checkpointer.save(tmp_path / "a", args=ocp.args.Composite(
            state=ocp.args.StandardSave(STATE), data=ocp.args.JsonSave({"x": 1})))
        found = checkpointer.restore(tmp_path / "a", args=ocp.args.Composite(
            data=ocp.args.JsonRestore()))
        assert dict(found) == {"data": {"x": 1}}
        everything = checkpointer.restore(tmp_path / "a")
        assert sorted(everything) == ["data", "state"]
        assert sorted(checkpointer.metadata(tmp_path / "a").item_handlers) == ["data", "state"]
        with pytest.raises(KeyError, match="other"):
            checkpointer.restore(tmp_path / "a", args=ocp.args.Composite(
                other=ocp.args.JsonRestore()))
    with real.Checkpointer(real.CompositeCheckpointHandler()) as checkpointer:
        found = checkpointer.restore(tmp_path / "a", args=real.args.Composite(
            state=real.args.StandardRestore(STATE), data=real.args.JsonRestore()))
        np.testing.assert_array_equal(found.state["w"], STATE["w"])


def test_json_and_array_checkpointers(tmp_path: Path) -> None:
    for writer, reader in ((ocp, real), (real, ocp), (ocp, ocp)):
        name = f"{writer.__name__}-{reader.__name__}"
        with writer.Checkpointer(writer.JsonCheckpointHandler()) as checkpointer:
            checkpointer.save(tmp_path / f"{name}-json", {"a": [1, None]})
        with reader.Checkpointer(reader.JsonCheckpointHandler()) as checkpointer:
            assert checkpointer.restore(tmp_path / f"{name}-json") == {"a": [1, None]}
        with writer.Checkpointer(writer.ArrayCheckpointHandler()) as checkpointer:
            checkpointer.save(tmp_path / f"{name}-array", np.arange(4))
        with reader.Checkpointer(reader.ArrayCheckpointHandler()) as checkpointer:
            np.testing.assert_array_equal(
                checkpointer.restore(tmp_path / f"{name}-array"), np.arange(4))


def test_single_checkpoints_move(tmp_path: Path) -> None:
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "a", STATE, custom_metadata={"x": 1})
        checkpointer.check_for_errors()
        checkpointer.wait_until_finished()
        os.rename(tmp_path / "a", tmp_path / "b")
        np.testing.assert_array_equal(checkpointer.restore(tmp_path / "b")["w"], STATE["w"])
        assert checkpointer.metadata(tmp_path / "b").custom_metadata == {"x": 1}
        with pytest.raises(FileNotFoundError):
            checkpointer.restore(tmp_path / "a")


def test_a_save_that_is_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written, go_on = threading.Event(), threading.Event()
    export = _single._export

    def export_later(*arguments: Any) -> None:
        export(*arguments)
        written.set()
        go_on.wait()

    def cancel_while_it_writes() -> None:
        written.wait()
        cancelling = threading.Thread(target=checkpointer.cancel)
        (work,) = checkpointer._works
        cancelling.start()
        while not work._cancel.__self__.cancelled:
            time.sleep(0.001)
        go_on.set()
        cancelling.join()

    monkeypatch.setattr(_single, "_export", export_later)
    done: list[int] = []
    options = ocp.AsyncOptions(post_finalization_callback=lambda: done.append(1))
    with ocp.StandardCheckpointer(async_options=options) as checkpointer:
        checkpointer.save(tmp_path / "a", STATE)
        cancel_while_it_writes()
        assert os.listdir(tmp_path) == [] and done == []
        checkpointer.save(tmp_path / "a", {"n": 0})
        checkpointer.wait_until_finished()
        written.clear()
        go_on.clear()
        checkpointer.save(tmp_path / "a", STATE, force=True)
        cancel_while_it_writes()
        checkpointer.cancel()
        assert checkpointer.restore(tmp_path / "a") == {"n": 0}
        assert os.listdir(tmp_path) == ["a"] and done == [1]


def test_orbax_sees_which_handler_wrote_an_item(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "a") as manager:
        manager.save(0, args=ocp.args.Composite(text=LinesSave(["a", "b"]),
                                                state=ocp.args.StandardSave(STATE)))
        manager.wait_until_finished()
        described = json.loads((tmp_path / "a" / "0" / "_CHECKPOINT_METADATA").read_text())
        assert described["item_handlers"]["text"] == LinesHandler.typestr()


@pytest.mark.parametrize("library", [real, ocp], ids=["orbax", "stepwell"])
def test_keys_of_another_kind_are_refused(tmp_path, library):
    stored = {"split": jax.random.split(jax.random.key(3), 8),
              "rbg": jax.random.key(3, impl="rbg"), "key": jax.random.key(3)}
    wanted = {"split": jax.random.split(jax.random.key(0), 4), "rbg": jax.random.key(0),
              "key": jnp.zeros(2)}
    for name, key in stored.items():
        with library.StandardCheckpointer() as checkpointer:
            checkpointer.save(tmp_path / name, {"k": key})
        with library.StandardCheckpointer() as checkpointer:
            with pytest.raises(TypeError if name == "key" else ValueError):
                checkpointer.restore(tmp_path / name, {"k": wanted[name]})
            same = checkpointer.restore(tmp_path / name, {"k": key})["k"]
        assert same.dtype == key.dtype and (same == key).all()
