# SPDX-License-Identifier: Apache-2.0
"""One process of a run that saves with compat.orbax_v1; see facade_process.py."""

import jax
import jax.numpy as jnp
import numpy as np
from facade_process import array, count, devices, root, sharding, values

from stepwell.compat import orbax_v1 as ocp

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
theirs = ocp.load(root + "_orbax", {"w": target["w"]})  # what Orbax wrote; each imports it
for shard in theirs["w"].addressable_shards:
    np.testing.assert_array_equal(shard.data, values[shard.index])
try:
    ocp.save(root + "_single", {"w": array(0)})
except NotImplementedError as error:
    assert "training.Checkpointer" in str(error)
else:
    raise AssertionError("a single checkpoint of several processes")
print("done")
