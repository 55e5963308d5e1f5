# SPDX-License-Identifier: Apache-2.0
"""States of optax, Flax and Equinox, there and back: through exports, imports, pushes and views,
into `like` and into Orbax's own targets. Exports have the structure that Orbax itself writes."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import obstore.store
import optax
import orbax.checkpoint as v0
import pytest
from equality import bits
from ecosystem_states import OPTIMIZERS, STATES, Model, params
from flax import nnx
from orbax.checkpoint import v1

import stepwell

pytestmark = [pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
              pytest.mark.filterwarnings("ignore:Sharding info not provided:UserWarning")]

every_state = pytest.mark.parametrize("make", STATES.values(), ids=STATES)


def is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def other_values(tree: Any) -> Any:
    """The same structure and types; nothing of `tree` can come from here."""

    def other(leaf: Any) -> Any:
        if is_key(leaf):
            data = jnp.zeros_like(jax.random.key_data(leaf))
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
        if isinstance(leaf, (jax.Array, np.ndarray)):
            return jnp.zeros_like(leaf) if isinstance(leaf, jax.Array) else np.zeros_like(leaf)
        return type(leaf)()

    return jax.tree.map(other, tree)


def values(tree: Any) -> list[Any]:
    """Leaves by path, without what a checkpoint does not keep: commitment and weak types."""

    def value(leaf: Any) -> Any:
        if is_key(leaf):
            return str(jax.random.key_impl(leaf)), bits(np.asarray(jax.random.key_data(leaf)))
        return ("jax", bits(np.asarray(leaf))) if isinstance(leaf, jax.Array) else bits(leaf)

    return [(jax.tree_util.keystr(path), value(leaf))
            for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]]


def check(wanted: Any, got: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    assert values(got) == values(wanted)


def check_loads(store: stepwell.Store, step: int, tree: Any) -> None:
    check(tree, store.load(step, like=other_values(tree)))
    loaded, start = store.load_or(other_values(tree))
    check(tree, loaded)
    assert start == step + 1


# ---- the files of an item ----


def described(item: pathlib.Path) -> dict[str, Any]:
    """Returns what Orbax learns of the leaves: keys and their types, types of values, shardings,
    PRNG keys, texts. Without shapes of chunks."""
    tree = json.loads((item / "_METADATA").read_text())["tree_metadata"]
    out: dict[str, Any] = {"tree": {
        tuple((key["key"], key["key_type"]) for key in entry["key_metadata"]):
            (entry["value_metadata"]["value_type"], entry["value_metadata"]["skip_deserialize"])
        for entry in tree.values()}}
    for name in ("_sharding", "_strings.json"):
        path = item / name
        out[name] = json.loads(path.read_text()) if path.exists() else {}
    arrays = item / "array_metadatas/process_0"
    listed = json.loads(arrays.read_text())["array_metadatas"] if arrays.exists() else []
    out["arrays"] = {entry["array_metadata"]["param_name"]: entry["array_metadata"]["ext_metadata"]
                     for entry in listed}
    return out


# ---- Orbax's restores ----


def abstract(tree: Any) -> Any:
    """Makes targets as Orbax's documentation does."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
        if isinstance(leaf, jax.Array) else leaf, tree)


def restored_by_v1(path: pathlib.Path, tree: Any) -> Any:
    return v1.load(path, abstract(tree))


def restored_by_pytree(path: pathlib.Path, tree: Any) -> Any:
    with v0.Checkpointer(v0.PyTreeCheckpointHandler()) as checkpointer:
        return checkpointer.restore(path / "state", args=v0.args.PyTreeRestore(
            item=abstract(tree),
            restore_args=v0.checkpoint_utils.construct_restore_args(abstract(tree))))


def restored_by_standard(path: pathlib.Path, tree: Any) -> Any:
    with v0.Checkpointer(v0.StandardCheckpointHandler()) as checkpointer:
        return checkpointer.restore(path / "state",
                                    args=v0.args.StandardRestore(item=abstract(tree)))


RESTORES: list[Callable[[pathlib.Path, Any], Any]] = [
    restored_by_v1, restored_by_pytree, restored_by_standard]


def outcome(restore: Callable[[pathlib.Path, Any], Any], path: pathlib.Path, tree: Any) -> Any:
    try:
        got = restore(path, other_values(tree))
    except Exception as error:  # noqa: BLE001
        return type(error)
    return jax.tree.structure(got), values(got)


