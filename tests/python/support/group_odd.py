# SPDX-License-Identifier: Apache-2.0
"""A state with one of everything, saved into two stores by several processes and loaded from both:
what group_process.py does for test_local_disks.py, where one store is on disks of each process and
the other on one that they share, whose loading other tests hold to what was saved."""

import pathlib
import types
from typing import Any

import jax
import ml_dtypes
import numpy as np
import stepwell
from equality import same
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from stepwell._load import slicing


def spread(array: np.ndarray[Any, Any], mesh: Mesh, *spec: Any) -> jax.Array:
    return jax.make_array_from_callback(array.shape, NamedSharding(mesh, PartitionSpec(*spec)),
                                        lambda index: array[index], dtype=array.dtype)


def odd_state() -> dict[str, Any]:
    devices = np.array(jax.devices())
    mesh = Mesh(devices.reshape(2, -1), ("x", "y"))
    here = Mesh(np.array(jax.local_devices()), ("z",))
    last = max(device.process_index for device in jax.devices())
    alone = Mesh(np.array([d for d in jax.devices() if d.process_index == last]), ("z",))
    numbers = np.random.default_rng(7)
    words = numbers.integers(0, 2**32, (16, 8), np.uint32)
    words[0, :4] = [0x7FC00001, 0xFFA00000, 0x80000000, 0x7F800000]  # NaNs with payloads, −0.0, ∞
    keys = jax.jit(lambda: jax.random.split(jax.random.key(3), 8),
                   out_shardings=NamedSharding(mesh, PartitionSpec("x")))()
    return {
        "floats": spread(words.view(np.float32), mesh, "x"),
        "pairs": spread(words.view(np.complex64), mesh, ("y", "x")),
        "small": spread(numbers.integers(-8, 8, (8, 6)).astype(ml_dtypes.int4), mesh, "y", "x"),
        "truth": spread(words > 2**31, mesh, None, "x"),
        "eight": spread(words.view(np.uint8).view(ml_dtypes.float8_e5m2), mesh, "x", "y"),
        "point": spread(np.float16(-0.0).reshape(()), mesh),
        "none": spread(np.empty((0, 4), np.int8), mesh, "x"),
        "keys": keys,
        "each": spread(np.arange(8, dtype=np.int16), here, "z"),
        "alone": {"last": spread(np.arange(8, dtype=np.int16), alone, "z")},
        "host": [numbers.standard_normal(300_000), np.float64(2.5), np.arange(3) > 1],
        "values": (None, 1, 2**200, 2.5, 1j, True, "text", "long " * 40_000, b"bytes", {}, [], ()),
        "literal": {("a/b", 1): {None: spread(numbers.standard_normal(16), mesh, "x"), True: b""}},
        "one": {1: np.int8(3), "a.b": [types.SimpleNamespace()][:0]},
    }


def compare(local: stepwell.Store, shared: stepwell.Store) -> str:
    state = odd_state()
    for store in (local, shared):
        store.save(0, {"whole": 1}, items={"odd": state}).result()
        store.save(1, state).result()
    mesh = Mesh(np.array(jax.devices())[::-1].reshape(-1, 2), ("x", "y"))
    loads: dict[str, dict[str, Any]] = {
        "plain": {}, "jax": {"as_": "jax"}, "like": {"like": state}, "mesh": {"mesh": mesh},
        "specs": {"mesh": mesh, "cast": True, "specs": {"floats": PartitionSpec("y", "x"),
                                                        "host/0": PartitionSpec("x")}},
        "path": {"path": "values"}, "glob": {"path": "*o*"}, "leaf": {"path": "host/0"},
        "alone": {"path": "alone"}}
    for name, how in loads.items():
        if name == "mesh":  # 64 bits, where JAX has 32
            how = {**how, "path": "floats"}
        ours, theirs = local.load(1, **how), shared.load(1, **how)
        assert same_here(ours, theirs), name
    with jax.set_mesh(mesh):
        assert same_here(local.load(1, "floats", as_="jax"), shared.load(1, "floats", as_="jax"))
    assert same_here(local.load(0), shared.load(0))
    assert same_here(local.load_or(state)[0], shared.load_or(state)[0])
    assert repr(local.tree(1)) == repr(shared.tree(1))
    ours, theirs = local[1], shared[1]
    assert (ours.items, ours.metadata, ours.nbytes, ours.stored_bytes,
            ours.owned_bytes) == (
        theirs.items, theirs.metadata, theirs.nbytes, theirs.stored_bytes,
        theirs.owned_bytes)
    assert bytes(ours["host/0"][10:200:7]) == bytes(theirs["host/0"][10:200:7])
    assert ours["values/7"] == theirs["values/7"]
    assert list(ours["values"]) == list(theirs["values"])
    return "equal"


