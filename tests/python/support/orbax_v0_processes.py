# SPDX-License-Identifier: Apache-2.0
"""One process of a run that saves with compat.orbax: NUMBER COUNT PORT DEVICES ROOT."""

import os
import sys

number, count, port, devices, root = *map(int, sys.argv[1:5]), sys.argv[5]
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

from stepwell.compat import orbax as ocp  # noqa: E402

jax.distributed.initialize(f"localhost:{port}", count, number)
sharding = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec("x"))
values = np.arange(16.0, dtype=np.float32).reshape(8, 2)


def array(step: int) -> jax.Array:
    return jax.make_array_from_callback((8, 2), sharding, lambda index: values[index] + step)


options = ocp.CheckpointManagerOptions(max_to_keep=2)
with ocp.CheckpointManager(root, options=options, metadata={"processes": count}) as manager:
    for step in range(5):
        assert manager.save(step, args=ocp.args.Composite(
            state=ocp.args.StandardSave({"w": array(step), "n": step}),
            data=ocp.args.JsonSave({"at": step})))
    manager.wait_until_finished()
    assert manager.all_steps() == [3, 4], manager.all_steps()
    target = {"w": jax.ShapeDtypeStruct((8, 2), jnp.float32, sharding=sharding), "n": 0}
    found = manager.restore(4, args=ocp.args.Composite(
        state=ocp.args.StandardRestore(target), data=ocp.args.JsonRestore()))
    assert len(found.state["w"].addressable_shards) == devices
    for shard in found.state["w"].addressable_shards:
        np.testing.assert_array_equal(shard.data, values[shard.index] + 4)
    assert found.data == {"at": 4} and found.state["n"] == 4
    manager.delete(3)
    assert manager.all_steps() == [4]
with ocp.CheckpointManager(root) as manager:
    assert manager.all_steps() == [4]
    assert manager.metadata().custom_metadata == {"processes": count}
    assert manager.restore(4).state["n"] == 4
print("done")
