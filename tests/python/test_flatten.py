# SPDX-License-Identifier: Apache-2.0
"""The rows that a save takes of a tree: plain containers and arrays are walked in C++, all else in
Python, and no tree shows which."""

from __future__ import annotations

import collections
import gc
import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equality import same

import stepwell
from stepwell._pytree.tree import (ATTRIBUTE, DEPTH_MAX, INDEX, INT_KEY, KEY, NODE, Flattener,
                                   Path)

Point = collections.namedtuple("Point", "x y")  # noqa: PYI024 - as old code has them


def rows_of(tree: Any) -> list[Any]:
    flat = Flattener()
    assert flat.walk(tree, (), False)
    assert not flat.bad
    return list(flat.rows)


def random_tree(rng: random.Random, depth: int) -> Any:
    """Of containers and leaves that JAX knows, too."""
    kind = rng.choice(["leaf"] * 2 + ["dict", "ordered", "ints", "list", "tuple", "point"]
                      if depth else ["leaf"])
    if kind == "leaf":
        return rng.choice([
            lambda: np.array([rng.random()]), lambda: jnp.asarray(rng.random()),
            lambda: np.array(rng.randrange(9), ">i4"), lambda: np.float32(rng.random()),
            lambda: rng.random(), lambda: "é\udc80" + str(rng.random()), lambda: None,
            lambda: jnp.ones((0, 2), jnp.bfloat16), lambda: True])()
    children = [random_tree(rng, depth - 1) for _ in range(rng.randrange(4))]
    names = rng.sample(["b", "a", "", "a/b", "\0", "ü", "\udc80"], len(children))
    if kind == "point":
        return Point(random_tree(rng, depth - 1), random_tree(rng, depth - 1))
    if kind == "ints":
        return dict(zip(rng.sample(range(-9, 9), len(children)), children, strict=True))
    if kind in ("list", "tuple"):
        return children if kind == "list" else tuple(children)
    made = dict if kind == "dict" else collections.OrderedDict
    return made(zip(names, children, strict=True))


def jax_path(keys: tuple[Any, ...]) -> Path:
    path: list[tuple[int, Any]] = []
    for key in keys:
        if isinstance(key, jax.tree_util.DictKey):
            path.append((INT_KEY if isinstance(key.key, int) else KEY, key.key))
        elif isinstance(key, jax.tree_util.SequenceKey):
            path.append((INDEX, key.idx))
        else:
            path.append((ATTRIBUTE, key.name))
    return tuple(path)


@pytest.mark.parametrize("seed", range(40))
def test_leaves_have_the_paths_that_jax_gives_them(seed: int) -> None:
    tree = random_tree(random.Random(seed), 5)
    leaves = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda node: node is None)[0]
    rows = [row for row in rows_of(tree) if row.tag != NODE]
    assert sorted(row.path for row in rows) == sorted(jax_path(keys) for keys, _ in leaves)
    by_path = {row.path: row for row in rows}
    for keys, leaf in leaves:
        data = by_path[jax_path(keys)].data
        if isinstance(leaf, jax.Array) or (isinstance(leaf, np.ndarray) and leaf.dtype.isnative):
            assert data is leaf
        elif isinstance(leaf, (np.ndarray, np.generic)):
            assert data.dtype.isnative and data == leaf
        else:
            assert isinstance(data, bytes)


@pytest.mark.parametrize("seed", range(40, 60))
def test_what_is_saved_comes_back(store: stepwell.Store, seed: int) -> None:
    tree = {"root": random_tree(random.Random(seed), 5), "leaf": 1}
    store.save(0, tree).result()
    native = jax.tree.map(lambda leaf: leaf.astype("i4") if isinstance(leaf, np.ndarray)
                          and not leaf.dtype.isnative else leaf, tree)
    loaded = store.load(0, like=tree)
    assert same(loaded, native)


