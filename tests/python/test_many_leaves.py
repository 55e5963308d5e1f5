# SPDX-License-Identifier: Apache-2.0
"""Trees of many small leaves: those that are alike, and just as stored, are planned and placed all
at once, and must become what each would become by itself."""

from __future__ import annotations

import collections
import gc
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from equality import bits, same

import stepwell

Point = collections.namedtuple("Point", "x y")  # noqa: PYI024 - as old code has them


def _arrays(make: Any) -> dict[str, Any]:
    """Several of each, in an order that is not that of their names."""
    nans = np.array([0x7FC01234, 0xFF801234, 0x80000000, 1], np.uint32).view(np.float32)
    kinds = {"f4": nans, "bf16": np.arange(4).astype(ml_dtypes.bfloat16), "bool": np.ones(4, bool),
             "int4": np.arange(4).astype(ml_dtypes.int4), "none": np.zeros((0, 3), np.int32),
             "scalar": np.array(2.5, np.float32),
             "bf0": np.array(3, ml_dtypes.bfloat16), "bfnone": np.ones((2, 0), ml_dtypes.bfloat16),
             "bf3": np.array([0x7FC1, 0xFF81, 0x8000, 1] * 6, np.uint16).reshape(2, 3, 4).view(
                 ml_dtypes.bfloat16), "u1": np.arange(6, dtype=np.uint8).reshape(2, 3),
             "f8": np.arange(3, dtype=np.float32)[::-1].copy()}
    return {f"{name}{i}": make(value) for i in (2, 0, 1) for name, value in kinds.items()}


def test_ndarrays_of_plain_containers(store):
    leaves = _arrays(lambda value: value)
    state = {"z": leaves, "a": [leaves["f40"], (leaves["u10"], {7: leaves["f81"], -1: 5})],
             "empty": {}, "none": None, "list": [], "of": Point(leaves["f42"], [leaves["f40"]])}
    store.save(0, state).result()
    like = jax.tree.map(lambda leaf: np.ones_like(leaf) if isinstance(leaf, np.ndarray) else leaf,
                        state)
    like = {name: like[name] for name in state}  # jax.tree.map sorts
    loaded = store.load(0, like=like)
    assert same(loaded, state)
    assert list(loaded) == list(state)
    assert type(loaded["a"][1]) is tuple and type(loaded["of"]) is Point
    assert loaded["z"] is not like["z"] and like["z"]["f40"][0] == 1
    loaded["z"]["f40"][:] = 3  # each has memory of its own
    assert same(loaded["z"]["f41"], state["z"]["f41"])
    backwards = dict(reversed(like["z"].items()))
    assert list(store.load(0, "z", like=backwards)) == list(backwards)


@pytest.mark.parametrize(("change", "message"), [
    (lambda like: like["b"].update(x=np.zeros(3, np.float32)), "b/x: stored float32.4."),
    (lambda like: like["b"].update(x=np.zeros(4, np.int32)), "b/x: stored float32.4.*int32"),
    (lambda like: like["b"].update(w=np.zeros(4, np.float32)), "b/w: missing in the store"),
    (lambda like: like["b"].pop("x"), "b/x: stored float32.4., not in `like`"),
    (lambda like: like.update(b=[np.zeros(4, np.float32)] * 2), "b/0: missing in the store"),
    (lambda like: like.update(a=np.zeros(4, np.float32)), "a: stored a dict of 2, wanted"),
    (lambda like: like["b"].update(x=like["b"]), "b/x: stored float32.4., wanted a dict"),
    (lambda like: like["b"].update(x=jnp.zeros(3)), "b/x: stored float32.4."),
    (lambda like: like["b"].update(x=jax.random.key(0)), "b/x: stored float32.4.*key"),
])
def test_one_leaf_that_differs(store, change, message):
    part = {"x": np.ones(4, np.float32), "y": np.ones(4, np.float32)}
    store.save(0, {"a": part, "b": part}).result()
    like = {"a": dict(part), "b": dict(part)}
    change(like)
    with pytest.raises(stepwell.MismatchError, match=message):
        store.load(0, like=like)


def test_keys_of_every_kind(store):
    state: dict[Any, Any] = {True: np.zeros(2), 2: np.ones(2), "2": np.ones(2) * 3,
                             "\udc80": np.zeros(1), (1, "a"): np.ones(2) * 4, 2**70: np.ones(2) * 5}
    store.save(0, state).result()
    loaded = store.load(0, like=state)
    assert [type(name) for name in loaded] == [type(name) for name in state]
    assert list(map(bits, loaded.values())) == list(map(bits, state.values()))
    assert list(loaded) == list(state)


def _facts(leaf: Any) -> tuple[Any, ...]:
    return leaf.aval, leaf.committed, leaf.sharding, leaf.sharding.memory_kind


