# SPDX-License-Identifier: Apache-2.0
"""A state saved over a mesh of 8 CPU devices, restored over others: alone in its process, because
the number of JAX's devices is set before JAX starts."""

import sys
from typing import Any

import numpy as np
import states
from themes import Job, Timed

DEVICES = 8
TARGETS = {"1x8": (1, 8), "2x4": (2, 4), "one": None}


def run(job: Job) -> None:
    if not job.make.meshes:
        for row in ("save", *TARGETS, *(name + "-read" for name in TARGETS)):
            job.cannot(f"mesh/{row}", "knows no meshes")
        return
    import jax

    jax.config.update("jax_num_cpu_devices", DEVICES)
    user = job.contender("mesh")
    state = _state(job)
    size = states.total_bytes(state)
    source = states.tree_map(lambda leaf: jax.device_put(leaf, _sharding((8, 1), leaf)), state)
    user.save(jax.block_until_ready(source))
    source = states.ready(states.advance(source))
    job.emit("mesh/save", size / user.save(source).durable)
    wanted = states.tree_map(np.asarray, source)
    for name, sizes in TARGETS.items():
        like = states.tree_map(
            lambda leaf, sizes=sizes: jax.ShapeDtypeStruct(
                leaf.shape, leaf.dtype, sharding=_sharding(sizes, leaf)), source)
        states.ready(user.restore(like))  # imports, threads and JAX's caches are there now
        job.make_cold(user)
        with Timed() as timed:
            got = states.ready(user.restore(like))
        job.emit(f"mesh/{name}", size / timed.seconds)
        job.emit(f"mesh/{name}-read", timed.read, size)
        for leaf, want in zip(states.leaves(got), states.leaves(like), strict=True):
            if leaf.sharding != want.sharding:
                raise states.WrongBytes(f"gave {leaf.sharding} for {want.sharding}")
        states.expect_equal(got, wanted)
        del got


def _state(job: Job) -> Any:
    """The state, with as many rows as 8 devices can share."""
    least = DEVICES * 24 * 4096
    state = states.make_state(max(job.size_bytes, least), job.seed)
    return states.tree_map(lambda leaf: leaf[:leaf.shape[0] // DEVICES * DEVICES], state)


def _sharding(sizes: tuple[int, int] | None, leaf: Any) -> Any:
    """Over a mesh ("x", "y") of these sizes: matrices by rows and columns, vectors by both; None:
    whole on one device."""
    jax = sys.modules["jax"]
    if sizes is None:
        return jax.sharding.SingleDeviceSharding(jax.devices()[0])
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(sizes), ("x", "y"))
    axes = ("x", "y") if leaf.ndim == 2 else (("x", "y"),)
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))