def check_restores(exported: pathlib.Path, others: list[pathlib.Path], orbaxs: pathlib.Path,
                   tree: Any) -> None:
    """Every restore does with an export what it does with Orbax's own checkpoint. v1's gives
    `tree`, from `others`, too."""
    for restore in RESTORES:
        assert outcome(restore, exported, tree) == outcome(restore, orbaxs, tree), restore
    for path in [exported, *others]:
        check(tree, restored_by_v1(path, other_values(tree)))


# ---- there and back ----


def test_every_optimizer_is_checked() -> None:
    assert len(OPTIMIZERS) >= 20


@every_state
def test_there_and_back(tmp_path: pathlib.Path, make: Callable[[], Any]) -> None:
    tree = make()
    orbaxs, exported = tmp_path / "orbax", tmp_path / "exported"
    v1.save(orbaxs, tree)
    bucket = obstore.store.MemoryStore()
    with stepwell.open(tmp_path / "store") as store:
        store.save(0, tree).result()
        check_loads(store, 0, tree)
        store.export(0, exported, leaves="jax")
        assert described(exported / "state") == described(orbaxs / "state")
        store.export(0, tmp_path / "numpy", leaves="numpy")
        with store.orbax_view(tmp_path / "view") as view:
            view.wait(60)
            check_restores(exported, [tmp_path / "numpy", tmp_path / "view/0"], orbaxs, tree)
        store.push(0, bucket, prefix="run/0")
    with stepwell.open(tmp_path / "back") as back:
        for step, source in enumerate([exported, tmp_path / "numpy", orbaxs]):
            back.import_checkpoint(source, step=step).result()
            check_loads(back, step, tree)
        back.pull(bucket, 3, prefix="run/0")
        check_loads(back, 3, tree)
        back.export(2, tmp_path / "again", leaves="jax")
    assert described(tmp_path / "again/state") == described(orbaxs / "state")


# ---- NNX ----


def test_variables_are_in_the_records_and_not_in_paths(store: stepwell.Store) -> None:
    model = Model(nnx.Rngs(0))
    store.save(0, nnx.state(model)).result()
    assert "embed/kernel" in store.tree(0) and "blocks/1/bias" in store.tree(0)
    np.testing.assert_array_equal(store.load(0, "embed/kernel"), model.embed.kernel[...])
    loaded = store.load(0, "embed", like=nnx.state(model)["embed"])
    assert type(loaded["kernel"]) is nnx.Param


def test_abstract_states_are_targets(store: stepwell.Store, tmp_path: pathlib.Path) -> None:
    def make() -> tuple[nnx.State, nnx.State]:
        model = Model(nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)
        return nnx.state(model), nnx.state(optimizer)

    model, optimizer = make()
    state = {"model": model, "optimizer": optimizer}
    like = dict(zip(state, nnx.eval_shape(make), strict=True))
    v1.save(tmp_path / "orbax", state)
    store.save(0, state).result()
    store.import_checkpoint(tmp_path / "orbax", 1).result()
    store.export(0, tmp_path / "exported")
    store.import_checkpoint(tmp_path / "exported", 2).result()
    for step in range(3):
        check(state, store.load(step, like=like))
        check(model, store.load(step, "model", like=like["model"]))
        check(nnx.filter_state(model, nnx.Param)["embed"],
              store.load(step, "model/embed", like=like["model"]["embed"]))


def test_an_optimizer_goes_on_from_orbaxs_checkpoint(
        store: stepwell.Store, tmp_path: pathlib.Path) -> None:
    def make(seed: int) -> nnx.Optimizer:
        return nnx.Optimizer(Model(nnx.Rngs(seed)), optax.adamw(1e-3), wrt=nnx.Param)

    state = nnx.state(make(0))
    v1.save(tmp_path / "orbax", state)
    store.import_checkpoint(tmp_path / "orbax", 0).result()
    other = make(1)
    nnx.update(other, store.load(0, like=nnx.state(other)))
    check(state, nnx.state(other))
    whole = store.load(0, like=make(2))  # an Optimizer as it is
    check(state, nnx.state(whole))


def test_modules_with_lists(store: stepwell.Store, tmp_path: pathlib.Path) -> None:
    """Orbax writes indices and a name below an nnx.List of a Module, which it cannot read itself;
    imports can. (nnx.state(module) is for both.)"""
    model = Model(nnx.Rngs(0))
    v1.save(tmp_path / "orbax", model)
    with pytest.raises(TypeError, match="'<' not supported"):
        v1.load(tmp_path / "orbax", abstract(model))
    store.save(0, model).result()
    store.export(0, tmp_path / "exported", leaves="jax")
    for step, name in enumerate(["orbax", "exported"], 1):
        assert described(tmp_path / name / "state") == described(tmp_path / "orbax/state")
        store.import_checkpoint(tmp_path / name, step).result()
        check_loads(store, step, model)
        again = tmp_path / f"{name}_again"
        store.export(step, again, leaves="jax")
        assert described(again / "state") == described(tmp_path / "orbax/state")


