# SPDX-License-Identifier: Apache-2.0
"""One process of a run that saves with compat.orbax; see facade_process.py."""

import jax
import jax.numpy as jnp
import numpy as np
from facade_process import array, count, devices, root, sharding, values

from stepwell.compat import orbax as ocp

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
# One checkpoint, saved by all.
with ocp.StandardCheckpointer() as checkpointer:
    for step in range(2):
        checkpointer.save(root + "_single", {"w": array(step), "n": step}, force=True)
        checkpointer.wait_until_finished()
        found = checkpointer.restore(root + "_single", target)
        for shard in found["w"].addressable_shards:
            np.testing.assert_array_equal(shard.data, values[shard.index] + step)
composite = ocp.Checkpointer(ocp.CompositeCheckpointHandler())
composite.save(root + "_composite", args=ocp.args.Composite(
    state=ocp.args.StandardSave({"w": array(2), "n": 2}), data=ocp.args.JsonSave({"at": 2})))
assert composite.restore(root + "_composite", args=ocp.args.Composite(
    data=ocp.args.JsonRestore())).data == {"at": 2}
print("done")
