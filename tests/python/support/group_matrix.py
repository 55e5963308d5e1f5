# SPDX-License-Identifier: Apache-2.0
"""group_matrix.py PROCESS PROCESSES PORT DEVICES DIR A:B: one of several processes that save random
arrays on random meshes of all their devices, and load them on others. Seeds A to B; DIR is new, and
shared, or with {} in it a directory of each process, by its number. As mesh_matrix.py, whose cases
these are: every element of every shard that this process has, the sharding, and, where DIR is
shared, that just the chunks that its devices need were read, each once. Prints one line of JSON; an
error names its seed and is status 1. Run by group_runs.py; for many cases see tests/README.md.
"""

import os
import sys

PROCESS, PROCESSES, PORT, DEVICES = (int(text) for text in sys.argv[1:5])
FLAGS = f"--xla_force_host_platform_device_count={DEVICES}"
os.environ["XLA_FLAGS"] = FLAGS

import collections  # noqa: E402
import json  # noqa: E402
import math  # noqa: E402
import random  # noqa: E402
import traceback  # noqa: E402
from typing import Any, NamedTuple  # noqa: E402

import jax  # noqa: E402
import mesh_matrix as matrix  # noqa: E402
import numpy as np  # noqa: E402
import stepwell  # noqa: E402
from jax.sharding import NamedSharding  # noqa: E402

GROUP = 16  # cases in one step
LOCAL = "{}" in sys.argv[5]  # a disk of each process


class Case(NamedTuple):
    name: str
    plain: np.ndarray[Any, Any]
    source: NamedSharding
    target: NamedSharding


def some_case(seed: int) -> Case:
    chance = random.Random(seed)
    shape = tuple(chance.choice(matrix.EXTENTS) for _ in range(chance.choice([0, 1, 1, 2, 2, 3])))
    while math.prod(shape) > 2**17:
        shape = tuple(max(1, extent // 2) for extent in shape)
    if shape and chance.random() < 0.06:
        shape = (*shape[:-1], 0)
    if chance.random() < 0.05:  # several chunks a shard
        shape = (chance.choice([512, 640]), chance.choice([768, 1200]))
    if chance.random() < 0.03:  # shards of a long prime: chunks in grids of their own
        shape = (2 * 524309,)
    plain = matrix.some_values(chance, shape, chance.choice(matrix.DTYPES))
    return Case(f"a{seed}", plain, NamedSharding(*matrix.some_split(chance, shape)),
                NamedSharding(*matrix.some_split(chance, shape)))


def made(case: Case) -> jax.Array:
    return jax.make_array_from_callback(case.plain.shape, case.source,
                                        lambda index: case.plain[index], dtype=case.plain.dtype)


def expect(case: Case, got: Any) -> int:
    """Shards compared."""
    assert got.shape == case.plain.shape and got.dtype == case.plain.dtype
    assert got.sharding == case.target
    for shard in got.addressable_shards:
        assert matrix.bits(shard.data) == matrix.bits(case.plain[shard.index]), shard.index
    return len(got.addressable_shards)


def needed(view: Any, case: Case, indices: Any) -> int:
    """Chunks that the boxes of some devices need."""
    boxes = [[(part.start or 0, extent if part.stop is None else part.stop)
              for part, extent in zip(index, case.plain.shape, strict=True)]
             for index in indices(case.plain.shape).values()]
    return len(matrix.needed_chunks(view, boxes))


def run_all(store: stepwell.Store, step: int, cases: list[Case]) -> None:
    """All in one load; as NumPy, too."""
    like = {case.name: jax.ShapeDtypeStruct(case.plain.shape, case.plain.dtype,
                                            sharding=case.target) for case in cases}
    loaded = store.load(step, like=like)
    whole = store.load(step, like={case.name: case.plain for case in cases})
    for case in cases:
        expect(case, loaded[case.name])
        assert matrix.bits(whole[case.name]) == matrix.bits(case.plain), case.name


def run_step(store: stepwell.Store, step: int, counts: Any) -> None:
    cases = [some_case(seed) for seed in range(step, step + GROUP)]
    store.save(step, {case.name: made(case) for case in cases}).result()
    for case in cases:
        abstract = jax.ShapeDtypeStruct(case.plain.shape, case.plain.dtype, sharding=case.target)
        try:
            counts["shards"] += expect(case, store.load(step, case.name, like=abstract))
            view = store[step][case.name]
            if case.plain.shape != (2 * 524309,):  # whose shards have grids of their own
                chunks = store.stats()["last_load"]["chunks"]
                counts["chunks"] += chunks
                if LOCAL:  # what all read is what all need
                    counts["needed"] += needed(view, case, case.target.devices_indices_map)
                else:
                    want = needed(view, case, case.target.addressable_devices_indices_map)
                    assert chunks == want, (chunks, want)
        except Exception as error:
            raise RuntimeError(f"seed {case.name[1:]}: {case.plain.dtype}{case.plain.shape} "
                               f"{case.source} -> {case.target}") from error
        counts["cases"] += 1
        counts["spread"] += not case.source.is_fully_replicated
    run_all(store, step, cases)


def main() -> int:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    os.environ["XLA_FLAGS"] = FLAGS  # mesh_matrix has set its own
    jax.distributed.initialize(f"localhost:{PORT}", PROCESSES, PROCESS)
    assert len(jax.devices()) == 8
    folder, seeds = sys.argv[5:]
    begin, end = (int(text) for text in seeds.split(":"))
    counts: collections.Counter[str] = collections.Counter()
    folder = folder.format(PROCESS)
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    with stepwell.open(folder, codec="raw", keep=stepwell.policy.LatestN(2),
                       disks="local" if LOCAL else "shared") as store:
        for first in range(begin, end, GROUP):
            try:
                run_step(store, first, counts)
            except Exception:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
    print(json.dumps(counts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