def test_jax_arrays_are_as_device_put_makes_them(store):
    device = jax.devices()[0]
    loose = _arrays(jnp.asarray)
    bound = _arrays(lambda value: jax.device_put(value, device))
    weak = [jnp.asarray(number) for number in (1.0, 2.0, 3.0)]
    host = jax.sharding.SingleDeviceSharding(device, memory_kind="unpinned_host")
    mesh = jax.sharding.NamedSharding(jax.make_mesh((1,), ("d",)), jax.sharding.PartitionSpec("d"))
    placed = [jax.device_put(np.arange(4, dtype=np.int32), to) for to in (host, mesh) * 3]
    keys = [jax.random.key(i) for i in range(3)]
    state = {"loose": loose, "bound": bound, "weak": weak, "placed": placed, "keys": keys,
             "host": [np.ones(3)] * 2}
    store.save(0, state).result()
    loaded = store.load(0, like=state)
    for was, got in zip(jax.tree.leaves(state), jax.tree.leaves(loaded), strict=True):
        assert type(got) is type(was)
        if isinstance(was, jax.Array):
            assert _facts(got) == _facts(was)
    assert same(loaded, state)
    step = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf, tree))
    step({name: state[name] for name in ("loose", "bound", "weak", "placed")})
    step({name: loaded[name] for name in ("loose", "bound", "weak", "placed")})
    assert step._cache_size() == 1
    abstract = jax.eval_shape(lambda: state["loose"])
    assert same(store.load(0, "loose", like=abstract), state["loose"])
    with jax.default_device(device):
        assert not any(leaf.committed
                       for leaf in jax.tree.leaves(store.load(0, "loose", like=abstract)))


def test_without_the_private_way(store, monkeypatch):
    state = _arrays(jnp.asarray)
    store.save(0, state).result()
    monkeypatch.setattr("stepwell._load.device_placement._batched_device_put", lambda: None)
    assert same(store.load(0, like=state), state)


def test_64_bits_without_x64(store):
    state = {f"x{i}": np.arange(3, dtype=np.float64) + i for i in range(3)}
    store.save(0, state).result()
    narrow = {name: jnp.zeros(3) for name in state}
    wide = {name: jax.ShapeDtypeStruct((3,), np.float64) for name in state}
    for like in (narrow, wide):
        for name, array in store.load(0, like=like).items():
            assert array.dtype == np.float32
            np.testing.assert_array_equal(array, state[name])


def test_loaded_arrays_keep_what_they_hold(store):
    count, size = 64, 1024
    states = [{f"x{i}": jnp.full(size, 100 * step + i, jnp.float32) for i in range(count)}
              for step in range(3)]
    for step, state in enumerate(states):
        store.save(step, state).result()
    first = store.load(0, like=states[0])
    kept = dict(list(first.items())[::7])
    del first
    gc.collect()
    others = [store.load(step, like=states[0]) for step in (1, 2, 1)]
    assert all(bits(kept[name]) == bits(states[0][name]) for name in kept)
    donate = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf + 1, tree), donate_argnums=0)
    after = donate(others[0])
    assert bits(after["x5"]) == bits(states[1]["x5"] + 1)
    assert all(bits(others[2][name]) == bits(states[1][name]) for name in kept)
    assert all(bits(kept[name]) == bits(states[0][name]) for name in kept)


def test_on_devices_of_their_own(run_jax, path):
    status, out, err = run_jax("""
import sys, jax, jax.numpy as jnp, numpy as np, stepwell
path = sys.argv[1]
devices = jax.devices()
state = {f"x{i}": jax.device_put(jnp.full(4, i), devices[i % 3]) for i in range(12)}
with stepwell.open(path) as store:
    store.save(0, state).result()
    got = store.load(0, like=state)
    assert all(got[n].sharding == a.sharding and got[n].committed for n, a in state.items())
    assert all(int(got[n][0]) == i for i, n in enumerate(state))
    with jax.default_device(devices[4]):
        loose = store.load(0, like={n: jax.ShapeDtypeStruct(a.shape, a.dtype)
                                    for n, a in state.items()})
    assert {*map(str, {d for a in loose.values() for d in a.devices()})} == {str(devices[4])}
    assert not any(a.committed for a in loose.values())
print("ok")
""", path, XLA_FLAGS="--xla_force_host_platform_device_count=8")
    assert (status, out) == (0, "ok\n"), err


@pytest.mark.parametrize("traced", [jax.jit, lambda load: lambda: jax.eval_shape(load)])
def test_a_load_where_jax_traces(store, traced):
    state = {f"w{i}": jnp.full(4, i, jnp.float32) for i in range(4)}
    store.save(0, state).result()
    got = traced(lambda: store.load(0, like=state))()
    assert [(leaf.shape, leaf.dtype) for leaf in got.values()] == [((4,), jnp.float32)] * 4
    if traced is jax.jit:
        assert all((got[name] == leaf).all() for name, leaf in state.items())


def test_a_record_is_made_once_and_alone_or_with_all(store):
    store.save(0, {"a": np.zeros(3), "b": [jnp.zeros(2), 5], "c": {}}).result()
    tree = store._source(0).tree
    alone = tree.record(3)
    assert alone is tree.record(3) is tree.records[3]
    paths = {number: tree.text(number) for number in range(len(tree))}
    assert paths[3] == "b/0" and alone.shape == (2,) and tree.record(1).shape == (3,)
    for number in (-1, len(tree)):
        with pytest.raises(IndexError):
            tree.record(number)
