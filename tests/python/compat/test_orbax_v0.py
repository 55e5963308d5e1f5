# SPDX-License-Identifier: Apache-2.0
"""The flows of Orbax's and Flax's guides, with Stepwell's import instead of Orbax's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as real
import pytest
import tensorstore
from flax import nnx, struct
from flax.training import orbax_utils, train_state
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from stepwell.compat import orbax as ocp

pytestmark = pytest.mark.filterwarnings("ignore:Sharding info not provided:UserWarning")


def same(found: Any, expected: Any) -> None:
    """Trees with the same structure and the same leaves, bit for bit."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert type(one) is type(other)
        if hasattr(one, "dtype") and jax.dtypes.issubdtype(one.dtype, jax.dtypes.prng_key):
            one, other = jax.random.key_data(one), jax.random.key_data(other)
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
        assert np.asarray(one).dtype == np.asarray(other).dtype


# ---- NNX: parameters and optimizer as items, a dataset's state as JSON --------------------------


class Model(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(4, 8, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.second = nnx.Linear(8, 2, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.second(self.dropout(nnx.relu(self.first(x))))


def trained() -> tuple[Model, Any]:
    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    grads = nnx.grad(lambda m: jnp.sum(m(jnp.ones((3, 4))) ** 2))(model)
    optimizer.update(model, grads)
    return model, optimizer


def test_nnx_items(tmp_path: Path) -> None:
    model, optimizer = trained()
    _, params, rest = nnx.split(model, nnx.Param, ...)
    _, optimizer_state = nnx.split(optimizer)
    root = ocp.test_utils.erase_and_create_empty(tmp_path / "nnx")
    options = ocp.CheckpointManagerOptions(max_to_keep=2, create=True)
    manager = ocp.CheckpointManager(root, options=options,
                                    item_names=("params", "rest", "optimizer", "dataset"))
    for step in range(3):
        assert manager.save(step, args=ocp.args.Composite(
            params=ocp.args.StandardSave(params), rest=ocp.args.StandardSave(rest),
            optimizer=ocp.args.StandardSave(optimizer_state),
            dataset=ocp.args.JsonSave({"index": step, "seed": 7})))
    manager.wait_until_finished()
    assert manager.all_steps() == [1, 2]

    abstract = nnx.eval_shape(lambda: Model(nnx.Rngs(0)))
    graph, abstract_params, abstract_rest = nnx.split(abstract, nnx.Param, ...)
    restored = manager.restore(manager.latest_step(), args=ocp.args.Composite(
        params=ocp.args.StandardRestore(abstract_params),
        rest=ocp.args.StandardRestore(abstract_rest),
        optimizer=ocp.args.StandardRestore(optimizer_state), dataset=ocp.args.JsonRestore()))
    assert restored.dataset == {"index": 2, "seed": 7}
    same(restored.optimizer, optimizer_state)
    rebuilt = nnx.merge(graph, restored.params, restored.rest)
    rebuilt.eval()
    model.eval()
    np.testing.assert_array_equal(rebuilt(jnp.ones((3, 4))), model(jnp.ones((3, 4))))

    # Without a target: the dicts that Orbax gives, which nnx.State's methods take.
    raw = manager.restore(2, args=ocp.args.Composite(params=ocp.args.StandardRestore()))
    assert set(raw.params["first"]["kernel"]) == {"value"}
    manager.close()


def test_sharded_restore(tmp_path: Path) -> None:
    devices = np.array(jax.devices()[:1])
    mesh = Mesh(devices, ("data",))
    state = {"w": jnp.arange(16.0).reshape(8, 2), "step": jnp.asarray(3)}
    sharding = NamedSharding(mesh, P("data"))
    with ocp.CheckpointManager(tmp_path / "sharded") as manager:
        manager.save(0, args=ocp.args.StandardSave(jax.device_put(state, jax.devices()[0])))
        abstract = {"w": jax.ShapeDtypeStruct((8, 2), jnp.float32, sharding=sharding),
                    "step": jax.ShapeDtypeStruct((), jnp.int32,
                                                 sharding=NamedSharding(mesh, P()))}
        restored = manager.restore(0, args=ocp.args.StandardRestore(abstract))
    assert restored["w"].sharding == sharding
    same(restored, state)


def test_async_save_may_be_donated(tmp_path: Path) -> None:
    step_fn = jax.jit(lambda state: jax.tree.map(lambda x: x + 1, state), donate_argnums=0)
    state = {"w": jnp.zeros((64, 64))}
    with ocp.CheckpointManager(tmp_path / "async") as manager:
        for step in range(20):
            manager.save(step, args=ocp.args.StandardSave(state))
            state = step_fn(state)
        manager.wait_until_finished()
        assert not manager.is_saving_in_progress()
        for step in range(20):
            found = manager.restore(step)["w"]
            np.testing.assert_array_equal(found, np.full((64, 64), step, np.float32))


# ---- Flax's guide -------------------------------------------------------------------------------


class CustomTrainState(train_state.TrainState):
    batch_stats: Any = None


def flax_state() -> Any:
    model = nn.Dense(features=3)
    variables = model.init(jax.random.key(0), jnp.ones((4, 5)))
    return train_state.TrainState.create(apply_fn=model.apply, params=variables["params"],
                                         tx=optax.sgd(0.001))


def bundle() -> dict[str, Any]:
    return {"model": flax_state(), "config": {"dimensions": np.array([5, 3]), "name": "dense"},
            "data": [jnp.ones((4, 5))]}


def test_pytree_checkpointer(tmp_path: Path) -> None:
    ckpt = bundle()
    checkpointer = ocp.PyTreeCheckpointer()
    path = tmp_path / "single_save"
    checkpointer.save(path, ckpt, save_args=orbax_utils.save_args_from_target(ckpt))
    raw = checkpointer.restore(path)
    assert raw["config"]["name"] == "dense"
    np.testing.assert_array_equal(raw["model"]["params"]["kernel"],
                                  ckpt["model"].params["kernel"])
    with pytest.raises(ValueError, match="already exists"):
        checkpointer.save(path, ckpt)
    checkpointer.save(path, {"other": 1}, force=True)
    assert checkpointer.restore(path) == {"other": 1}
    target = jax.tree.map(np.zeros_like, {"other": np.int64(1)})
    assert checkpointer.restore(path, item=target, restore_args=(
        orbax_utils.restore_args_from_target(target)))["other"] == 1


def test_manager_with_a_checkpointer(tmp_path: Path) -> None:
    ckpt = bundle()
    save_args = orbax_utils.save_args_from_target(ckpt)
    options = ocp.CheckpointManagerOptions(max_to_keep=2, create=True)
    manager = ocp.CheckpointManager(tmp_path / "managed", ocp.PyTreeCheckpointer(), options)
    for step in range(5):
        ckpt["data"] = [jnp.ones((4, 5)) * step]
        assert manager.save(step, ckpt, save_kwargs={"save_args": save_args})
    assert sorted(os.listdir(tmp_path / "managed")) == [".stepwell", "3", "4"]
    assert manager.latest_step() == 4
    raw = manager.restore(4)
    np.testing.assert_array_equal(raw["data"][0], np.full((4, 5), 4, np.float32))
    restored = manager.restore(4, items=ckpt, restore_kwargs={
        "restore_args": orbax_utils.restore_args_from_target(ckpt)})
    assert isinstance(restored["model"], train_state.TrainState)
    same(restored["model"].params, ckpt["model"].params)
    manager.close()


def test_named_checkpointers(tmp_path: Path) -> None:
    manager = ocp.CheckpointManager(tmp_path / "named", {
        "state": ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler(), timeout_secs=50),
        "metadata": ocp.Checkpointer(ocp.JsonCheckpointHandler())})
    assert manager.save(1, {"state": {"a": np.arange(3)}, "metadata": {"lang": "en"}})
    manager.wait_until_finished()
    restored = manager.restore(1)
    assert restored["metadata"] == {"lang": "en"}
    np.testing.assert_array_equal(restored["state"]["a"], np.arange(3))
    only = manager.restore(1, {"state": {"a": np.zeros(3, np.int64)}})
    assert list(only) == ["state"]
    manager.close()


def test_changed_structures(tmp_path: Path) -> None:
    ckpt = bundle()
    path = tmp_path / "structure"
    checkpointer = ocp.PyTreeCheckpointer()
    checkpointer.save(path, ckpt)

    # The target has less than the checkpoint.
    part = {"config": {"dimensions": np.zeros(2, np.int64)}}
    with pytest.raises(ValueError, match="not in the target"):
        checkpointer.restore(path, item=part)
    found = checkpointer.restore(path, args=ocp.args.PyTreeRestore(part, partial_restore=True))
    np.testing.assert_array_equal(found["config"]["dimensions"], [5, 3])

    # The target has more: what is missing comes from it.
    state = ckpt["model"]
    custom = CustomTrainState.create(apply_fn=state.apply_fn, params=state.params, tx=state.tx,
                                     batch_stats=np.arange(10))
    target = {**ckpt, "model": custom}
    with pytest.raises(ValueError, match="model/batch_stats: missing in the step"):
        checkpointer.restore(path, item=target)
    restore_args = orbax_utils.restore_args_from_target(target)
    found = checkpointer.restore(path, item=target, transforms={}, restore_args=restore_args)
    assert isinstance(found["model"], CustomTrainState)
    np.testing.assert_array_equal(found["model"].batch_stats, np.arange(10))
    same(found["model"].params, state.params)

    # A renamed leaf, by Orbax's own Transform.
    renamed = {"bias": np.zeros(3, np.float32)}
    found = checkpointer.restore(
        path, item=renamed, restore_args=orbax_utils.restore_args_from_target(renamed),
        transforms={"bias": real.Transform(original_key="model/params/bias")})
    np.testing.assert_array_equal(found["bias"], state.params["bias"])


def test_sharded_with_restore_args(tmp_path: Path) -> None:
    mesh = Mesh(np.array(jax.devices()[:1]), ("x",))
    array = jax.device_put(jnp.arange(8.0), NamedSharding(mesh, P("x")))
    state = {"array": array, "count": 3}
    manager = ocp.CheckpointManager(
        tmp_path / "multi", ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler(), timeout_secs=50))
    manager.save(0, state, save_kwargs={"save_args": orbax_utils.save_args_from_target(state)})
    manager.wait_until_finished()
    target = {"array": jax.device_put(jnp.zeros(8), NamedSharding(mesh, P(None))), "count": 0}
    for args in (ocp.checkpoint_utils.construct_restore_args(target),
                 real.checkpoint_utils.construct_restore_args(target)):
        found = manager.restore(0, items=target, restore_kwargs={"restore_args": args})
        assert found["array"].sharding == target["array"].sharding
        same(found, state)
    manager.close()


@struct.dataclass
class Mixed:
    """A state with static fields, which code makes anew."""

    weights: Any
    name: str = struct.field(pytree_node=False, default="unset")


def test_dataclasses_keep_static_fields(tmp_path: Path) -> None:
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "mixed", Mixed(jnp.ones(3), "saved"))
        checkpointer.wait_until_finished()
        found = checkpointer.restore(tmp_path / "mixed", Mixed(jnp.zeros(3), "target"))
        assert found.name == "target"
        np.testing.assert_array_equal(found.weights, np.ones(3))
        assert jax.tree.map(lambda x: x.shape, checkpointer.metadata(
            tmp_path / "mixed").item_metadata.tree) == {"weights": (3,)}


