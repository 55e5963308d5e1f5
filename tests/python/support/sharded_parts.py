# SPDX-License-Identifier: Apache-2.0
"""sharded_parts.py PROCESS PROCESSES PORT FOLDER: what one of several processes takes of a state
that they save together, into FOLDER/PROCESS.npz. Run by test_sharded_save.py."""

import os
import random
import sys
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from stepwell._distributed.process_slice import part_of
from stepwell._pytree.tree import SHARDS, path_text

SPECS: list[tuple[tuple[int, ...], tuple[Any, ...]]] = [
    ((16, 6), ("a",)), ((16, 4), ("b", "a")), ((8,), (("b", "a"),)), ((5,), ()), ((5, 3), ()),
    ((3, 8), (None, "b")), ((0, 8), (None, "b")), ((4, 4, 2), ("a", None, "b")), ((), ())]


def values(name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.random.default_rng(int(name)).integers(0, 1000, shape).astype(np.float32)


def state() -> dict[str, Any]:
    tree: dict[str, Any] = {"count": 3, "plain": np.arange(4), "local": jax.numpy.ones(3)}
    chance = random.Random(1)
    for number, (shape, spec) in enumerate(SPECS):
        devices = list(jax.devices())
        chance.shuffle(devices)
        mesh = Mesh(np.array(devices).reshape(4, 2), ("a", "b"))
        sharding = NamedSharding(mesh, PartitionSpec(*spec))
        whole = values(str(number), shape)
        tree[str(number)] = jax.make_array_from_callback(
            shape, sharding, lambda index, whole=whole: whole[index])
    return tree


def main() -> None:
    process, processes, port, folder = sys.argv[1:]
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={8 // int(processes)}"
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", int(processes), int(process))
    assert len(jax.devices()) == 8
    (part,) = part_of({"state": state()}, jax.process_index(), None).rows
    assert part.name == "state"
    out = {}
    for row in part.rows:
        name = path_text(row.path)
        if row.tag != SHARDS:
            out[f"{name}|row"] = np.array(int(row.tag))
            continue
        out[f"{name}|shape"] = np.array(row.shape)
        out[f"{name}|shard"] = np.array(row.shape if row.shard_shape is None else row.shard_shape)
        out[f"{name}|partial"] = np.array(row.partial)
        for origin, shard in zip(row.origins, row.data, strict=True):
            out[f"{name}|at {' '.join(map(str, origin))}"] = np.asarray(shard)
    np.savez(f"{folder}/{process}.npz", **out)


if __name__ == "__main__":
    main()
