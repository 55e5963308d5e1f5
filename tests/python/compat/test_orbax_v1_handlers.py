# SPDX-License-Identifier: Apache-2.0
"""stepwell.compat.orbax_v1: handlers of checkpointables that are not trees."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Awaitable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from orbax.checkpoint import v1 as real

from stepwell.compat import orbax_v1 as ocp

pytestmark = [pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
              pytest.mark.filterwarnings("ignore:Sharding info not provided:UserWarning")]


class Point:
    def __init__(self, x: int, y: int) -> None:
        self.x, self.y = x, y

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and (self.x, self.y) == (other.x, other.y)


class AbstractPoint:
    pass


class PointHandler:
    """Writes two files, one of them in a directory."""

    async def save(self, directory: Any, checkpointable: Point) -> Awaitable[None]:
        assert directory.path.name

        async def write() -> None:
            folder = await directory.await_creation()
            (folder / "x.txt").write_text(str(checkpointable.x))
            (folder / "more").mkdir()
            (folder / "more" / "y.txt").write_text(str(checkpointable.y))

        return write()

    async def load(self, directory: Any, abstract_checkpointable: Any = None) -> Awaitable[Point]:
        async def read() -> Point:
            return Point(int((directory / "x.txt").read_text()),
                         int((directory / "more" / "y.txt").read_text()))

        return read()

    async def metadata(self, directory: Any) -> AbstractPoint:
        assert (directory / "x.txt").exists()
        return AbstractPoint()

    def is_handleable(self, checkpointable: Any) -> bool:
        return isinstance(checkpointable, Point)

    def is_abstract_handleable(self, abstract_checkpointable: Any) -> bool:
        return isinstance(abstract_checkpointable, AbstractPoint)


class Counter:
    """A StatefulCheckpointable."""

    def __init__(self, value: int) -> None:
        self.value = value

    async def save(self, directory: Any) -> Awaitable[None]:
        value = self.value

        async def write() -> None:
            ((await directory.await_creation()) / "value").write_text(str(value))

        return write()

    async def load(self, directory: Any) -> Awaitable[None]:
        async def read() -> None:
            self.value = int((directory / "value").read_text())

        return read()


def context_with(library: Any, *handlers: Any) -> Any:
    registry = library.handlers.local_registry()
    for handler, name in handlers:
        registry.add(handler, checkpointable_name=name)
    context = library.Context()
    context.checkpointables.registry = registry
    return context


STATE = {"w": jnp.arange(3.0)}


def test_handlers_that_write_files(tmp_path: pathlib.Path) -> None:
    with context_with(ocp, (PointHandler, None)):
        ocp.save_checkpointables(tmp_path / "a", {"state": STATE, "point": Point(1, 2)})
        assert ocp.load_checkpointables(tmp_path / "a")["point"] == Point(1, 2)
        assert ocp.load_checkpointables(tmp_path / "a", {"point": AbstractPoint()}) == {
            "point": Point(1, 2)}
        metadata = ocp.checkpointables_metadata(tmp_path / "a").metadata
        assert isinstance(metadata["point"], AbstractPoint)
    with context_with(real, (PointHandler, None)):
        assert real.load_checkpointables(tmp_path / "a")["point"] == Point(1, 2)
        real.save_checkpointables(tmp_path / "b", {"state": STATE, "point": Point(3, 4)})
    with context_with(ocp, (PointHandler, None)):
        assert ocp.load_checkpointables(tmp_path / "b")["point"] == Point(3, 4)


def test_handlers_by_name_in_a_checkpointer(tmp_path: pathlib.Path) -> None:
    context = context_with(ocp, (PointHandler, "point"), (ocp.handlers.JsonHandler, "dataset"))
    with ocp.training.Checkpointer(tmp_path, context=context) as ckptr:
        value = {"at": 3, "large": 2**60, "names": ["a", None]}
        ckptr.save_checkpointables(0, {"state": STATE, "point": Point(5, 6), "dataset": value})
        loaded = ckptr.load_checkpointables(0)
        assert loaded["point"] == Point(5, 6) and loaded["dataset"] == value
        np.testing.assert_array_equal(ckptr.load(0)["w"], STATE["w"])
    with context_with(real, (PointHandler, "point"), (real.handlers.JsonHandler, "dataset")):
        loaded = real.load_checkpointables(tmp_path / "0")
        assert loaded["point"] == Point(5, 6) and loaded["dataset"] == value


def test_handlers_are_found_again_in_a_checkpointer(tmp_path: pathlib.Path) -> None:
    with ocp.training.Checkpointer(tmp_path, context=context_with(
            ocp, (PointHandler, None))) as ckptr:
        ckptr.save_checkpointables(0, {"state": STATE, "point": Point(5, 6)},
                                   custom_metadata={"a": 1})
        assert ckptr.load_checkpointables(0)["point"] == Point(5, 6)
        assert ckptr.metadata(0).custom_metadata == {"a": 1}
    with ocp.training.Checkpointer(tmp_path) as ckptr:  # its handler is not registered
        with pytest.raises(KeyError, match="'point'"):
            ckptr.load_checkpointables(0)
        assert list(ckptr.load_checkpointables(0, {"state": None})) == ["state"]


def test_stateful_checkpointables(tmp_path: pathlib.Path) -> None:
    assert isinstance(Counter(0), ocp.StatefulCheckpointable)
    ocp.save_checkpointables(tmp_path / "a", {"state": STATE, "counter": Counter(7)})
    counter = Counter(0)
    loaded = ocp.load_checkpointables(tmp_path / "a", {"counter": counter})
    assert loaded["counter"] is counter and counter.value == 7
    other = Counter(0)
    assert real.load_checkpointables(tmp_path / "a", {"counter": other})["counter"].value == 7
    with pytest.raises(KeyError, match="must pass an instance"):
        ocp.load_checkpointables(tmp_path / "a")


def test_handlers_run_inside_an_event_loop(tmp_path: pathlib.Path) -> None:
    async def main() -> Any:
        ocp.save_checkpointables(tmp_path / "a", {"counter": Counter(3)})
        return ocp.load_checkpointables(tmp_path / "a", {"counter": Counter(0)})["counter"].value

    assert asyncio.run(main()) == 3


def test_registries() -> None:
    handlers = ocp.handlers
    registry = handlers.local_registry()
    registry.add(PointHandler, checkpointable_name="point")
    assert registry.get("point") is PointHandler and registry.has("point")
    with pytest.raises(ValueError, match="already exists"):
        registry.add(PointHandler, checkpointable_name="point")
    with pytest.raises(ValueError, match="already exists"):
        registry.add(PointHandler)
    other = handlers.local_registry().add(PointHandler, secondary_typestrs=["old.PointHandler"])
    assert other.get_secondary_typestrs(PointHandler) == ["old.PointHandler"]
    with pytest.raises(KeyError, match="No entry"):
        registry.get("nothing")
    assert not handlers.global_registry().has("point")
    empty = handlers.local_registry(include_global_registry=False)
    assert list(empty.get_all_entries()) == []
    with pytest.raises(NotImplementedError):
        ocp.Context().checkpointables.registry.add(PointHandler)

    class Mine(PointHandler):
        pass

    assert handlers.register_handler(Mine, checkpointable_name="mine") is Mine
    assert handlers.global_registry().get("mine") is Mine
    assert ocp.Context().checkpointables.registry.has("mine")