# ---- Orbax reads what is there, and the other way round -----------------------------------------


def test_orbax_reads_the_root(tmp_path: Path) -> None:
    state = {"w": jnp.arange(12.0).reshape(3, 4), "n": 3, "deep": [jnp.ones(2, jnp.bfloat16)]}
    root = tmp_path / "root"
    with ocp.CheckpointManager(root, metadata={"run": "a"}, options=ocp.CheckpointManagerOptions(
            best_fn=lambda metrics: metrics["loss"])) as manager:
        for step in (0, 5):
            manager.save(step, args=ocp.args.StandardSave(state), metrics={"loss": float(step)},
                         custom_metadata={"note": step})
        manager.wait_until_finished()
        with real.CheckpointManager(root, options=real.CheckpointManagerOptions(
                read_only=True, best_fn=lambda metrics: metrics["loss"])) as reader:
            assert list(reader.all_steps()) == [0, 5]
            same(reader.restore(5, args=real.args.StandardRestore(state)), state)
            assert reader.best_step() == 5
            assert reader.metrics(5) == {"loss": 5.0}
            assert reader.metadata(5).custom_metadata["note"] == 5
            assert reader.metadata().custom_metadata == {"run": "a"}
        array = tensorstore.open({"driver": "zarr", "kvstore": {
            "driver": "ocdbt", "base": f"file://{root}/0/default/", "path": "w/"}}).result()
        np.testing.assert_array_equal(array.read().result(), state["w"])


