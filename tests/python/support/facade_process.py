# SPDX-License-Identifier: Apache-2.0
"""A process of a run that saves through a facade: NUMBER COUNT PORT DEVICES ROOT."""

import os
import sys

number, count, port, devices, root = *map(int, sys.argv[1:5]), sys.argv[5]
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"

import jax  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

jax.distributed.initialize(f"localhost:{port}", count, number)
sharding = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec("x"))
values = np.arange(16.0, dtype=np.float32).reshape(8, 2)


def array(step: int) -> jax.Array:
    return jax.make_array_from_callback((8, 2), sharding, lambda index: values[index] + step)
