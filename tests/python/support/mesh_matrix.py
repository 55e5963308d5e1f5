# SPDX-License-Identifier: Apache-2.0
"""mesh_matrix.py DIR --cases A:B [--seconds S]: arrays saved on one mesh and loaded on another.

    PYTHONPATH=<build>/python python mesh_matrix.py DIR --cases 0:2000

Every seed is one array: shape, dtype, the sharding it is saved with, the sharding and the way in
which it is loaded. Checked are every element on every device, the sharding itself, and that just
the chunks were read, each once, that a count by hand says are needed. Prints one line of JSON: how
many cases there were of what. An error names its seed and is status 1. DIR is emptied. A program,
because the number of JAX's devices is set before JAX starts.
"""

from __future__ import annotations

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import argparse  # noqa: E402
import collections  # noqa: E402
import itertools  # noqa: E402
import json  # noqa: E402
import math  # noqa: E402
import pathlib  # noqa: E402
import random  # noqa: E402
import shutil  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
import traceback  # noqa: E402
from typing import Any, NamedTuple  # noqa: E402

import jax  # noqa: E402
import ml_dtypes  # noqa: E402
import numpy as np  # noqa: E402
import stepwell  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding  # noqa: E402

GROUP = 16  # cases in one step
DTYPES = [np.bool_, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.float16,
          np.float32, np.complex64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn,
          ml_dtypes.float8_e5m2, ml_dtypes.int4, ml_dtypes.uint4]
EXTENTS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 24, 30, 40, 64, 100, 120]
WAYS = ["like", "like", "like", "specs", "specs", "saved", "cast", "box"]
CRC_BYTES = 4


class Case(NamedTuple):
    name: str
    value: Any  # the jax array to save
    plain: np.ndarray[Any, Any]  # its elements (of keys: their data)
    way: str
    target: Any  # the sharding that it is wanted on
    dtype: Any  # and its dtype


def some_mesh(chance: random.Random) -> Mesh:
    """Draws a mesh of 1 to 3 axes over some of the 8 devices in any order."""
    axes = chance.randrange(1, 4)
    sizes: list[int] = []
    for _ in range(axes):
        sizes.append(chance.choice([n for n in range(1, 9) if n * math.prod(sizes) <= 8]))
    chance.shuffle(sizes)
    devices = list(jax.devices())
    if chance.random() < 0.5:
        chance.shuffle(devices)
    shaped = np.array(devices[:math.prod(sizes)], dtype=object).reshape(sizes)
    kind = chance.choice([jax.sharding.AxisType.Explicit] + [jax.sharding.AxisType.Auto] * 4)
    return Mesh(shaped, tuple("abc"[:axes]), axis_types=(kind,) * axes)


def some_spec(chance: random.Random, mesh: Mesh, shape: tuple[int, ...]) -> PartitionSpec:
    """Mesh axes, one or several, on the array axes that they divide."""
    names = list(mesh.axis_names)
    chance.shuffle(names)
    entries: list[Any] = []
    for extent in shape:
        taken: list[str] = []
        while names and chance.random() < 0.6:
            if extent % math.prod([mesh.shape[name] for name in [*taken, names[-1]]]):
                break
            taken.append(names.pop())
        entries.append(None if not taken else taken[0] if len(taken) == 1 and chance.random() < 0.7
                       else tuple(taken))
    while entries and entries[-1] is None and chance.random() < 0.5:
        entries.pop()
    return PartitionSpec(*entries)


def some_split(chance: random.Random, shape: tuple[int, ...]) -> tuple[Mesh, PartitionSpec]:
    """A mesh with a spec, which rather splits the array than not."""
    for _ in range(6 if chance.random() < 0.9 else 1):
        mesh = some_mesh(chance)
        spec = some_spec(chance, mesh, shape)
        if not NamedSharding(mesh, spec).is_fully_replicated:
            break
    return mesh, spec


def some_sharding(chance: random.Random, shape: tuple[int, ...], memory: bool) -> Any:
    if chance.random() < 0.1:
        return SingleDeviceSharding(chance.choice(jax.devices()))
    mesh, spec = some_split(chance, shape)
    if memory and chance.random() < 0.1:
        return NamedSharding(mesh, spec, memory_kind=chance.choice(["pinned_host",
                                                                    "unpinned_host"]))
    return NamedSharding(mesh, spec)


