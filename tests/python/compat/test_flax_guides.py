# SPDX-License-Identifier: Apache-2.0
"""Flows of Flax's guides through Flax's own functions: raw dicts into `from_state_dict`; on 8
devices, the partition specs of annotated models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax
import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as orbax
import pytest
from flax.training import checkpoints as real
from flax.training.train_state import TrainState

import stepwell
from stepwell.compat import flax as checkpoints
from stepwell.compat import orbax as ocp

pytestmark = pytest.mark.filterwarnings("ignore:Sharding info not provided")

# For a state without leaves, as the last of Adam's, Orbax's raw dict has None, which Flax refuses.
ADAM, MOMENTS = optax.adam(1e-3), optax.scale_by_adam()


def checkpoint(step: int, optimizer: Any) -> dict[str, Any]:
    """Makes the state that the legacy guide saves: a TrainState, a configuration, a list of
    data."""
    params = {"dense": {"kernel": jnp.full((2, 3), float(step)), "bias": jnp.ones(3)}}
    state = TrainState.create(apply_fn=len, params=params, tx=optimizer).replace(step=step)
    return {"model": state, "config": {"dimensions": np.array([5, step])},
            "data": [jnp.arange(4.0) + step]}


def facts(tree: Any) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(array.dtype, array.shape, array.tobytes())
                       for array in map(np.asarray, leaves)]


def check(raw: Any, optimizer: Any) -> None:
    """The raw dict, edited, becomes what was saved, with the edit."""
    raw["model"]["params"]["dense"]["bias"] = np.arange(3, dtype=np.float32)
    restored: Any = flax.serialization.from_state_dict(checkpoint(0, optimizer), raw)
    saved = checkpoint(3, optimizer)
    params = {"dense": {**saved["model"].params["dense"], "bias": jnp.arange(3.0)}}
    assert facts(restored) == facts({**saved, "model": saved["model"].replace(params=params)})


@pytest.mark.parametrize(("backend", "optimizer"), [("orbax", MOMENTS), ("msgpack", ADAM)],
                         ids=["orbax", "msgpack"])
def test_raw_dicts_that_flax_saved(tmp_path: Path, backend: str, optimizer: Any) -> None:
    before = flax.config.flax_use_orbax_checkpointing
    flax.config.update("flax_use_orbax_checkpointing", backend == "orbax")
    try:
        real.save_checkpoint(str(tmp_path), checkpoint(3, optimizer), step=3)
        check(real.restore_checkpoint(str(tmp_path), target=None), optimizer)
    finally:
        flax.config.update("flax_use_orbax_checkpointing", before)
    check(checkpoints.restore_checkpoint(str(tmp_path), target=None), optimizer)


def test_raw_dicts_of_the_flax_facade(tmp_path: Path) -> None:
    checkpoints.save_checkpoint(str(tmp_path), checkpoint(3, ADAM), step=3)
    check(checkpoints.restore_checkpoint(str(tmp_path), target=None), ADAM)


def test_raw_dicts_of_the_orbax_facade(tmp_path: Path) -> None:
    """Orbax gives lists for tuples; `to_state_dict` makes the dicts of them that Flax takes."""
    raw = []
    with orbax.PyTreeCheckpointer() as theirs, ocp.PyTreeCheckpointer() as ours:
        theirs.save(tmp_path / "theirs", checkpoint(3, MOMENTS))
        ours.save(tmp_path / "ours", checkpoint(3, MOMENTS))
        for reader in (theirs, ours):
            raw += [reader.restore(tmp_path / name) for name in ("theirs", "ours")]
    for each in raw:
        with pytest.raises(TypeError):
            flax.serialization.from_state_dict(checkpoint(0, MOMENTS), each)
        check(flax.serialization.to_state_dict(each), MOMENTS)


def test_raw_dicts_of_a_store(store: stepwell.Store) -> None:
    store.save(3, checkpoint(3, ADAM)).result()
    check(flax.serialization.to_state_dict(store.load(3)), ADAM)


DEVICES = "--xla_force_host_platform_device_count=8"
START = """
import sys, warnings, pathlib
import jax, jax.numpy as jnp, numpy as np, optax, stepwell
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
path = pathlib.Path(sys.argv[1])
meshes = [Mesh(np.array(jax.devices()).reshape(shape), ("data", "model"))
          for shape in ((2, 4), (4, 2))]

def facts(tree):
    def fact(leaf):
        key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(leaf) if key else leaf).tobytes()
    return [(fact(leaf), leaf.sharding) for leaf in jax.tree.leaves(tree)]

def on(mesh, tree, specs):  # the same, as JAX places it
    return jax.tree.map(lambda leaf, spec: jax.device_put(leaf, NamedSharding(mesh, spec)),
                        tree, specs)