def test_goes_on_from_a_root_of_orbax(tmp_path: Path) -> None:
    root = tmp_path / "root"
    state = {"w": jnp.arange(4.0), "step": 0}
    options = {"max_to_keep": 3, "best_fn": lambda metrics: metrics["loss"], "best_mode": "min"}
    with real.CheckpointManager(root, options=real.CheckpointManagerOptions(**options)) as manager:
        for step in (1, 2, 3):
            manager.save(step, args=real.args.StandardSave({**state, "step": step}),
                         metrics={"loss": step / 2}, custom_metadata={"from": "orbax"})
    with ocp.CheckpointManager(root, options=ocp.CheckpointManagerOptions(**options)) as manager:
        assert manager.all_steps() == [1, 2, 3]
        assert manager.best_step() == 1
        assert manager.metrics(2) == {"loss": 1.0}
        assert manager.metadata(2).custom_metadata == {"from": "orbax"}
        same(manager.restore(3, args=ocp.args.StandardRestore(state)), {**state, "step": 3})
        same(manager.restore(3), {**state, "step": 3})
        assert not manager.save(3, args=ocp.args.StandardSave(state))
        assert manager.save(4, args=ocp.args.StandardSave({**state, "step": 4}),
                            metrics={"loss": 0.1})
        manager.wait_until_finished()
        assert manager.all_steps() == [1, 2, 4]
        assert not (root / "3").exists()
        manager.delete(2)
        assert not (root / "2").exists()
    with real.CheckpointManager(root, options=real.CheckpointManagerOptions(
            read_only=True)) as manager:
        assert list(manager.all_steps()) == [1, 4]
        assert manager.restore(4, args=real.args.StandardRestore(state))["step"] == 4


