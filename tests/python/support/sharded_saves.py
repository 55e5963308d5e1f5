# SPDX-License-Identifier: Apache-2.0
"""Saves of sharded arrays, in a process with 8 CPU devices: `sharded_saves.py CHECK STORE`.

test_sharded_save.py runs each check; `sharded_saves.py random STORE SEED CASES` runs more of the
random ones.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import sys
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import stepwell
from stepwell._distributed.process_slice import Spread, owners

DTYPES = ["bool", "int8", "uint16", "int32", "uint32", "int64", "float32", "float64", "complex64",
          "complex128", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4"]


def random_mesh(chance: random.Random) -> Mesh:
    devices = list(jax.devices())
    chance.shuffle(devices)
    shape = chance.choice([(8,), (4,), (3,), (1,), (2, 4), (4, 2), (2, 3), (1, 8), (2, 2, 2),
                           (1, 2, 3), (7,), (2, 1, 4)])
    kind = chance.choice([jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit])
    return Mesh(np.array(devices[:np.prod(shape)]).reshape(shape), ("a", "b", "c")[:len(shape)],
                axis_types=(kind,) * len(shape))


def random_array(chance: random.Random, large: bool) -> tuple[jax.Array, np.ndarray[Any, Any]]:
    """An array on a random mesh by a random spec, and its values."""
    mesh = random_mesh(chance)
    axes = list(mesh.axis_names)
    chance.shuffle(axes)
    shape: list[int] = []
    spec: list[Any] = []
    for _ in range(chance.choice([0, 1, 1, 2, 2, 2, 3, 4])):
        names = [axes.pop() for _ in range(chance.choice([0, 0, 1, 1, 2])) if axes]
        parts = int(np.prod([mesh.shape[name] for name in names]))
        extent = chance.choice([0] + [1, 2, 3, 5, 16, 31] * 3) * parts
        shape.append(extent)
        spec.append(None if not names else names[0] if len(names) == 1 else tuple(names))
    if large and shape:
        shape[chance.randrange(len(shape))] *= chance.choice([128, 1009, 5000])
        while np.prod(shape) > 4e6:
            largest = int(np.argmax(shape))
            parts = int(np.prod([mesh.shape[name] for name in np.ravel(spec[largest] or [])]))
            shape[largest] = max(1, shape[largest] // parts // 3) * parts
    while spec and spec[-1] is None and chance.random() < 0.5:
        spec.pop()
    name = chance.choice(DTYPES)
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    count = int(np.prod(shape))
    numbers = np.random.default_rng(chance.randrange(2**32))
    if name in ("bool", "int4", "uint4"):
        values = numbers.integers(0, 2, count).astype(dtype)
    else:
        values = np.frombuffer(numbers.bytes(count * dtype.itemsize), dtype)
    values = values.reshape(shape)
    if chance.random() < 0.2:
        values = np.zeros_like(values)
    kinds: list[str | None] = [None, None, None, "pinned_host"]
    sharding = NamedSharding(mesh, PartitionSpec(*spec), memory_kind=chance.choice(kinds))
    return jax.device_put(values, sharding), values


def check_note(view: stepwell.ArrayView, array: jax.Array) -> None:
    """Checks that the step's note of the sharding is the array's."""
    noted, sharding = view.sharding, array.sharding
    assert noted is not None
    mesh = sharding.mesh
    assert noted["shape"] == list(mesh.devices.shape), noted
    assert noted["axis_names"] == list(mesh.axis_names)
    spec = [list(part) if isinstance(part, tuple) else part for part in sharding.spec]
    assert noted["partition_spec"] == spec
    ids = [int(number) for number in re.findall(r'"id": (\d+)', json.dumps(noted["device_mesh"]))]
    assert ids == [device.id for device in mesh.devices.flat]
    kind = sharding.memory_kind
    assert noted.get("memory_kind", "device") == kind
    assert view.shard_shape == sharding.shard_shape(array.shape), view.shard_shape


def random_saves(path: str, seed: str = "1", cases: str = "240") -> None:
    chance = random.Random(int(seed))
    with stepwell.open(path, codec="raw") as store:
        for step in range(int(cases) // 12):
            pairs = {f"x{i}": random_array(chance, large=i == 0) for i in range(12)}
            chunks = None
            if chance.random() < 0.3:
                chunks = stepwell.ChunkShape(max_bytes=chance.randrange(4096, 1 << 20))
            tree = {name: array for name, (array, _) in pairs.items()}
            store.save(step, tree, chunks=chunks).result()
            for name, (array, values) in pairs.items():
                stored = store.load(step, name)
                where = f"seed {seed}, step {step}, {name}: {array.dtype}{array.shape}, " \
                        f"{array.sharding}"
                assert stored.dtype == values.dtype and stored.shape == values.shape, where
                assert stored.tobytes() == values.tobytes(), where
                check_note(store[step][name], array)
        report = store.verify()
        assert not report.problems, report


def once(path: str) -> None:
    """Each element is written once, whatever has copies of it."""
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y"))
    values = np.random.default_rng(0).standard_normal((1024, 512)).astype(np.float32)
    with stepwell.open(path, codec="raw") as store:
        for step, spec in enumerate([(), ("x",), (None, "y"), ("x", "y"), (("y", "x"),), ("y",)]):
            array = jax.device_put(values, NamedSharding(mesh, PartitionSpec(*spec)))
            store.save(step, {"w": array}).result()
            view = store[step]
            chunks = len(values.tobytes()) // np.prod(view["w"].chunk_shape) // 4
            assert view.stored_bytes == values.nbytes + 4 * chunks, (spec, view.stored_bytes)
            for whole, chunk, shard in zip(values.shape, view["w"].chunk_shape,
                                           view["w"].shard_shape, strict=True):
                assert whole % shard == 0 and shard % chunk == 0, (spec, view["w"].chunk_shape)
            np.testing.assert_array_equal(store.load(step, "w"), values)


def donated(path: str) -> None:
    """A saved state may be donated at once; when the save is done, donating it copies nothing."""
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y"))
    train_step = jax.jit(lambda x: x + 1, donate_argnums=0)

    def pointers(array: jax.Array) -> list[int]:
        return [shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards]

    for dtype, spec in itertools.product((jnp.float32, jnp.bfloat16), (("x", "y"), (), ("y",))):
        sharding = NamedSharding(mesh, PartitionSpec(*spec))
        with stepwell.open(f"{path}-{dtype.__name__}-{''.join(spec)}") as store:
            state = jax.device_put(jnp.zeros((512, 1024), dtype), sharding)
            for step in range(20):
                store.save(step, state)
                state = train_step(state)
            store.wait()
            for step in range(20):
                assert (store.load(step) == step).all(), step
            # References go in the background, with a little delay at most.
            for _ in range(200):
                before = pointers(state)
                state = train_step(state)
                if pointers(state) == before:
                    break
            else:
                raise AssertionError("donating still copies after the save")
            jax.block_until_ready(state)
            store.save(20, state)
            state.delete()
            try:
                store.save(21, {"w": state})
            except stepwell.UnsupportedLeafError as error:
                assert "deleted or donated" in str(error)
            else:
                raise AssertionError("a deleted array was saved")


def peak_bytes() -> int:
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))


def memory(path: str) -> None:
    """Saving takes far less memory than the array."""
    size = 256 << 20
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y"))
    shape = (8192, size // 8192 // 4)
    make = jax.jit(lambda: jax.lax.broadcasted_iota(jnp.float32, shape, 0),
                   out_shardings=NamedSharding(mesh, PartitionSpec("x", "y")))
    array = jax.block_until_ready(make())
    with stepwell.open(path, staging_bytes=32 << 20, codec="raw") as store:
        store.save(0, jnp.zeros(4)).result()
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")  # the peak begins anew
        before = peak_bytes()
        store.save(1, {"w": array}).result()
        grown = peak_bytes() - before
        assert grown < size // 2, f"{grown >> 20} MiB more for an array of {size >> 20} MiB"
        rows = store[1]["w"][4000:4200, 17]
        assert rows.tolist() == list(range(4000, 4200))


def kinds(path: str) -> None:
    """Keys, weak types, arrays that jit placed, arrays on some devices or another one."""
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y"))
    keys = jax.device_put(jax.random.split(jax.random.key(1), 8),
                          NamedSharding(mesh, PartitionSpec("x")))
    values = np.arange(64.0, dtype=np.float32).reshape(8, 8)
    column = NamedSharding(mesh, PartitionSpec(None, "y"))
    tree = {
        "keys": keys,
        "grid": jax.device_put(jax.random.split(jax.random.key(2, impl="rbg"), (4, 2)),
                               NamedSharding(mesh, PartitionSpec("x", "y"))),
        "jitted": jax.jit(lambda x: x * 2)(jax.device_put(values, column)),
        "fortran": jax.device_put(np.asfortranarray(values), column),
        "other": jax.device_put(values, jax.devices()[5]),
        "callback": jax.make_array_from_callback((8, 8), column, lambda index: values[index]),
        "weak": jax.jit(lambda: 3.0, out_shardings=NamedSharding(mesh, PartitionSpec()))(),
        "pinned": jax.device_put(values, jax.sharding.SingleDeviceSharding(
            jax.devices()[1], memory_kind="pinned_host")),
    }
    with stepwell.open(path) as store:
        store.save(0, tree).result()
        same = store.load(0, like=tree)
        for name, leaf in tree.items():
            if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                assert (jax.random.key_data(same[name]) == jax.random.key_data(leaf)).all(), name
            else:
                np.testing.assert_array_equal(np.asarray(same[name]), np.asarray(leaf), name)
                assert same[name].weak_type == leaf.weak_type
        assert store[0]["keys"].shard_shape == (2, 2)
        assert store[0]["jitted"].shard_shape == (8, 4)
        assert store[0]["other"].shard_shape == (8, 8)
        pinned = store[0]["pinned"].sharding
        assert pinned is not None and pinned["memory_kind"] == "pinned_host"


def owned(path: str) -> None:
    """Checks that each of several processes saves what it has, once, and that copies are spread
    evenly."""
    chance = random.Random(3)
    for processes in (1, 2, 3, 4, 8):
        def process_of(device: Any, processes: int = processes) -> int:
            return int(device.id * processes // 8)

        spreads, arrays = [], []
        for _ in range(60):
            array, _ = random_array(chance, large=False)
            arrays.append(array)
            spreads.append(Spread(array.shape, array.dtype.itemsize, array.sharding))
        found = owners(spreads, process_of)
        assert found == owners(list(spreads), process_of)
        for array, boxes in zip(arrays, found, strict=True):
            seen = np.zeros(array.shape, int)
            holders: dict[Any, set[int]] = {}
            for shard in array.addressable_shards:
                at = tuple(part.start or 0 for part in shard.index)
                holders.setdefault(at, set()).add(process_of(shard.device))
            for box in boxes:
                seen[tuple(slice(o, o + n) for o, n in zip(box.origin, box.shape))] += 1
                assert box.owner in holders[box.origin]
            assert (seen == 1).all(), array.sharding
            assert [box.origin for box in boxes] == sorted(box.origin for box in boxes)
    # Copies of one array on all processes: 8 boxes of one size, two for each of 4 processes.
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y"))
    everywhere = NamedSharding(mesh, PartitionSpec())
    columns = NamedSharding(mesh, PartitionSpec(None, "y"))
    spreads = [Spread((64, 64), 4, everywhere)] * 8 + [Spread((64, 64), 4, columns)] * 8
    spreads.append(Spread((256, 64), 4, NamedSharding(mesh, PartitionSpec("x"))))
    load = dict.fromkeys(range(4), 0)
    for spread, boxes in zip(spreads, owners(spreads, lambda device: device.id // 2), strict=True):
        for box in boxes:
            load[box.owner] += int(np.prod(box.shape)) * spread.item_bytes
    assert set(load.values()) == {64 * 64 * 4 * 5}, load
    # One that has much of its own gets no copies.
    spreads = [Spread((1024,), 4, jax.sharding.SingleDeviceSharding(jax.devices()[0])),
               *[Spread((64,), 4, everywhere)] * 3]
    assert [box.owner for boxes in owners(spreads, lambda device: device.id // 2)
            for box in boxes] == [0, 1, 2, 3]


def main() -> None:
    checks = {"random": random_saves, "once": once, "donated": donated, "memory": memory,
              "kinds": kinds, "owned": owned}
    jax.config.update("jax_enable_x64", True)
    assert len(jax.devices()) == 8
    checks[sys.argv[1]](*sys.argv[2:])
    print("ok")


if __name__ == "__main__":
    main()
