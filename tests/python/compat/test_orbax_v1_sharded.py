# SPDX-License-Identifier: Apache-2.0
"""stepwell.compat.orbax_v1 on 8 CPU devices: sharded states, and onto other meshes."""

from __future__ import annotations

import pathlib
from typing import Any

START = """
import sys, warnings
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P, SingleDeviceSharding
from orbax.checkpoint import v1 as real
from stepwell.compat import orbax_v1 as ocp
warnings.simplefilter("ignore")
devices = jax.devices()
assert len(devices) == 8
path = sys.argv[1]
one = Mesh(np.array(devices).reshape(2, 4), ("data", "model"))
two = Mesh(np.array(devices[:4]).reshape(4), ("all",))
values = np.arange(64 * 8, dtype=np.float32).reshape(64, 8)
state = {"w": jax.device_put(values, NamedSharding(one, P("data", "model"))),
         "r": jax.device_put(values, NamedSharding(one, P())),
         "key": jax.device_put(jax.random.key(3), NamedSharding(one, P()))}

def check(loaded, sharding):
    np.testing.assert_array_equal(loaded["w"], values)
    np.testing.assert_array_equal(loaded["r"], values)
    assert loaded["w"].sharding == sharding, loaded["w"].sharding
    np.testing.assert_array_equal(*(np.asarray(jax.random.key_data(each["key"]))
                                    for each in (loaded, state)))
"""
EIGHT = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}


def test_sharded_states_onto_other_meshes(run_jax: Any, tmp_path: pathlib.Path) -> None:
    status, out, err = run_jax(START + """
response = ocp.save_async(path, state)
response.result()
check(ocp.load(path), state["w"].sharding)
check(real.load(path), state["w"].sharding)
check(ocp.load(path, state), state["w"].sharding)
other = NamedSharding(two, P(None, "all"))
target = {"w": jax.ShapeDtypeStruct((64, 8), jnp.float32, sharding=other),
          "r": jax.ShapeDtypeStruct((64, 8), jnp.float32, sharding=NamedSharding(two, P("all"))),
          "key": jax.ShapeDtypeStruct((), state["key"].dtype, sharding=NamedSharding(two, P()))}
check(ocp.load(path, target), other)
without = {"w": jax.ShapeDtypeStruct((64, 8), jnp.float32),
           "r": jax.ShapeDtypeStruct((64, 8), jnp.float32), "key": state["key"]}
check(ocp.load(path, without), state["w"].sharding)
metadata = ocp.metadata(path)
assert metadata.metadata["w"].sharding == state["w"].sharding
assert metadata.metadata["w"].storage_metadata.write_shape == (32, 2)
check(ocp.load(path, metadata), state["w"].sharding)
single = jax.tree.map(lambda x: jax.ShapeDtypeStruct(
    x.shape, x.dtype, sharding=SingleDeviceSharding(devices[5])), state)
check(ocp.load(path, single), SingleDeviceSharding(devices[5]))
real.save(path + "_real", state)
check(ocp.load(path + "_real", target), other)
check(ocp.load(path + "_real"), state["w"].sharding)
""", str(tmp_path / "a"), **EIGHT)
    assert status == 0, err[-4000:]


def test_a_checkpointer_under_set_mesh(run_jax: Any, tmp_path: pathlib.Path) -> None:
    status, out, err = run_jax(START + """
def init():
    return {"w": jnp.zeros((64, 8), out_sharding=P("data", "model")), "step": jnp.int32(0)}

with jax.set_mesh(jax.make_mesh((2, 4), ("data", "model"),
                                axis_types=(jax.sharding.AxisType.Explicit,) * 2)):
    abstract = jax.eval_shape(jax.jit(init))
    state = jax.jit(init)()
    with ocp.training.Checkpointer(path) as ckptr:
        for step in range(3):
            state = jax.tree.map(lambda x: x + 1, state)
            ckptr.save_async(step, state).result()
        loaded = ckptr.load(abstract_state=abstract)
        assert loaded["w"].sharding == state["w"].sharding
        np.testing.assert_array_equal(loaded["w"], state["w"])
        assert int(loaded["step"]) == 3
""", str(tmp_path / "run"), **EIGHT)
    assert status == 0, err[-4000:]


def test_a_machine_with_fewer_devices_loads(run_jax: Any, tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "a")
    status, out, err = run_jax(START + "ocp.save(path, state)", path, **EIGHT)
    assert status == 0, err[-4000:]
    status, out, err = run_jax("""
import sys, numpy as np, jax
from stepwell.compat import orbax_v1 as ocp
assert len(jax.devices()) == 1
loaded = ocp.load(sys.argv[1])
assert isinstance(loaded["w"], jax.Array) and loaded["w"].shape == (64, 8)
assert float(np.asarray(loaded["w"]).sum()) == 64 * 8 * (64 * 8 - 1) / 2
metadata = ocp.metadata(sys.argv[1])
assert metadata.metadata["w"].sharding_metadata.partition_spec == ("data", "model")
assert ocp.load(sys.argv[1], metadata)["w"].shape == (64, 8)
""", path)
    assert status == 0, err[-4000:]
