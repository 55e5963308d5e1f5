# SPDX-License-Identifier: Apache-2.0
"""Data that did not change between steps is stored once, whatever happens to the steps."""

from __future__ import annotations

import itertools
import pathlib
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp_v0
import pytest
import stepwell
from equality import same
from jax.sharding import Mesh, NamedSharding, PartitionSpec

MIB = 1 << 20


def frozen(make: Callable[[np.ndarray], Any]) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    return {name: make(rng.standard_normal((512, 1024)).astype(np.float32)) for name in "abc"}


def tuned(step: int) -> dict[str, Any]:
    return {"lora": jnp.full((4, 64), step, jnp.float32), "count": step}


def owned(store: stepwell.Store) -> list[int]:
    return [store[step].owned_bytes for step in store]


def test_the_same_arrays_are_written_once(path: pathlib.Path) -> None:
    state = frozen(jnp.asarray)
    with stepwell.open(path) as store:
        for step in range(5):
            store.save(step, {"base": state, **tuned(step)}).result()
        first, *others = owned(store)
        assert first >= 6 * MIB and all(own < 0.012 * first for own in others)
        assert all(store[step].stored_bytes >= 6 * MIB for step in store)
        for step in store:
            assert same(store.load(step, as_="jax"), {"base": state, **tuned(step)})


def test_a_handle_and_the_store_say_what_a_step_takes(path: pathlib.Path) -> None:
    state = frozen(jnp.asarray)
    with stepwell.open(path) as store:
        for step in range(3):
            handle = store.save(step, {"base": state, **tuned(step)})
            handle.result()
            stats = handle.stats
            assert stats is not None
            view = store[step]
            assert (stats.stored_bytes, stats.owned_bytes) == (view.stored_bytes,
                                                               view.owned_bytes)
            assert stats.logical_bytes >= 6 * MIB
            assert stats.stored_bytes == stats.owned_bytes + stats.referenced_bytes
            assert (stats.referenced_bytes >= 6 * MIB) is (step > 0)
            assert stats.chunks >= 4 and 0 < stats.snapshot_s <= stats.durable_s
        assert store.save(2, {"x": 1}, if_exists="skip").stats is None
        # All have the frozen arrays, which none of them frees.
        frees = store.frees_bytes()
        assert list(frees) == [0, 1, 2]
        assert all(0 < (frees[step] or 0) < 4096 for step in store)
        assert store.frees_bytes(1) == store.frees_bytes([1]) == {1: frees[1]}
        assert store.frees_bytes([]) == {}
        with pytest.raises(stepwell.StepNotFoundError):
            store.frees_bytes(0, 7)
        store.delete([0, 1])
        last = store.frees_bytes(2)[2]
        assert last is not None and last >= 6 * MIB > store[2].owned_bytes
    assert handle.stats == stats  # it outlives its store
    with stepwell.open(path, mode="r") as reader:
        assert reader.frees_bytes() == {2: last}


def test_what_a_step_took_over_is_live(path: pathlib.Path) -> None:
    """The account of space, in each order of deletes, of a base whose owner is gone."""
    rng = np.random.default_rng(0)
    base = rng.standard_normal(MIB).astype(np.float32)
    for gone in itertools.permutations(range(4), 3):
        where = path.with_name("-".join(map(str, gone)))
        with stepwell.open(where) as store:
            for step in range(4):
                tuned = rng.standard_normal(MIB // 4).astype(np.float32)
                store.save(step, {"base": base, "tuned": tuned}).result()
            own = store[1].owned_bytes
            shared = store[1].stored_bytes - own
            for step in gone:
                store.delete(step)
                assert store.stats()["space"]["live_bytes"] == shared + len(store) * own
            store.reclaim()
            [left] = store
            space = store.stats()["space"]
            assert space["live_bytes"] == store[left].stored_bytes
            assert space["dead_bytes"] < MIB // 4


@pytest.mark.parametrize("make", [np.array, jnp.array], ids=["numpy", "jax"])
def test_equal_content_of_new_objects_is_written_once(path: pathlib.Path,
                                                      make: Callable[[np.ndarray], Any]) -> None:
    for step in range(4):  # each in a session of its own
        with stepwell.open(path) as store:
            store.save(step, {"base": frozen(make), **tuned(step)}).result()
    with stepwell.open(path, mode="r") as store:
        first, *others = owned(store)
        assert all(own < 0.012 * first for own in others)
        for step in store:
            assert same(store.load(step)["base"], frozen(np.array))


def test_what_is_written_in_place_is_seen(path: pathlib.Path) -> None:
    """NumPy arrays are compared, never recognized."""
    state = frozen(np.array)
    with stepwell.open(path) as store:
        store.save(0, state).result()
        state["b"][:] += 1
        store.save(1, state).result()
        assert 2 * MIB <= owned(store)[1] < 2.1 * MIB
        assert same(store.load(1), state) and not same(store.load(0), state)


def test_a_donated_array_is_another_one(path: pathlib.Path) -> None:
    step_function = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf + 1, tree),
                            donate_argnums=0)
    state = frozen(jnp.asarray)
    with stepwell.open(path) as store:
        wanted = []
        for step in range(4):
            store.save(step, state)
            wanted.append(jax.tree.map(np.array, state))
            state = step_function(state)
        store.wait()
        for step in store:
            assert same(store.load(step), wanted[step]), step


def test_shards_that_did_not_change(path: pathlib.Path) -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(-1), ("x",))
    sharding = NamedSharding(mesh, PartitionSpec("x"))
    for make in (lambda: state, lambda: jax.device_put(frozen(np.array), sharding)):
        state = jax.device_put(frozen(np.array), sharding)
        where = path / str(make is not None and len(list(path.parent.iterdir())))
        with stepwell.open(where) as store:
            for step in range(3):
                store.save(step, {"base": make(), **tuned(step)}).result()
            first, *others = owned(store)
            assert all(own < 0.012 * first for own in others)
            assert same(store.load(2)["base"], frozen(np.array))
        path = path.with_name(path.name + "x")