def some_values(chance: random.Random, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    numbers = np.random.default_rng(chance.randrange(2**32))
    if dtype in (np.complex64,):
        return (numbers.standard_normal(shape) + 1j * numbers.standard_normal(shape)).astype(dtype)
    if np.dtype(dtype).kind == "f" or "float" in np.dtype(dtype).name:
        return numbers.standard_normal(shape).astype(np.float32).astype(dtype)
    return numbers.integers(-8, 100, shape).astype(dtype)


def some_case(seed: int) -> Case:
    chance = random.Random(seed)
    rank = chance.choice([0, 1, 1, 2, 2, 2, 3, 3, 4])
    shape = tuple(chance.choice(EXTENTS) for _ in range(rank))
    while math.prod(shape) > 2**18:
        shape = tuple(max(1, extent // 2) for extent in shape)
    if rank and chance.random() < 0.06:
        shape = (*shape[:-1], 0)
    if chance.random() < 0.05:  # several chunks a shard
        shape = (chance.choice([512, 640]), chance.choice([768, 1200]))
    name = f"a{seed}"
    way = chance.choice(WAYS)
    memory = way in ("like", "cast")
    if chance.random() < 0.08 and math.prod(shape) <= 4096:
        keys = jax.random.split(jax.random.key(seed), shape)
        source = some_sharding(chance, shape, False)
        target = source if way == "saved" else some_sharding(chance, shape, False)
        value = jax.device_put(keys, source)
        return Case(name, value, np.asarray(jax.random.key_data(keys)),
                    "like" if way == "box" else way, target, keys.dtype)
    dtype = chance.choice(DTYPES)
    plain = some_values(chance, shape, dtype)
    source = some_sharding(chance, shape, False)
    value = jax.device_put(plain, source)
    if way == "saved":
        return Case(name, value, plain, way, source, np.dtype(dtype))
    target = some_sharding(chance, shape, memory)
    if way == "specs":
        target = NamedSharding(*some_split(chance, shape))
    if way == "cast":
        to = chance.choice([np.complex64] if dtype is np.complex64 else
                           [np.float32, np.int32, np.float16, ml_dtypes.bfloat16, np.complex64])
        with np.errstate(all="ignore"):
            return Case(name, value, plain.astype(to), way, target, np.dtype(to))
    return Case(name, value, plain, way, target, np.dtype(dtype))


# ---- the count by hand -------------------------------------------------------------------------


def boxes_of(target: Any, shape: tuple[int, ...], data: tuple[int, ...]) -> list[Any]:
    """Returns the boxes of an array on the devices, as (start, stop) of each axis."""
    return [[(part.start or 0, extent if part.stop is None else part.stop)
             for part, extent in zip(index, shape, strict=True)] + [(0, extent) for extent in data]
            for index in target.devices_indices_map(shape).values()]


def needed_chunks(view: Any, boxes: list[Any]) -> set[tuple[int, ...]]:
    """The chunks of a stored array that have an element of one of the boxes: each looked at."""
    grid = [range(-(-extent // chunk)) for extent, chunk in zip(view.shape, view.chunk_shape,
                                                                strict=True)]
    found = set()
    for place in itertools.product(*grid):
        for box in boxes:
            if all(max(start, i * chunk) < min(stop, (i + 1) * chunk, extent)
                   for (start, stop), i, chunk, extent in zip(box, place, view.chunk_shape,
                                                              view.shape, strict=True)):
                found.add(place)
                break
    return found


# ---- running -----------------------------------------------------------------------------------


def bits(array: Any) -> Any:
    whole = np.ascontiguousarray(np.asarray(array))
    if whole.dtype.name in ("int4", "uint4"):
        whole = whole.astype(np.int8)
    return (whole.shape, whole.dtype, whole.tobytes())


def expect(case: Case, got: Any) -> None:
    value, plain = got, case.plain
    is_key = jax.dtypes.issubdtype(case.value.dtype, jax.dtypes.prng_key)
    assert isinstance(got, jax.Array), type(got)
    assert got.shape == case.value.shape and got.dtype == case.dtype, (got.shape, got.dtype)
    assert got.committed
    if is_key:  # JAX spells their shardings in its own way
        assert got.sharding.is_equivalent_to(case.target, got.ndim), (got.sharding, case.target)
        assert bits(jax.random.key_data(got)) == bits(plain)
        return
    assert got.sharding == case.target, (got.sharding, case.target)
    assert got.sharding.memory_kind == case.target.memory_kind
    shards = value.addressable_shards
    assert len(shards) == len(case.target.device_set)
    for shard in shards:
        assert bits(shard.data) == bits(plain[shard.index]), (shard.device, shard.index)


def load(store: stepwell.Store, step: int, case: Case) -> Any:
    abstract = jax.ShapeDtypeStruct(case.value.shape, case.dtype, sharding=case.target)
    if case.way == "cast":
        return store.load(step, case.name, like=abstract, cast="wrap")
    if case.way == "specs" and isinstance(case.target, NamedSharding):
        return store.load(step, case.name, mesh=case.target.mesh,
                          specs={f"{case.name[:1]}?*": case.target.spec})
    if case.way == "saved" and len(case.target.device_set) > 1:
        return store.load(step, case.name, as_="jax")
    return store.load(step, case.name, like=abstract)


def check_case(store: stepwell.Store, step: int, case: Case, counts: Any) -> set[Any]:
    """Loads one array; the chunks that it needed."""
    view = store[step][case.name]
    data = view.shape[len(case.value.shape):]
    boxes = boxes_of(case.target, case.value.shape, data)
    needed = needed_chunks(view, boxes)
    if case.way == "box":  # of one device alone: less than the whole
        box = boxes[0]
        part = view[tuple(slice(start, stop) for start, stop in box)]
        assert bits(part) == bits(case.plain[tuple(slice(*both) for both in box)])
        needed = needed_chunks(view, [box])
    else:
        expect(case, load(store, step, case))
    stats = store.stats()["last_load"]
    chunk_bytes = math.prod(view.chunk_shape) * view.dtype.itemsize + CRC_BYTES
    assert stats["chunks"] == len(needed), (stats, len(needed))
    assert stats["bytes_needed"] == len(needed) * chunk_bytes, (stats, chunk_bytes)
    counts[case.way] += 1
    counts["chunks"] += len(needed)
    counts["less than all"] += len(needed) < math.prod(
        -(-a // b) for a, b in zip(view.shape, view.chunk_shape, strict=True))
    counts["empty"] += 0 in case.value.shape
    counts["0-d"] += not case.value.shape
    counts["keys"] += case.dtype != case.plain.dtype
    counts["replicated"] += case.target.is_fully_replicated
    return {(case.name, place) for place in needed}


def run_group(folder: pathlib.Path, seeds: range, counts: Any) -> None:
    """Some cases in one step: one by one, then all in one load."""
    cases = []
    for seed in seeds:
        try:
            cases.append(some_case(seed))
        except Exception as error:
            raise RuntimeError(f"seed {seed}: while making it") from error
    with stepwell.open(folder / str(seeds.start), codec="raw") as store:
        finer = stepwell.ChunkShape(random.Random(seeds.start).choice([4096, 8192, 65536]))
        store.save(0, {case.name: case.value for case in cases},
                   chunks={case.name: finer for case in cases[::3]}).result()
        chunks: set[Any] = set()
        for seed, case in zip(seeds, cases, strict=True):
            try:
                needed = check_case(store, 0, case, counts)
            except Exception as error:
                raise RuntimeError(f"seed {seed}: {case.way}, {case.value.dtype}"
                                   f"{case.value.shape} {case.value.sharding} -> {case.dtype} "
                                   f"{case.target}") from error
            if case.way == "box":
                needed = {(case.name, place) for place in needed_chunks(
                    store[0][case.name], boxes_of(case.target, case.value.shape, ()))}
            chunks |= needed
        like = {case.name: jax.ShapeDtypeStruct(case.value.shape, case.dtype, sharding=case.target)
                for case in cases}
        try:
            loaded = store.load(0, like=like, cast="wrap")
            for case in cases:
                expect(case, loaded[case.name])
            assert store.stats()["last_load"]["chunks"] == len(chunks)
        except Exception as error:
            raise RuntimeError(f"seeds {seeds.start} to {seeds.stop}: all in one load") from error
    counts["cases"] += len(cases)
    shutil.rmtree(folder / str(seeds.start))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--cases", default="0:300", metavar="A:B")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin none after so long")
    arguments = parser.parse_args()
    shutil.rmtree(arguments.folder, ignore_errors=True)
    arguments.folder.mkdir(parents=True)
    assert len(jax.devices()) == 8
    counts: collections.Counter[str] = collections.Counter()
    begin, end = map(int, arguments.cases.split(":"))
    start = time.monotonic()
    for first in range(begin, end, GROUP):
        if time.monotonic() - start > arguments.seconds:
            break
        try:
            run_group(arguments.folder, range(first, min(first + GROUP, end)), counts)
        except Exception:
            traceback.print_exc()
            return 1
    print(json.dumps(counts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
