# SPDX-License-Identifier: Apache-2.0
"""A step through zarr-python."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import zarr
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import cpu, default_buffer_prototype
from zarr.testing.store import StoreTests

import stepwell
from stepwell.compat.zarr import StepStore

# zarr's threads may leave an event loop behind them.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed event loop:ResourceWarning")


def opened(store: stepwell.Store, tree: Any, **options: Any) -> Any:
    step = len(store)
    store.save(step, tree, **options).result()
    return zarr.open(StepStore(store, step), mode="r")


def test_groups_arrays_and_values(store: stepwell.Store) -> None:
    kernel = np.arange(6000.0).reshape(300, 20)
    group = opened(store, {"params": {"kernel": jnp.asarray(kernel), "layers": [np.ones(3), 2.5]},
                           "step": 7, "name": "run", "rate": float("nan"), "none": None},
                   chunks=stepwell.ChunkShape(4096))
    assert sorted(group.keys()) == ["params"]
    assert dict(group.attrs) == {"step": 7, "name": "run", "rate": "nan", "none": None}
    assert sorted(group["params"].keys()) == ["kernel", "layers"]
    array = group["params/kernel"]
    assert array.chunks == store[0]["params/kernel"].chunk_shape != (300, 20)
    assert array.dtype == jnp.asarray(kernel).dtype
    assert np.array_equal(array[:], kernel)
    assert np.array_equal(array[3:290:4, -3:], kernel[3:290:4, -3:])
    assert np.array_equal(group["params/layers/0"][:], np.ones(3))
    assert group["params/layers"].attrs["1"] == 2.5
    assert "params/nothing" not in group
    assert len(list(group.members(max_depth=None))) == 4


@pytest.mark.parametrize("dtype", [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
    "float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 0, 2), (2, 3, 4)])
def test_dtypes_and_shapes(store: stepwell.Store, dtype: str, shape: tuple[int, ...]) -> None:
    stored = (np.arange(np.prod(shape, dtype=int)).reshape(shape) + 1).astype(dtype)
    shown = opened(store, {"w": stored})["w"]
    assert shown.dtype == stored.dtype
    assert shown.shape == shape
    assert np.array_equal(shown[...], stored)
    assert dict(shown.attrs) == {}


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4])
def test_types_that_zarr_has_no_name_for(store: stepwell.Store, dtype: Any) -> None:
    stored = np.arange(-3, 4).astype(dtype)
    shown = opened(store, {"w": stored})["w"]
    assert shown.attrs["stepwell_dtype"] == stored.dtype.name
    assert shown.dtype.kind == "u"
    assert np.array_equal(shown[:].view(dtype).astype(float), np.arange(-3.0, 4.0))


def test_prng_keys(store: stepwell.Store) -> None:
    shown = opened(store, {"key": jax.random.key(7)})["key"]
    assert np.array_equal(shown[:], jax.random.key_data(jax.random.key(7)))


def test_names_that_zarr_refuses(store: stepwell.Store) -> None:
    names = ["a/b", "", ".", "..", "c", "zarr.json", "__x", "50%", "ü", "a b"]
    group = opened(store, {"node": {name: {"w": np.full(1, number)}
                                    for number, name in enumerate(names)}})["node"]
    assert len(list(group.keys())) == len(names)
    assert group["a%2Fb/w"][0] == 0
    assert {int(group[f"{name}/w"][0]) for name in group} == set(range(len(names)))
    with pytest.raises(stepwell.InvalidArgumentError, match="two nodes"):
        opened(store, {0: np.ones(1), "0": np.ones(1)})


def test_a_subtree_a_leaf_and_items(store: stepwell.Store) -> None:
    store.save(0, {"params": {"w": np.arange(3)}}, items={"other": [np.ones(2)]}).result()
    assert sorted(zarr.open_group(StepStore(store), mode="r").keys()) == ["other", "state"]
    subtree = zarr.open_group(StepStore(store, 0, "state/params"), mode="r")
    assert np.array_equal(subtree["w"][:], np.arange(3))
    leaf = zarr.open_array(StepStore(store, path="state/params/w"), mode="r")
    assert np.array_equal(leaf[1:], [1, 2])
    assert np.array_equal(zarr.open_array(StepStore(store), path="other/0", mode="r")[:], [1, 1])


def test_the_step_stays_as_it_was(store: stepwell.Store) -> None:
    group = opened(store, {"w": np.zeros(3)})
    store.save(0, {"v": np.ones(2)}, if_exists="replace").result()
    assert np.array_equal(group["w"][:], np.zeros(3))


def test_it_is_read_only(store: stepwell.Store) -> None:
    store.save(0, {"w": np.ones(3)}).result()
    shown = StepStore(store)
    assert shown.read_only
    assert shown.with_read_only(True) == shown
    assert shown != StepStore(store, 0, "w")
    for attempt in (lambda: shown.with_read_only(False), lambda: zarr.open_group(shown, mode="w"),
                    lambda: zarr.open_array(shown, path="w", mode="r+"),
                    lambda: asyncio.run(shown.delete("w/zarr.json"))):
        with pytest.raises((ValueError, NotImplementedError), match=r"read.only"):
            attempt()


def test_keys_and_ranges_of_bytes(store: stepwell.Store) -> None:
    store.save(0, {"w": np.arange(9000).astype(np.uint8), "v": np.ones(())},
               chunks=stepwell.ChunkShape(4096)).result()
    shown = StepStore(store)

    async def read() -> None:
        keys = [key async for key in shown.list()]
        assert sorted(keys) == ["v/c", "v/zarr.json", "w/c/0", "w/c/1", "w/c/2", "w/zarr.json",
                                "zarr.json"]
        for key in [*keys, "w/c/9", "w/c", "w/c/0/0", "w/c/x", "c/0", "u/zarr.json", "w", ""]:
            assert await shown.exists(key) == (key in keys), key
        assert sorted([key async for key in shown.list_dir("w")]) == ["c", "zarr.json"]
        assert sorted([key async for key in shown.list_dir("")]) == ["v", "w", "zarr.json"]
        assert [key async for key in shown.list_prefix("w/c/1")] == ["w/c/1"]
        wanted = [None, RangeByteRequest(1, 3), OffsetByteRequest(3), SuffixByteRequest(1)]
        parts = await shown.get_partial_values(default_buffer_prototype(),
                                               [("w/c/1", each) for each in wanted])
        (size,) = store[0]["w"].chunk_shape
        chunk = np.arange(size, 2 * size).astype(np.uint8).tobytes()
        assert [part and part.to_bytes() for part in parts] == [
            chunk, chunk[1:3], chunk[3:], chunk[-1:]]

    asyncio.run(read())


def test_stores_of_one_step_are_equal_and_travel(store: stepwell.Store) -> None:
    store.save(1, {"a": {"w": np.arange(5)}, "b": np.ones(2)}).result()
    store.save(2, {"a": {"w": np.arange(5)}}).result()
    one, other = StepStore(store, 1), StepStore(store, 1)
    assert one == other and hash(one) == hash(other) and {one: 3}[other] == 3
    assert one != StepStore(store, 2) and one != StepStore(store, 1, "a")
    pickled = pickle.dumps(StepStore(store, 1, "a"))
    again = pickle.loads(pickled)
    assert again == StepStore(store, 1, "a") != one
    assert np.array_equal(zarr.open_group(again, mode="r")["w"][:], np.arange(5))
    script = ("import sys, pickle, zarr; shown = pickle.load(sys.stdin.buffer); "
              "print(zarr.open_group(shown, mode='r')['w'][:].sum())")
    done = subprocess.run([sys.executable, "-c", script], input=pickled, capture_output=True,
                          check=True)
    assert done.stdout.split() == [b"10"]
    array = zarr.open_group(one, mode="r")["b"]
    assert np.array_equal(pickle.loads(pickle.dumps(array))[:], np.ones(2))
    store.save(1, {"a": {"w": np.zeros(5)}}, if_exists="replace").result()
    assert one == other != StepStore(store, 1)
    with pytest.raises(stepwell.StepNotFoundError, match="replaced"):
        pickle.loads(pickled)


class _StoreTests(StoreTests[StepStore, cpu.Buffer]):
    """zarr's own tests of stores, as far as they write nothing; they are coroutines."""

    store_cls, buffer_cls = StepStore, cpu.Buffer


