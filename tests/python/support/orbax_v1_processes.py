# SPDX-License-Identifier: Apache-2.0
"""One process of a run that saves with compat.orbax_v1; see facade_process.py."""

import jax
import jax.numpy as jnp
import numpy as np
from facade_process import array, count, devices, number, root, sharding, values

import stepwell
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

# One checkpoint, saved by all.
single = root + "_single"


def check(found: dict, step: int) -> None:
    assert len(found["w"].addressable_shards) == devices
    for shard in found["w"].addressable_shards:
        np.testing.assert_array_equal(shard.data, values[shard.index] + step)
    assert found["n"] == step


for step in range(3):
    ocp.save(single, {"w": array(step), "n": step}, overwrite=True, custom_metadata={"at": step})
    check(ocp.load(single, target), step)
    assert ocp.metadata(single).custom_metadata == {"at": step}
check(ocp.load(single), 2)
for save in (ocp.save, ocp.save_async):
    try:
        save(single, {"w": array(9), "n": 9})
    except ValueError as error:
        assert "already exists" in str(error)
    else:
        raise AssertionError("saved over a checkpoint")
try:
    ocp.save(single, {"w": array(9), "n": {1: object()}}, overwrite=True)
except ValueError as error:
    assert "object" in str(error)
else:
    raise AssertionError("saved an object")
check(ocp.load(single, target), 2)
if number == 0:
    with open(root + "_file", "x"):
        pass
try:
    ocp.save(root + "_file/single", {"w": array(9), "n": 9})
except (NotADirectoryError, stepwell.PeerError) as error:
    assert isinstance(error, NotADirectoryError if number == 0 else stepwell.PeerError)
    assert "Not a directory" in str(error)
else:
    raise AssertionError("saved below a file")
several = {"state": {"w": array(3), "n": 3}, "data": {"at": 3, "name": "a"}}
first = ocp.save_checkpointables_async(root + "_first", several)  # two at a time
second = ocp.save_checkpointables_async(root + "_second", several)
second.result(), first.result()
for each in (root + "_first", root + "_second"):
    found = ocp.load_checkpointables(each, {"state": target, "data": None})
    check(found["state"], 3)
    assert found["data"] == several["data"]
assert ocp.delete(root + "_first") and not ocp.delete(root + "_first", missing_ok=True)
assert ocp.delete(root + "_second", checkpointable_name="data")
check(ocp.load_checkpointables(root + "_second")["state"], 3)
ocp.partial.save(root + "_parts", {"w": array(4)})
ocp.partial.save(root + "_parts", {"n": 4})
ocp.partial.finalize(root + "_parts")
check(ocp.load(root + "_parts", target), 4)
print("done")