def test_steps_that_do_not_tell_of_variables_load(store: stepwell.Store) -> None:
    """Versions of Stepwell that kept nothing of variables saved steps like these."""
    state = nnx.state(Model(nnx.Rngs(0)))
    odd = {"value": jnp.ones(2)}
    store.save(0, {"model": nnx.to_pure_dict(state), "odd": odd}).result()
    like = {"model": nnx.state(Model(nnx.Rngs(1))), "odd": nnx.Param({"value": jnp.zeros(2)})}
    check({"model": state, "odd": nnx.Param(odd)}, store.load(0, like=like))


def test_specs_of_variables(store: stepwell.Store, tmp_path: pathlib.Path) -> None:
    state = nnx.state(Model(nnx.Rngs(0)), nnx.Param)
    store.save(0, state).result()
    v1.save(tmp_path / "orbax", state)
    store.import_checkpoint(tmp_path / "orbax", 1).result()
    specs = jax.tree.map(lambda leaf: jax.sharding.PartitionSpec(), state)
    for step in range(2):
        loaded = store.load(step, like=state, mesh={"x": 1}, specs=specs)
        assert values(loaded) == values(state)
        assert isinstance(loaded["embed"]["kernel"][...].sharding, jax.sharding.NamedSharding)


# ---- PRNG keys ----


def test_keys_stay_keys_and_raw_ones_raw(tmp_path: pathlib.Path, run_jax: Any) -> None:
    """In every kind of export, without a target, with as many devices as there are."""
    tree = {"key": jax.random.key(1), "keys": jax.random.split(jax.random.key(2, impl="rbg"), 3),
            "raw": jax.random.PRNGKey(3), "numpy": np.asarray(jax.random.PRNGKey(4))}
    with stepwell.open(tmp_path / "store") as store:
        store.save(0, tree).result()
        for leaves in ("numpy", "jax"):
            report = store.export(0, tmp_path / leaves, leaves=leaves)
            assert not report.widened and not report.as_numpy
        with store.orbax_view(tmp_path / "view") as view:
            view.wait(60)
            for path in ("numpy", "jax", "view/0"):
                loaded = v1.load(tmp_path / path)
                assert isinstance(loaded["raw"], jax.Array if path == "jax" else np.ndarray)
                assert loaded["raw"].dtype == np.uint32 and loaded["numpy"].dtype == np.uint32
                for name in ("key", "keys"):
                    assert values(loaded[name]) == values(tree[name])
    status, out, err = run_jax("""
import sys, jax, numpy as np
from orbax.checkpoint import v1
loaded = v1.load(sys.argv[1])
print(len(loaded["key"].sharding.device_set), jax.random.key_impl(loaded["keys"]),
      jax.random.bits(loaded["key"]))
""", tmp_path / "numpy", XLA_FLAGS="--xla_force_host_platform_device_count=3")
    assert (status, out) == (0, f"3 rbg {jax.random.bits(tree['key'])}\n"), err


def test_the_programs_export_keeps_keys(tmp_path: pathlib.Path) -> None:
    import os
    import subprocess

    tree = {"key": jax.random.key(1), "model": nnx.state(Model(nnx.Rngs(0)))}
    with stepwell.open(tmp_path / "store") as store:
        store.save(0, tree).result()
    program = os.path.join(os.environ["STEPWELL_BUILD_DIR"], "api/cli/stepwell")
    subprocess.run([program, "export", tmp_path / "store", "0", tmp_path / "out"], check=True)
    check(tree, restored_by_v1(tmp_path / "out", other_values(tree)))


# ---- over several devices ----