def test_rows_stand_in_the_order_of_the_tree() -> None:
    array = np.ones(2)
    tree = {"z": [array, {"q": array, 3: Point(array, ())}], "a": (), "m": {}, "b": array}
    rows = rows_of(tree)
    z, one = (KEY, "z"), (INDEX, 1)
    assert [row.path for row in rows] == [
        (), (z,), (z, (INDEX, 0)), (z, one), (z, one, (KEY, "q")), (z, one, (INT_KEY, 3)),
        (z, one, (INT_KEY, 3), (ATTRIBUTE, "x")), (z, one, (INT_KEY, 3), (ATTRIBUTE, "y")),
        ((KEY, "a"),), ((KEY, "m"),), ((KEY, "b"),)]
    nodes = [(row.container.name, row.child_count) for row in rows if row.tag == NODE]
    assert nodes == [("DICT", 4), ("LIST", 2), ("DICT", 2), ("NAMEDTUPLE", 2), ("TUPLE", 0),
                     ("TUPLE", 0), ("DICT", 0)]


def test_functions_are_no_children() -> None:
    rows = rows_of({"f": len, "g": [len, np.ones(1), jax.jit(lambda x: x)]})
    assert [row.child_count for row in rows if row.tag == NODE] == [1, 1]
    assert rows[-1].path == ((KEY, "g"), (INDEX, 1))


class Changes:
    """Changes a container that is being saved, as another thread may."""

    def __init__(self, change: Any) -> None:
        self._change = change

    def get_state(self) -> dict[str, int]:
        self._change()
        return {"n": 1}

    def set_state(self, state: Any) -> None:
        raise NotImplementedError


def test_containers_that_change_while_they_are_saved(store: stepwell.Store) -> None:
    state: dict[str, Any] = {}
    inner: list[Any] = []

    def change() -> None:
        state.clear()
        inner.clear()
        for number in range(1000):
            state[f"new{number}"] = np.zeros(1)
        inner.extend([np.zeros(1)] * 1000)

    inner.extend([Changes(change), np.full(3, 2.0), jnp.full(3, 4.0)])
    state.update(a=np.full(3, 1.0), b=inner, c=np.full(3, 3.0), d={"e": np.full(3, 5.0)})
    store.save(0, state).result()
    assert sorted(store.tree(0)) == ["a", "b/0/n", "b/1", "b/2", "c", "d/e"]
    assert [store.load(0, path)[0] for path in ("a", "b/1", "c", "b/2", "d/e")] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("make", [np.asarray, jnp.asarray])
def test_saves_with_the_same_names_in_another_order(store: stepwell.Store, make: Any) -> None:
    arrays = {name: make(np.full(2000, number, np.float32)) for number, name in enumerate("abcd")}
    turned = dict(reversed(arrays.items()))
    swapped = {**arrays, "a": arrays["b"], "b": arrays["a"]}
    fewer = {name: arrays[name] for name in "dbx" if name in arrays}
    states = [arrays, turned, swapped, fewer, swapped, {"x": arrays["a"], **arrays}]
    for step, state in enumerate(states):
        store.save(step, state).result()
    for step, state in enumerate(states):
        loaded = store.load(step)
        assert list(loaded) == sorted(state)
        for name, array in state.items():
            np.testing.assert_array_equal(loaded[name], array)


def test_an_array_that_is_there_again_in_another_order_is_not_read(store: stepwell.Store) -> None:
    state = {name: jnp.full(300_000, ord(name), jnp.float32) for name in "abc"}
    store.save(0, state).result()
    again = store.save(1, {"c": state["c"], "new": 1, "b": state["b"] + 0, "a": state["a"]})
    again.result()
    assert again.stats is not None and again.stats.owned_bytes < 20_000
    np.testing.assert_array_equal(store.load(1, "a"), state["a"])