@pytest.mark.parametrize("name", [
    "test_store_type", "test_store_eq", "test_get_raises", "test_get_not_open", "test_get",
    "test_getsize", "test_getsize_raises", "test_store_context_manager",
    "test_read_only_store_raises", "test_with_read_only_store",
    "test_store_supports_partial_writes", "test_get_partial_values"])
def test_what_zarr_asks_of_stores(store: stepwell.Store, name: str) -> None:
    """Things that a test puts there come from memory; all else is a step's."""

    class Stored(StepStore):
        """Its keys are made by the test."""

        def __init__(self, *arguments: Any, read_only: bool = True, **keywords: Any) -> None:
            assert read_only
            super().__init__(*arguments, **keywords)
            self.made: dict[str, bytes] = {}

        def _read(self, key: str) -> bytes | None:
            return self.made.get(key) or super()._read(key)

    async def put(self: Any, store: Any, key: str, value: Any) -> None:
        store.made[key] = value.to_bytes()

    store.save(3, {"w": np.arange(4)}).result()
    keywords: dict[str, Any] = {"store": store, "step": 3}
    tests = type("Tests", (_StoreTests,), {"store_cls": Stored, "set": put})()
    test = getattr(StoreTests, name)
    wanted = {"store": lambda: asyncio.run(Stored.open(**keywords)),
              "store_kwargs": lambda: keywords, "open_kwargs": lambda: dict(keywords),
              "store_not_open": lambda: Stored(**keywords),
              "key": lambda: "c/0", "data": lambda: b"\x01\x02\x03\x04",
              "byte_range": lambda: RangeByteRequest(1, 3),
              "key_ranges": lambda: [("zarr.json", None), ("c/0", SuffixByteRequest(1))]}
    arguments = {each: make() for each, make in wanted.items()
                 if each in inspect.signature(test).parameters}
    result = test(tests, **arguments)
    if inspect.iscoroutine(result):
        asyncio.run(result)