def same(one, other):
    one, other = facts(one), facts(other)
    assert [each[0] for each in one] == [each[0] for each in other]
    for (raw, sharding), (_, wanted) in zip(one, other, strict=True):
        assert sharding.mesh == wanted.mesh and sharding.is_equivalent_to(wanted, 4), (
            sharding, wanted)
"""
NNX = START + """
from flax import nnx

class Model(nnx.Module):
    def __init__(self, rngs):
        def init(*axes):
            return nnx.with_partitioning(nnx.initializers.lecun_normal(), axes)
        self.up = nnx.Linear(8, 16, rngs=rngs, kernel_init=init(None, "model"))
        self.down = nnx.Linear(16, 8, rngs=rngs, kernel_init=init("model", "data"))
        self.dropout = nnx.Dropout(0.1, rngs=rngs)

@nnx.jit
def create():
    model = Model(nnx.Rngs(0))
    both = model, nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
    state = nnx.state(both)
    nnx.update(both, jax.lax.with_sharding_constraint(state, nnx.get_partition_spec(state)))
    return both

with jax.set_mesh(meshes[0]):
    state = nnx.state(create())
    abstract = nnx.state(nnx.eval_shape(create))
specs = nnx.get_partition_spec(abstract)
assert state[0]["down"]["kernel"][...].sharding.spec == P("model", "data")
"""


def test_specs_of_an_nnx_model(run_jax: Callable[..., Any], path: Path) -> None:
    status, _, err = run_jax(NNX + """
with stepwell.open(path) as store:
    store.save(0, state).result()
    for mesh in meshes:
        expected = on(mesh, state, specs)
        same(store.load(0, like=abstract, mesh=mesh, specs=specs), expected)
        same(store.load(0, mesh=mesh, specs=specs), expected)
        part = store.load(0, "0/up", mesh=mesh, specs=specs[0]["up"])
        same(part, expected[0]["up"])
""", path, XLA_FLAGS=DEVICES)
    assert status == 0, err


def test_shardings_of_an_nnx_model_in_the_orbax_facades(
    run_jax: Callable[..., Any], tmp_path: Path
) -> None:
    """The guide's targets: shapes with the shardings that the model's annotations give."""
    status, _, err = run_jax(NNX + """
import orbax.checkpoint as v0
from orbax.checkpoint import v1
from stepwell.compat import orbax as ours0, orbax_v1 as ours1

def pick(tree):
    return {"model": {name: tree[0][name] for name in ("up", "down")},
            "opt_state": tree[1]["opt_state"]}

state, abstract, specs = map(pick, (state, abstract, specs))
def save0(library, name):
    with library.StandardCheckpointer() as checkpointer:
        checkpointer.save(path / name, state)

def load0(library, name, target):
    with library.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(path / name, target)

save0(v0, "orbax0"), save0(ours0, "ours0")
v1.save(path / "orbax1", state), ours1.save(path / "ours1", state)
for mesh in meshes:
    expected = on(mesh, state, specs)
    target = jax.tree.map(lambda leaf, spec: jax.ShapeDtypeStruct(
        leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec)), abstract, specs)
    same(load0(v0, "orbax0", target), expected)
    for name in ("orbax0", "ours0"):
        same(load0(ours0, name, target), expected)
    same(v1.load(path / "orbax1", target), expected)
    for name in ("orbax1", "ours1"):
        same(ours1.load(path / name, target), expected)
    same(v1.load(path / "ours1", target), expected)
""", tmp_path, XLA_FLAGS=DEVICES)
    assert status == 0, err


def test_specs_of_a_linen_model(run_jax: Callable[..., Any], path: Path) -> None:
    """With the boxes of `nn.with_partitioning`, and without them."""
    status, _, err = run_jax(START + """
import flax.linen as nn

class Model(nn.Module):
    @nn.compact
    def __call__(self, x):
        init = nn.with_partitioning(nn.initializers.lecun_normal(), (None, "model"))
        return nn.Dense(8)(nn.Dense(16, kernel_init=init)(x))

boxed = Model().init(jax.random.key(0), jnp.ones((1, 8)))
plain = nn.meta.unbox(boxed)
specs = nn.get_partition_spec(boxed)
assert specs["params"]["Dense_1"]["kernel"] == P(None, "model")
with stepwell.open(path) as store:
    store.save(0, plain).result()
    store.save(1, boxed).result()
    for mesh in meshes:
        expected = on(mesh, plain, specs)
        for step, like in ((0, plain), (1, boxed)):
            same(store.load(step, like=like, mesh=mesh, specs=specs), expected)
            same(store.load(step, mesh=mesh, specs=specs), expected)
""", path, XLA_FLAGS=DEVICES)
    assert status == 0, err
