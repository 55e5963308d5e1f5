# SPDX-License-Identifier: Apache-2.0
"""orbax_processes_save.py PROCESS PROCESSES PORT FOLDER: one of several processes that save one
state, as Orbax v1 and v0 do it. Run by test_import_processes.py."""

import os
import sys
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from orbax.checkpoint import v1

SHAPES = {"rows": (8, 6), "both": (16, 4), "whole": (5,)}


def values(name: str) -> np.ndarray:
    shape = SHAPES[name]
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + len(name)


def state() -> dict[str, Any]:
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("a", "b"))
    specs = {"rows": PartitionSpec("a"), "both": PartitionSpec("b", "a"), "whole": PartitionSpec()}
    arrays = {name: jax.make_array_from_callback(
        SHAPES[name], NamedSharding(mesh, spec), lambda index, name=name: values(name)[index])
        for name, spec in specs.items()}
    return {**arrays, "nested": {"count": 3}}


def main() -> None:
    process, processes, port, folder = sys.argv[1:]
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"  # read at the first use
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", int(processes), int(process))
    tree = state()
    v1.save(f"{folder}/v1_1", tree)
    with ocp.CheckpointManager(f"{folder}/manager") as manager:
        manager.save(2, args=ocp.args.StandardSave(tree))
        manager.wait_until_finished()
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=False)) as checkpointer:
        checkpointer.save(f"{folder}/files_3", args=ocp.args.PyTreeSave(tree))


if __name__ == "__main__":
    main()