def test_saves_that_are_not_waited_for(path: pathlib.Path) -> None:
    """A save refers to the newest commit that there is, whatever is still under way."""
    state = frozen(jnp.asarray)
    with stepwell.open(path) as store:
        for step in range(12):
            store.save(step, {"base": state, **tuned(step)})
        store.wait()
        assert sum(owned(store)) < 5 * owned(store)[0]
        for step in store:
            assert same(store.load(step, as_="jax"), {"base": state, **tuned(step)})


def test_each_way_out_gives_the_whole_step(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    state = frozen(np.array)
    with stepwell.open(path, keep=stepwell.policy.LatestN(3)) as store:
        for step in range(6):
            store.save(step, {"base": state, **tuned(step)}).result()
        store.reclaim()
        for number, mode in enumerate(("link", "copy")):
            store.export(5, tmp_path / f"x{number}", mode=mode)
            with ocp_v0.StandardCheckpointer() as checkpointer:
                restored = checkpointer.restore(tmp_path / f"x{number}" / "state")
            assert sorted(restored) == ["base", "count", "lora"] and int(restored["count"]) == 5
            assert same(restored["base"], state) and (np.array(restored["lora"]) == 5).all()
        store.export(5, tmp_path / "arrays.npz", to="npz", path="base")
        with np.load(tmp_path / "arrays.npz") as arrays:
            assert sorted(arrays) == ["a", "b", "c"]
            assert all((arrays[name] == state[name]).all() for name in arrays)
        store.branch("b")
        with stepwell.open(path, branch="b") as branch:
            branch.save(9, {"base": state, **tuned(9)}).result()
            assert branch[9].owned_bytes < 0.012 * branch[9].stored_bytes
        store.import_checkpoint(tmp_path / "x1", step=20).result()
        assert same(store.load(20)["base"], state)
        for step in list(store.steps())[:-1]:
            store.delete(step)
        store.reclaim()
        assert same(store.load()["base"], state)
    with stepwell.open(path, branch="b") as branch:
        assert same(branch.load(9)["base"], state) and branch.verify().ok


def test_an_array_that_another_thread_replaced_meanwhile_is_read(path: pathlib.Path) -> None:
    """Each thread saves arrays of its own at the same place, so what one of them has saved before
    says nothing of what lies in the newest step."""
    rounds = 60
    with stepwell.open(path) as store:
        def save(first: int) -> None:
            kept = jnp.full((300, 300), first, jnp.float32)
            for number in range(first, 2 * rounds, 2):
                store.save(number, {"w": kept, "n": number})

        threads = [threading.Thread(target=save, args=(first,)) for first in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        store.wait()
        for step in store:
            assert (store.load(step, "w") == step % 2).all(), step


def test_an_array_that_was_saved_before_is_not_read_again(path: pathlib.Path) -> None:
    """JAX arrays are immutable: what is written below one, through NumPy, is not seen."""
    memory = np.empty(4096 + 16, np.float32)
    begin = -memory.ctypes.data % 64 // 4  # JAX takes memory as it is where that is aligned
    shared = memory[begin:begin + 4096]
    shared[:] = 1
    array = jax.device_put(shared)
    if array.unsafe_buffer_pointer() != shared.ctypes.data:
        pytest.fail("JAX has copied what it could have taken as it is")
    with stepwell.open(path) as store:
        store.save(0, {"w": array}).result()
        shared[:] = 2
        store.save(1, {"w": array}).result()
        store.save(2, {"w": jax.device_put(shared)}).result()
        assert [float(store.load(step, "w")[0]) for step in store] == [1, 1, 2]


def test_an_array_that_is_in_a_tree_twice_is_stored_once(path: pathlib.Path) -> None:
    square = np.random.default_rng(0).standard_normal((500, 500))
    ours, pair = jnp.asarray(square), {"w": square}
    # The same memory, but other elements in each place.
    others = {"t": square.T, "head": square[:250], "flat": square.reshape(-1),
              "back": square[::-1], "bits": square.view(np.int64)}
    state = {"a": square, "b": [square, square], "jax": (ours, {"again": ours}), "pair": pair}
    with stepwell.open(path) as store:
        store.save(0, state).result()
        store.save(1, state | others)
        assert store[0].stored_bytes < square.nbytes + ours.nbytes + 10_000
        assert store.digest(0) == stepwell.digest(state) == stepwell.digest(store.load(0))
        store.wait()
        assert stepwell.digest(store.load(1)) == stepwell.digest(state | others)
        assert store[1].owned_bytes < sum(each.nbytes for each in others.values()) + 10_000
        # In place: the next save sees that it is another one, in all of its places.
        square += 1
        store.save(2, {**state, "b": [square, square.copy()]}).result()
        assert store[2].stored_bytes < 2 * square.nbytes + ours.nbytes + 10_000
        assert stepwell.digest(store.load(2)) == stepwell.digest(state)
        store.delete([0, 1])
        store.reclaim()
        assert store.verify().ok and same(store.load(2, like=state), state)
        store.export(2, path.parent / "orbax")
        store.push(2, path.parent / "place", layout="stepwell")
    with stepwell.open(path.parent / "back") as back:
        back.import_checkpoint(path.parent / "orbax", step=2).result()
        assert back.digest(2) == stepwell.digest(state)
    with stepwell.open(path.parent / "pulled") as pulled:
        pulled.pull(path.parent / "place")
        assert pulled.digest(2) == stepwell.digest(state)