@pytest.mark.parametrize("make", [np.asarray, jnp.asarray])
def test_leaves_that_become_others(store: stepwell.Store, make: Any) -> None:
    leaves = [make(np.arange(6, dtype=np.float32)), make(np.arange(6, dtype=np.float32)),
              make(np.arange(6, dtype=np.int32)), make(np.arange(6, dtype=np.int32).reshape(2, 3)),
              7, {"y": make(np.zeros(2, np.int8))}, [make(np.zeros(2, np.int8))], None,
              make(np.arange(6).astype(jnp.bfloat16)), make(np.float32(2.5))]
    for step, leaf in enumerate(leaves):
        store.save(step, {"x": leaf, "z": make(np.ones(1, np.float32))}).result()
    for step, leaf in enumerate(leaves):
        loaded = store.load(step, like={"x": leaf, "z": make(np.ones(1, np.float32))})
        assert same(jax.device_get(loaded["x"]), jax.device_get(leaf))


def test_shardings_are_those_of_each_array(store: stepwell.Store) -> None:
    mesh = jax.sharding.NamedSharding(jax.make_mesh((1,), ("d",)), jax.sharding.PartitionSpec("d"))
    for step in range(2):
        made = jax.jit(lambda: [jnp.ones(4), jnp.ones(4)])()
        state = {"a": jax.device_put(made[0], mesh), "b": made[1], "c": jnp.ones(4)}
        store.save(step, state).result()
        kinds = [store[step][name].sharding for name in "abc"]
        assert ["NamedSharding" in str(kind) for kind in kinds] == [True, False, False]


def test_shardings_of_arrays_that_are_gone_go() -> None:
    """`device_put` makes one for each array, at each call."""
    def count() -> int:
        return sum(type(each) is jax.sharding.SingleDeviceSharding for each in gc.get_objects())

    before = count()
    arrays = [np.ones(1)] * 1000
    kept = [jax.device_put(array) for array in arrays]
    for _ in range(12):
        rows_of([jax.device_put(array) for array in arrays])
        rows_of(kept)
    assert count() < before + 8000
    kinds = {row.sharding for row in rows_of(kept) if row.tag != NODE}
    assert len(kinds) == 1 and "SingleDevice" in kinds.pop()


def test_deleted_arrays_are_named(store: stepwell.Store) -> None:
    state = {"a": jnp.ones(3), "b": [jnp.ones(3), jnp.ones(3)], "c": np.zeros(2, object)}
    store.save(0, {**state, "c": 1}).result()
    state["b"][1].delete()
    with pytest.raises(stepwell.UnsupportedLeafError) as raised:
        store.save(1, state)
    assert list(raised.value.paths) == ["b/1", "c"]
    assert "was deleted or donated" in str(raised.value) and "dtype object" in str(raised.value)


def test_dtypes_that_are_not_numpys_own_objects(store: stepwell.Store) -> None:
    noted = np.dtype(np.float32, metadata={"note": 1})
    assert noted is not np.dtype(np.float32)
    many = {f"x{number}": np.full(2, number, np.dtype(np.int16, metadata={"n": number}))
            for number in range(40)}
    state = {"noted": np.arange(3, dtype=noted), "swapped": np.arange(3, dtype=">i8"), **many}
    store.save(0, state).result()
    loaded = store.load(0)
    assert loaded["noted"].dtype == np.float32 and loaded["swapped"].dtype == np.int64
    assert all((loaded[name] == array).all() for name, array in state.items())


@pytest.mark.parametrize("wrap", [
    lambda below: {"k": below}, lambda below: [below], lambda below: (below,),
    lambda below: {1: below}, lambda below: collections.OrderedDict(k=below),
    lambda below: Point(below, 1)])
def test_how_deep_a_tree_may_be(store: stepwell.Store, wrap: Any) -> None:
    tree: Any = np.ones(2)
    for _ in range(DEPTH_MAX):
        tree = wrap(tree)
    assert max(len(row.path) for row in rows_of(tree)) == DEPTH_MAX
    with pytest.raises(stepwell.UnsupportedLeafError, match="nested more than 250 levels deep"):
        store.save(0, wrap(tree))


def test_a_key_that_cannot_be_stored_is_named(store: stepwell.Store) -> None:
    with pytest.raises(stepwell.UnsupportedLeafError) as raised:
        store.save(0, {"a": [{"x": np.ones(1), 1j: np.ones(1)}], "b": {object(): 1}})
    assert list(raised.value.paths) == ["a/0", "b"]