# Named options of exports.
EXPORTS: dict[str, dict[str, Any]] = {
    "numpy": {"on_unsupported": "skip", "leaves": "numpy"},
    "jax": {"on_unsupported": "skip", "leaves": "jax", "zarr": 2, "mode": "copy"},
    "widened": {"on_unsupported": "widen", "path": "state/wide", "file_mode": 0o640},
    "manager": {"on_unsupported": "skip", "leaves": "numpy", "path": "state/floats", "layout": "v0",
                "step_prefix": "ckpt", "step_digits": 4, "unnamed_default": True},
}


def export_both(local: stepwell.Store, shared: stepwell.Store, folder: pathlib.Path) -> str:
    """Into local-NAME, by all processes, and shared-NAME, by the first."""
    mesh = Mesh(np.array(jax.devices()).reshape(2, -1), ("x", "y"))
    numbers = np.random.default_rng(8)
    eight = numbers.integers(0, 256, (16, 8), np.uint8)
    state = {**odd_state(), "wide": {"eight": spread(eight.view(ml_dtypes.float8_e4m3), mesh, "x"),
                                     "four": eight.view(ml_dtypes.uint4)},
             "values": (None, 1, 2.5, True, "text", "long " * 40_000, {}, [], ()),
             "unheld": {"integer": 2**200, "bytes": b"bytes", "complex": 1j},
             # In pieces with chunk grids of their own.
             "prime": spread(numbers.standard_normal(2097166, np.float32), mesh, "x")}
    for store in (local, shared):
        store.save(4, state, items={"other": {"at": 4}}, metrics={"loss": 0.5}).result()
    for name, how in EXPORTS.items():
        ours = local.export(4, folder / f"local-{name}", **how)
        if jax.process_index() == 0:
            theirs = shared.export(4, folder / f"shared-{name}", **{"mode": "copy", **how})
            for field in ("leaf_type", "leaves", "chunks", "step_bytes", "skipped", "widened",
                          "as_numpy", "as_text"):
                assert getattr(ours, field) == getattr(theirs, field), (name, field)
            assert ours.written_bytes > ours.step_bytes
    return "equal"


def far_slices(local: stepwell.Store) -> str:
    """Two processes want one row each, the first and the last: of what each has of the array, they
    need two chunks of sixteen."""
    mesh = Mesh(np.array(jax.devices()).reshape(2, -1), ("x", "y"))
    rows = np.arange(64 << 10, dtype=np.float32).reshape(64, 1024)
    local.save(3, {"rows": spread(rows, mesh, None, "x")},
               chunks=stepwell.ChunkShape(max_bytes=4 * 512 * 4, axes=(0,))).result()
    row = 63 * jax.process_index()
    np.testing.assert_array_equal(local[3]["rows"][row], rows[row])
    load = local.stats()["last_load"]
    assert (load["chunks"], load["bytes_needed"]) == (2, 2 * (4 * 512 * 4 + 4)), load
    slicing.BATCH_BYTES = 16384  # strides: one of them needs more batches than the other
    strided = slice(None, None, -7) if jax.process_index() else slice(5, 6)
    np.testing.assert_array_equal(local[3]["rows"][strided], rows[strided])
    return "equal"


def same_here(one: Any, other: Any) -> bool:
    """Equal trees; of arrays what is on this process."""
    def shown(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array):
            return leaf
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return [str(leaf.dtype), leaf.shape, shown(jax.random.key_data(leaf))]
        return [str(leaf.sharding), str(leaf.dtype), leaf.shape, leaf.weak_type,
                [(str(shard.index), np.asarray(shard.data)) for shard in leaf.addressable_shards]]

    if isinstance(one, dict):
        return list(one) == list(other) and all(same_here(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(
            map(same_here, one, other))
    return same(shown(one), shown(other))