def test_items_that_orbax_wrote(tmp_path: Path) -> None:
    root = tmp_path / "root"
    numbers = np.random.default_rng(3)
    legacy = np.random.RandomState(5).get_state()
    key = jax.random.key(9)
    for lib, other in ((real, ocp), (ocp, real)):
        with lib.CheckpointManager(root / lib.__name__) as manager:
            manager.save(0, args=lib.args.Composite(
                key=lib.args.JaxRandomKeySave(key), numpy=lib.args.NumpyRandomKeySave(legacy),
                array=lib.args.ArraySave(numbers.random(4)),
                data=lib.args.JsonSave([1, {"a": None}]),
                raw=lib.args.JaxRandomKeySave(jax.random.PRNGKey(4))))
            manager.wait_until_finished()
            with other.CheckpointManager(
                    root / lib.__name__,
                    options=other.CheckpointManagerOptions(read_only=True)) as reader:
                for manager_ in (manager, reader):
                    own = lib if manager_ is manager else other
                    found = manager_.restore(0, args=own.args.Composite(
                        key=own.args.JaxRandomKeyRestore(), raw=own.args.JaxRandomKeyRestore(),
                        numpy=own.args.NumpyRandomKeyRestore(), array=own.args.ArrayRestore(),
                        data=own.args.JsonRestore()))
                    assert found.key == key
                    assert found.data == [1, {"a": None}]
                    np.testing.assert_array_equal(found.raw, jax.random.PRNGKey(4))
                    assert found.numpy[0] == legacy[0]
                    np.testing.assert_array_equal(found.numpy[1], legacy[1])
                    assert found.numpy[2:] == legacy[2:]
                    assert found.array.shape == (4,)


@pytest.mark.parametrize("name", ["PyTreeCheckpointer", "StandardCheckpointer"])
def test_checkpointers_read_each_other(name: str, tmp_path: Path) -> None:
    state = {"a": jnp.arange(3.0), "b": {"c": 4, "d": np.ones((2, 2))}}
    for writer, reader, path in ((ocp, real, tmp_path / "ours"), (real, ocp, tmp_path / "real")):
        with getattr(writer, name)() as checkpointer:
            checkpointer.save(path, state)
        with getattr(reader, name)() as checkpointer:
            same(checkpointer.restore(path), state)