SHARDED = """
import sys, jax, jax.numpy as jnp, optax, stepwell
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec as P
from orbax.checkpoint import v1
root = sys.argv[1]
mesh = jax.make_mesh((4,), ("x",))
rows = NamedSharding(mesh, P("x"))
state = {"w": nnx.Param(jax.device_put(jnp.arange(32.0).reshape(8, 4), rows)),
         "keys": nnx.RngKey(jax.device_put(jax.random.split(jax.random.key(0), 8), rows)),
         "opt": optax.EmptyState()}
like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=rows), state)
def same(got):
    pairs = zip(jax.tree.leaves(state), jax.tree.leaves(got), strict=True)
    assert jax.tree.structure(state) == jax.tree.structure(got)
    for a, b in pairs:
        assert a.dtype == b.dtype and a.sharding.is_equivalent_to(b.sharding, a.ndim), (a, b)
        assert bool((a == b).all())
v1.save(root + "/orbax", state)
with stepwell.open(root + "/store") as store:
    store.save(0, state).result()
    store.export(0, root + "/jax", leaves="jax")
    store.export(0, root + "/numpy", leaves="numpy")
    same(store.load(0, like=like))
    for number, name in enumerate(["orbax", "jax", "numpy"], 1):
        same(v1.load(f"{root}/{name}", like))
        store.import_checkpoint(f"{root}/{name}", number).result()
        same(store.load(number, like=like))
print("same")
"""


def test_sharded_variables_and_keys(tmp_path: pathlib.Path, run_jax: Any) -> None:
    status, out, err = run_jax(SHARDED, tmp_path,
                                  XLA_FLAGS="--xla_force_host_platform_device_count=4")
    assert (status, out) == (0, "same\n"), err
    assert described(tmp_path / "jax/state") == described(tmp_path / "orbax/state")


ABSTRACT = """
import sys, jax, jax.numpy as jnp, optax, stepwell
from flax import nnx
from jax.sharding import AxisType, PartitionSpec as P
class Layer(nnx.Module):
    def __init__(self, rngs):
        self.kernel = nnx.Param(rngs.params.normal((8, 4)), out_sharding=("x", "y"))
        self.count = nnx.Variable(jnp.zeros((), jnp.int32))
def state():
    layer = nnx.state(Layer(nnx.Rngs(0)))
    return {"layer": layer, "opt": optax.adam(1e-3).init(layer)}
def same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype and bool((x == y).all())
        if x.ndim > 0:  # eval_shape knows no sharding of scalars
            assert x.sharding.is_equivalent_to(y.sharding, x.ndim), (x, y)
with stepwell.open(sys.argv[1]) as store:
    for step, kind in enumerate([AxisType.Explicit, AxisType.Auto]):
        mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(kind,) * 2)
        with jax.set_mesh(mesh):
            saved = state()
            like = nnx.eval_shape(state)
            assert isinstance(like["layer"]["kernel"].get_value().sharding.mesh,
                              jax.sharding.AbstractMesh)
            store.save(step, saved).result()
            same(saved, store.load(step, like=like))
        try:
            store.load(step, "layer", like=like["layer"])
        except stepwell.MismatchError as error:
            print(error)
    keys = jax.sharding.NamedSharding(mesh, P("x"), memory_kind="pinned_host")
    saved = {"keys": jax.device_put(jax.random.split(jax.random.key(0), 8), keys)}
    store.save(2, saved).result()
    same(saved, store.load(2, as_="jax"))
    same(saved, store.load(2, like=saved))
    assert store.load(2, as_="jax")["keys"].sharding.memory_kind == "pinned_host"
"""


def test_abstract_meshes_and_keys_in_host_memory(tmp_path: pathlib.Path, run_jax: Any) -> None:
    status, out, err = run_jax(ABSTRACT, tmp_path / "store",
                                  XLA_FLAGS="--xla_force_host_platform_device_count=8")
    assert status == 0, err
    assert out.count("over x=4, y=2 without devices, and jax.set_mesh has set no such mesh") == 4


# ---- what Orbax cannot hold ----


def test_the_state_of_a_data_loader(tmp_path: pathlib.Path) -> None:
    """Grain's is bytes of JSON, or a dict that JSON can be."""
    loader = b'{"next_index": 7, "epoch": 1}'
    tree = {"params": params(), "loader": loader, "sampler": {"position": 7, "seed": "x"}}
    with stepwell.open(tmp_path / "store") as store:
        store.save(0, tree).result()
        like = {"params": params(), "loader": b"", "sampler": {"position": 0, "seed": ""}}
        loaded, start = store.load_or(like)
        assert (loaded["loader"], loaded["sampler"], start) == (loader, tree["sampler"], 1)
        for how in ("error", "widen"):
            with pytest.raises(stepwell.InvalidArgumentError, match="state/loader.*bytes"):
                store.export(0, tmp_path / "out", on_unsupported=how)
        report = store.export(0, tmp_path / "out", on_unsupported="skip")
        assert [leaf.path for leaf in report.skipped] == ["state/loader"]
    kept = {"params": params(), "sampler": {"position": 0, "seed": ""}}
    check({**kept, "sampler": tree["sampler"]}, restored_by_v1(tmp_path / "out", kept))
