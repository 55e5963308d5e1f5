# SPDX-License-Identifier: Apache-2.0
"""Stores, views and trees as Python's protocols see them."""

from __future__ import annotations

import copy
import pickle
import random

import numpy as np
import pytest

import stepwell


def test_a_store_is_a_collection_of_step_numbers(store):
    assert (list(store), len(store), bool(store)) == ([], 0, True)
    for step in (7, 3, 5):
        store.save(step, {"x": step})
    store.wait()
    assert list(store) == [3, 5, 7]
    assert list(reversed(store)) == [7, 5, 3]
    assert len(store) == 3
    assert np.int64(5) in store and 4 not in store and -1 not in store
    with pytest.raises(stepwell.InvalidArgumentError, match="a step must be an int, not 'latest'"):
        assert "latest" in store
    for step in store:  # the steps as they were when it began
        store.delete(step)
    assert list(store) == []


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps],
                         ids=lambda each: each.__name__)
def test_what_belongs_to_an_open_store_is_not_copied(store, tmp_path, copied):
    handle = store.save(1, {"a": {"x": np.ones(3)}})
    handle.result()
    with store.orbax_view(tmp_path / "view") as view:
        for part in (store, handle, store[1], store[1]["a"], store[1]["a/x"], view):
            with pytest.raises(TypeError, match=f"an? {type(part).__name__} cannot be copied or "
                                                "pickled: .*Pass the store's path"):
                copied(part)
    assert pickle.loads(pickle.dumps(store.tree(1)))["a/x"].shape == (3,)


def random_index(chance, shape):
    def part(extent):
        if chance.random() < 0.2:
            return chance.randrange(-extent, extent)
        bound = [None, chance.randrange(-extent - 3, extent + 3)]
        step = chance.choice([None, 1, -1, 2, 3, 7, -5, 50, -50])
        return slice(chance.choice(bound), chance.choice(bound), step)

    index = [part(extent) for extent in shape[:chance.randrange(len(shape) + 1)]]
    for extra in (None, ...):
        if chance.random() < 0.3:
            index.insert(chance.randrange(len(index) + 1) if extra is None else len(index), extra)
    return tuple(index)


def test_stored_arrays_stand_for_arrays(store):
    state = {"x": np.arange(6.0).reshape(2, 3), "zero": np.float32(0), "three": np.int16(3)}
    store.save(0, state).result()
    view = store[0]
    assert not view["zero"] and view["three"]
    assert (int(view["three"]), float(view["three"])) == (3, 3.0)
    with pytest.raises(ValueError, match="more than one element"):
        bool(view["x"])
    loaded = store.load(0, "x", like=view["x"])
    assert isinstance(loaded, np.ndarray)
    np.testing.assert_array_equal(loaded, state["x"])


def test_slices_are_those_of_numpy(store):
    array = np.arange(37 * 29 * 11).reshape(37, 29, 11)
    store.save(1, {"x": array}, chunks=stepwell.ChunkShape(4096, (1, 0))).result()
    view = store[1]["x"]
    assert view.chunk_shape != view.shape
    chance = random.Random(1)
    for _ in range(1000):
        index = random_index(chance, array.shape)
        np.testing.assert_array_equal(view[index], array[index], strict=True, err_msg=str(index))


def test_slices_of_an_array_that_was_sharded(run_jax, path):
    status, out, err = run_jax("""
import sys, jax, numpy as np, stepwell
from jax.sharding import NamedSharding, PartitionSpec as P
array = np.arange(184 * 64).reshape(184, 64).astype(np.float32)
sharding = NamedSharding(jax.make_mesh((8,), ("x",)), P("x"))  # 23 rows a shard, 16 a chunk
with stepwell.open(sys.argv[1]) as store:
    store.save(1, jax.device_put(array, sharding), chunks=stepwell.ChunkShape(4096)).result()
    view = store[1][""]
    for index in np.ndindex(3, 3, 4):
        part = slice((None, 3, 183)[index[0]], (None, 170, 1)[index[1]], (-3, 2, 17, -60)[index[2]])
        np.testing.assert_array_equal(view[part, ::5], array[part, ::5])
print(view.chunk_shape, view.shard_shape)
""", path, XLA_FLAGS="--xla_force_host_platform_device_count=8")
    assert (status, out) == (0, "(16, 64) (23, 64)\n"), err


def test_strides_read_the_chunks_that_they_meet(store):
    array = np.arange(1 << 22, dtype=np.float32).reshape(1 << 12, 1 << 10)  # 16 MiB
    store.save(1, {"x": array}, chunks=stepwell.ChunkShape(1 << 16)).result()  # 256 of 16 rows
    view = store[1]["x"]
    np.testing.assert_array_equal(view[::-1000], array[::-1000])
    read = store.stats()["last_load"]
    assert (read["chunks"], read["bytes_out"]) == (5, 5 * 4096)
    np.testing.assert_array_equal(view[5::16, 7], array[5::16, 7])
    assert store.stats()["last_load"]["bytes_out"] == 256 * 4
    store.save(2, {"x": array}, chunks=stepwell.ChunkShape(1 << 16, (1,))).result()
    np.testing.assert_array_equal(store[2]["x"][:, ::-512], array[:, ::-512])
    assert store.stats()["last_load"]["chunks"] == 2


def test_large_strided_reads_go_in_batches(store, monkeypatch):
    from stepwell._load import slicing

    monkeypatch.setattr(slicing, "BATCH_BYTES", 100_000)
    array = np.arange(1 << 20).reshape(1 << 10, 1 << 10)
    store.save(1, {"x": array}, chunks=stepwell.ChunkShape(1 << 15)).result()
    batches = []
    read = stepwell._load.source.Source.read_batches

    def counted(source, wanted):
        batches.extend(wanted)
        return read(source, wanted)

    monkeypatch.setattr(stepwell._load.source.Source, "read_batches", counted)
    np.testing.assert_array_equal(store[1]["x"][::2], array[::2])
    assert len(batches) > 50


def test_a_long_tree_is_shown_by_its_ends(store):
    store.save(1, {"layers": list(range(3000))}).result()
    tree = store.tree(1)
    lines = repr(tree).splitlines()
    assert str(tree) == repr(tree)
    assert len(lines) == 42 and lines[21] == "  … 2,960 more"
    assert lines[0].startswith("step 1: 3,000 leaves") and lines[-1].split()[0] == "layers/2999"
    assert len(tree.table().splitlines()) == 3001
    for view in (store[1], store[1]["layers"]):
        assert "  … 2,960 more" in repr(view).splitlines()
        assert len(repr(view).splitlines()) < 50
    store.save(2, {"layers": list(range(40))}).result()
    assert repr(store.tree(2)) == store.tree(2).table()
