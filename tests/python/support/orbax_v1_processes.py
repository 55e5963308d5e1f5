# SPDX-License-Identifier: Apache-2.0
"""One process of a run that saves with compat.orbax_v1: NUMBER COUNT PORT DEVICES ROOT."""

import os
import sys

number, count, port, devices, root = *map(int, sys.argv[1:5]), sys.argv[5]
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

from stepwell.compat import orbax_v1 as ocp  # noqa: E402

jax.distributed.initialize(f"localhost:{port}", count, number)
sharding = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec("x"))
values = np.arange(16.0, dtype=np.float32).reshape(8, 2)


def array(step: int) -> jax.Array:
    return jax.make_array_from_callback((8, 2), sharding, lambda index: values[index] + step)


keeps = ocp.training.preservation_policies
saves = ocp.training.save_decision_policies
with ocp.training.Checkpointer(root, preservation_policy=keeps.LatestN(2),
                               save_decision_policy=saves.FixedIntervalPolicy(1),
                               custom_metadata={"processes": count}) as checkpointer:
    for step in range(5):
        assert checkpointer.save_async(step, {"w": array(step), "n": step}) is not None
    checkpointer.wait()
    assert [each.step for each in checkpointer.checkpoints] == [3, 4]
    target = {"w": jax.ShapeDtypeStruct((8, 2), jnp.float32, sharding=sharding), "n": 0}
    found = checkpointer.load(4, target)
    assert len(found["w"].addressable_shards) == devices
    for shard in found["w"].addressable_shards:
        np.testing.assert_array_equal(shard.data, values[shard.index] + 4)
    assert found["n"] == 4
    assert checkpointer.delete(3)
    assert [each.step for each in checkpointer.checkpoints] == [4]
with ocp.training.Checkpointer(root) as checkpointer:
    assert checkpointer.root_metadata().custom_metadata == {"processes": count}
    assert checkpointer.save(5, {"w": array(5), "n": 5})  # continuously, as process 0 decides
    assert [each.step for each in checkpointer.checkpoints] == [4, 5]
try:
    ocp.save(root + "_single", {"w": array(0)})
except NotImplementedError as error:
    assert "training.Checkpointer" in str(error)
else:
    raise AssertionError("a single checkpoint of several processes")
print("done")
