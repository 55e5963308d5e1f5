# SPDX-License-Identifier: Apache-2.0
"""stepwell.compat.orbax_v1: checkpoints by path."""

from __future__ import annotations

import contextvars
import json
import os
import pathlib
import shutil
import threading
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
from etils import epath
from flax import nnx
from orbax.checkpoint import v1 as real

import stepwell
from equality import alike
from stepwell.compat import orbax_v1 as ocp

pytestmark = [pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
              pytest.mark.filterwarnings("ignore:Sharding info not provided:UserWarning")]


def make_state(scale: float = 1.0) -> dict[str, Any]:
    params = {"w": jnp.arange(8.0).reshape(4, 2) * scale, "b": jnp.zeros(2)}
    return {"params": params, "opt": optax.adam(1e-3).init(params), "step": 3,
            "table": np.arange(5), "name": "run", "rate": 0.5}


# ---- Checkpointing 101 --------------------------------------------------------------------------


def test_the_guides_save_load_and_metadata(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "ckpt"
    state = make_state()
    ocp.save(path, state)
    loaded = ocp.load(path)
    assert isinstance(loaded["params"]["w"], jax.Array)
    assert isinstance(loaded["table"], np.ndarray)
    assert loaded["opt"][0]["count"] == 0 and loaded["opt"][1] is None
    assert (loaded["step"], loaded["name"], loaded["rate"]) == (3, "run", 0.5)

    abstract = jax.tree.map(ocp.arrays.to_shape_dtype_struct, {**state, "name": 0}) | {"name": ""}
    abstract["table"] = np.zeros(5, np.int64)
    assert alike(ocp.load(path, abstract), state)

    metadata = ocp.metadata(path)
    assert metadata.metadata["params"]["w"].shape == (4, 2)
    assert metadata.metadata["params"]["w"].sharding == state["params"]["w"].sharding
    assert metadata.metadata["step"] == 0 and metadata.metadata["name"] == "string"
    assert metadata.init_timestamp_nsecs <= metadata.commit_timestamp_nsecs
    assert alike(ocp.load(path, metadata), loaded)
    assert ocp.is_orbax_checkpoint(path) and not ocp.is_orbax_checkpoint(tmp_path)


def test_the_guides_checkpointables(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "ckpt"
    state = make_state()
    ocp.save_checkpointables(path, {"state": state, "dataset": {"position": 7}},
                             custom_metadata={"run": "a"})
    assert ocp.load_checkpointables(path)["dataset"] == {"position": 7}
    assert ocp.load_checkpointables(path, {"dataset": None}) == {"dataset": {"position": 7}}
    assert sorted(ocp.checkpointables_metadata(path).metadata) == ["dataset", "state"]
    assert ocp.checkpointables_metadata(path).custom_metadata == {"run": "a"}
    assert alike(ocp.load(path, state), state)
    assert ocp.load(path, checkpointable_name="dataset") == {"position": 7}
    assert ocp.delete(path, checkpointable_name="dataset")
    assert list(ocp.load_checkpointables(path)) == ["state"]
    assert alike(ocp.load(path, state), state) and alike(real.load(path, state), state)
    with pytest.raises(ValueError, match="final checkpointable"):
        ocp.delete(path, checkpointable_name="state")
    assert ocp.delete(path) and not path.exists() and os.listdir(tmp_path) == []


def test_async_saves_take_the_state_at_once(tmp_path: pathlib.Path) -> None:
    add = jax.jit(lambda x: x + 1, donate_argnums=0)
    array, host = jnp.arange(1000.0), np.arange(10)
    done = threading.Event()
    response = ocp.save_async(tmp_path / "a", {"x": array, "host": host})
    add(array).block_until_ready()
    host[:] = -1
    response.on_complete(lambda _: done.set())
    response.result()
    assert done.wait(10)
    loaded = ocp.load(tmp_path / "a")
    np.testing.assert_array_equal(loaded["x"], np.arange(1000.0, dtype=np.float32))
    np.testing.assert_array_equal(loaded["host"], np.arange(10))


def test_large_states_are_saved_through_the_store(tmp_path: pathlib.Path) -> None:
    host = np.arange(20 << 20, dtype=np.uint32)  # 80 MiB: more than is copied at once
    response = ocp.save_async(tmp_path / "a", {"host": host})
    host[:] = 0
    response.result()
    np.testing.assert_array_equal(ocp.load(tmp_path / "a")["host"],
                                  np.arange(20 << 20, dtype=np.uint32))


def test_placeholders_and_partial_targets(tmp_path: pathlib.Path) -> None:
    state = make_state()
    ocp.save(tmp_path / "a", state)
    target = jax.tree.map(lambda _: ocp.PLACEHOLDER, state)
    target["params"] = state["params"]
    loaded = ocp.load(tmp_path / "a", target)
    assert loaded["step"] is ... and alike(loaded["params"], state["params"])
    context = ocp.Context()
    context.pytree.loading.partial_load = True
    with context:
        assert alike(ocp.load(tmp_path / "a", {"params": state["params"]}),
                    {"params": state["params"]})
        with pytest.raises(ValueError, match="parms: missing"):
            ocp.load(tmp_path / "a", {"parms": state["params"]["b"]})
    with pytest.raises(ValueError, match="not in abstract_state"):
        ocp.load(tmp_path / "a", {"params": state["params"]})


def test_nnx_models_optimizers_and_templates(tmp_path: pathlib.Path) -> None:
    def make() -> Any:
        return nnx.Linear(4, 2, rngs=nnx.Rngs(0))

    model = make()
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    grads = nnx.grad(lambda m: m(jnp.ones((1, 4))).sum())(model)
    optimizer.update(model, grads)
    ocp.save_checkpointables(tmp_path / "a", {
        "params": nnx.state(model), "optimizer": nnx.state(optimizer),
        "dataset": {"epoch": 1, "order": [3, 1, 2]}})
    template = nnx.eval_shape(make)
    graph, abstract = nnx.split(template)
    optimizer_2 = nnx.Optimizer(make(), optax.adam(1e-2), wrt=nnx.Param)
    loaded = ocp.load_checkpointables(tmp_path / "a", {
        "params": abstract, "optimizer": nnx.state(optimizer_2), "dataset": None})
    restored = nnx.merge(graph, loaded["params"])
    np.testing.assert_array_equal(restored(jnp.ones((1, 4))), model(jnp.ones((1, 4))))
    assert alike(loaded["optimizer"], nnx.state(optimizer))
    assert loaded["dataset"] == {"epoch": 1, "order": [3, 1, 2]}
    raw = ocp.load_checkpointables(tmp_path / "a")["params"]
    np.testing.assert_array_equal(raw["kernel"]["value"], model.kernel[...])


# ---- paths, overwriting, damage -----------------------------------------------------------------


def test_paths_of_all_kinds(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("relative", str(tmp_path / "text"), tmp_path / "pathlib",
                 epath.Path(tmp_path / "epath")):
        ocp.save(path, {"a": 1})
        assert ocp.load(path) == {"a": 1}
        assert isinstance(ocp.metadata(path).path, epath.Path)
    context = ocp.Context()
    context.file.path_class = pathlib.Path
    with context:
        assert ocp.metadata("text").path == tmp_path / "text"


def test_a_checkpoint_can_be_moved_copied_and_removed(tmp_path: pathlib.Path) -> None:
    state = make_state()
    ocp.save(tmp_path / "a", state)
    os.rename(tmp_path / "a", tmp_path / "b")
    shutil.copytree(tmp_path / "b", tmp_path / "c")
    shutil.rmtree(tmp_path / "b")
    assert alike(ocp.load(tmp_path / "c", state), state)
    assert alike(real.load(tmp_path / "c", state), state)


def test_flipped_bits_are_found(tmp_path: pathlib.Path) -> None:
    values = np.random.default_rng(0).integers(0, 2**32, 100_000, dtype=np.uint32)
    ocp.save(tmp_path / "a", {"x": values})
    (segment,) = [file for file in (tmp_path / "a" / "state" / ".stepwell").rglob("*.seg")
                  if file.stat().st_size > 300_000]
    data = bytearray(segment.read_bytes())
    middle = data.index(values[50_000:50_004].tobytes())
    data[middle] ^= 1
    segment.chmod(0o600)
    segment.write_bytes(data)
    with pytest.raises(stepwell.CorruptionError):
        ocp.load(tmp_path / "a")


def test_keys_with_dots_and_slashes(tmp_path: pathlib.Path) -> None:
    state = {"a.b": np.ones(2), "a": {"b": np.full(2, 2.0)}, "c/d": np.full(2, 3.0)}
    ocp.save(tmp_path / "a", state)
    assert alike(ocp.load(tmp_path / "a"), state)


def test_leaves_that_orbax_refuses(tmp_path: pathlib.Path) -> None:
    state = {"empty": np.zeros((0, 3)), "scalar": np.float32(1.5), "bytes": b"x",
             "complex": 1 + 2j, "large": 2**70, "int4": np.ones(4, ml_dtypes.int4)}
    ocp.save(tmp_path / "a", state)
    assert alike(ocp.load(tmp_path / "a"), state)


def test_errors_say_what_is_there(tmp_path: pathlib.Path) -> None:
    ocp.save(tmp_path / "root" / "1", {"x": 1})
    with pytest.raises(FileNotFoundError, match="does not exist"):
        ocp.load(tmp_path / "nothing")
    with pytest.raises(ocp.errors.InvalidLayoutError, match="root of several checkpoints.*root/1"):
        ocp.load(tmp_path / "root")
    with pytest.raises(ocp.errors.InvalidLayoutError, match="item of the checkpoint"):
        ocp.load(tmp_path / "root" / "1" / "state")
    with pytest.raises(ocp.errors.InvalidLayoutError, match="no tree 'other'; it has \\['state'"):
        ocp.load(tmp_path / "root" / "1", checkpointable_name="other")
    with pytest.raises(ValueError, match="x: is of type builtins.object"):
        ocp.save(tmp_path / "b", {"x": object()})
    assert os.listdir(tmp_path) == ["root"]


# ---- with the real Orbax ------------------------------------------------------------------------


def test_real_orbax_loads_what_is_saved(tmp_path: pathlib.Path) -> None:
    state = make_state()
    ocp.save_checkpointables(tmp_path / "a", {"state": state, "other": {"x": np.ones(2)}},
                             custom_metadata={"run": 1})
    assert alike(real.load(tmp_path / "a", state), state)
    assert sorted(real.load_checkpointables(tmp_path / "a")) == ["other", "state"]
    assert real.metadata(tmp_path / "a").custom_metadata == {"run": 1}
    assert alike(real.load(tmp_path / "a"), ocp.load(tmp_path / "a"))


def test_checkpoints_of_real_orbax_are_loaded(tmp_path: pathlib.Path) -> None:
    import orbax.checkpoint as v0

    state = make_state()
    real.save_checkpointables(tmp_path / "v1", {"state": state, "other": {"x": np.ones(2)}})
    with v0.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "flat0", {"params": state["params"]})
    assert alike(ocp.load(tmp_path / "v1", state), state)
    assert alike(ocp.load(tmp_path / "v1"), real.load(tmp_path / "v1"))
    assert sorted(ocp.load_checkpointables(tmp_path / "v1")) == ["other", "state"]
    assert alike(ocp.load(tmp_path / "flat0"), {"params": state["params"]})
    assert ocp.metadata(tmp_path / "flat0").metadata["params"]["w"].shape == (4, 2)
    with pytest.raises(ocp.errors.InvalidLayoutError, match="no named checkpointables"):
        ocp.load_checkpointables(tmp_path / "flat0")
    assert ocp.delete(tmp_path / "v1", checkpointable_name="other")
    assert list(real.load_checkpointables(tmp_path / "v1")) == ["state"]


# ---- partial saves ------------------------------------------------------------------------------


def test_what_was_saved_stays_acknowledged_when_its_store_cannot_be_closed(
        tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = stepwell.Store.close

    def close(self: stepwell.Store) -> None:
        closed(self)
        raise stepwell.StorageError("write STEPWELL: Input/output error")

    root = tmp_path / "root"
    with ocp.training.Checkpointer(root) as checkpointer:
        checkpointer.save_checkpointables(1, {"a": {"x": 1}, "b": {"x": 2}})
    with monkeypatch.context() as patch:
        patch.setattr(stepwell.Store, "close", close)
        ocp.partial.save(tmp_path / "parts", {"a": 1})
        ocp.save(root / "1", {"x": 3}, overwrite=True)
        ocp.delete(root / "1")
    ocp.partial.save(tmp_path / "parts", {"b": 2})
    ocp.partial.finalize(tmp_path / "parts")
    assert ocp.load(tmp_path / "parts") == {"a": 1, "b": 2}
    with ocp.training.Checkpointer(root) as checkpointer:
        assert list(checkpointer.checkpoints) == []


def test_a_checkpoint_saved_in_parts(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a"
    ocp.partial.save(path, {"a": jnp.ones(2), "d": {"x": 1}}, custom_metadata={"one": 1})
    ocp.partial.save_async(path, {"b": np.ones(2), "d": {"y": "s"}},
                           custom_metadata={"two": 2}).result()
    assert not path.exists()
    with pytest.raises(Exception, match="REPLACEMENT") as raised:
        ocp.partial.save(path, {"a": jnp.zeros(2)})
    assert type(raised.value).__name__ == "PartialSaveReplacementError"
    ocp.partial.finalize(path)
    assert alike(ocp.load(path), {"a": jnp.ones(2), "b": np.ones(2), "d": {"x": 1, "y": "s"}})
    assert ocp.metadata(path).custom_metadata == {"one": 1, "two": 2}
    with pytest.raises(FileExistsError):
        ocp.partial.save(path, {"c": 1})
    with pytest.raises(FileNotFoundError):
        ocp.partial.finalize(tmp_path / "b")
    assert os.listdir(tmp_path) == ["a"]


# ---- contexts -----------------------------------------------------------------------------------


def test_the_rules_of_contexts(tmp_path: pathlib.Path) -> None:
    parent = ocp.Context()
    parent.array.saving.use_zarr3 = False
    child = ocp.Context(parent)
    child.array.saving.use_compression = False
    assert not child.array.saving.use_zarr3 and parent.array.saving.use_compression
    assert child.array_options is child.array
    with child as active:
        assert active is child
        with pytest.raises(RuntimeError, match="active context"):
            child.array.saving.use_zarr3 = True
        with pytest.raises(RuntimeError, match="active Context"):
            child.checkpoint_layout = "auto"
        parent.array.saving.use_zarr3 = True  # not active
        ocp.save(tmp_path / "a", {"x": np.ones(3)})
        ocp.save(tmp_path / "b", {"x": np.ones(3)})
        seen: list[Any] = []
        thread = threading.Thread(target=lambda: seen.append(_is_default()))
        thread.start()
        thread.join()
        assert seen == [True]
        assert not contextvars.copy_context().run(_is_default)
    child.array.saving.use_zarr3 = True
    described = json.loads((tmp_path / "a" / "state" / "_METADATA").read_text())
    assert not described["use_zarr3"]
    assert real.load(tmp_path / "a")["x"].tolist() == [1, 1, 1]
    with pytest.raises(AttributeError):
        child.array = ocp.options.ArrayOptions()  # type: ignore[misc]


def _is_default() -> bool:
    from stepwell.compat._orbax_v1.base import get_context

    return get_context().array.saving.use_zarr3


def test_every_option_acts_or_is_listed() -> None:
    acting = {
        "asynchronous.timeout_secs", "asynchronous.post_finalization_callback",
        "pytree.loading.partial_load", "array.saving.storage_options", "array.saving.use_zarr3",
        "array.saving.use_compression", "array.saving.scoped_storage_options_creator",
        "array.loading.enable_padding_and_truncation", "file.path_permission_mode",
        "file.path_class", "checkpointables.registry", "deletion.gcs_deletion_options",
        "memory.write_concurrent_bytes", "safetensors.max_over_read_ratio",
        "safetensors.read_chunk_bytes"}
    names = set()
    for group in ("asynchronous", "pytree", "array", "multiprocessing", "file", "checkpointables",
                  "pathways", "deletion", "memory", "safetensors", "atomicity"):
        if not hasattr(real.Context(), group):  # an older Orbax
            continue
        ours, theirs = getattr(ocp.Context(), group), getattr(real.Context(), group)
        for name, value in vars(theirs).items():
            assert hasattr(ours, name), (group, name)
            if name in ("saving", "loading"):
                assert vars(value).keys() == vars(getattr(ours, name)).keys()
                names |= {f"{group}.{name}.{each}" for each in vars(value)}
            else:
                names.add(f"{group}.{name}")
    if hasattr(real, "delete"):  # an older Orbax has others
        assert names == acting | set(ocp.ACCEPTED_WITHOUT_EFFECT)
    assert not acting & set(ocp.ACCEPTED_WITHOUT_EFFECT)


def test_storage_options(tmp_path: pathlib.Path) -> None:
    context = ocp.Context()
    options = ocp.options.ArrayOptions.Saving.StorageOptions
    context.array.saving.storage_options.dtype = jnp.bfloat16
    context.array.saving.storage_options.chunk_byte_size = 4096
    context.array.saving.scoped_storage_options_creator = lambda key, value: (
        options(dtype=np.float16) if "host" in jax.tree_util.keystr(key) else None)
    with context:
        ocp.save(tmp_path / "a", {"x": jnp.ones((64, 64)), "in": [{"host": np.ones(3)}], "n": 1})
    loaded = ocp.load(tmp_path / "a")
    assert loaded["x"].dtype == jnp.bfloat16 and loaded["in"][0]["host"].dtype == np.float16
    assert loaded["n"] == 1
    chunk = ocp.metadata(tmp_path / "a").metadata["x"].storage_metadata.chunk_shape
    assert np.prod(chunk) * 2 <= 4096
    cast = ocp.load(tmp_path / "a", {"x": jax.ShapeDtypeStruct((64, 64), jnp.float32),
                                     "in": [{"host": np.zeros(3)}], "n": 0.0})
    assert cast["x"].dtype == jnp.float32 and cast["in"][0]["host"].dtype == np.float64
    assert isinstance(cast["n"], float)


def test_padding_and_truncation(tmp_path: pathlib.Path) -> None:
    ocp.save(tmp_path / "a", {"x": jnp.ones((2, 3)), "y": np.arange(4)})
    target = {"x": jax.ShapeDtypeStruct((3, 2), jnp.float32), "y": np.zeros(6, np.int64)}
    with pytest.raises(ValueError, match="stored float32\\[2, 3\\], wanted float32\\[3, 2\\]"):
        ocp.load(tmp_path / "a", target)
    context = ocp.Context()
    context.array.loading.enable_padding_and_truncation = True
    with context:
        loaded = ocp.load(tmp_path / "a", target)
    assert isinstance(loaded["x"], jax.Array)
    np.testing.assert_array_equal(loaded["x"], [[1, 1], [1, 1], [0, 0]])
    np.testing.assert_array_equal(loaded["y"], [0, 1, 2, 3, 0, 0])


def test_callbacks_timeouts_and_permissions(tmp_path: pathlib.Path) -> None:
    called = []
    context = ocp.Context()
    context.asynchronous.post_finalization_callback = lambda: called.append(
        (tmp_path / "a").exists())
    context.file.path_permission_mode = 0o640
    context.memory.write_concurrent_bytes = 32 << 20
    with context:
        ocp.save(tmp_path / "a", {"x": np.ones(3)})
    assert called == [True]
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "a" / "state" / "_METADATA").stat().st_mode & 0o777 == 0o640
    slow = threading.Event()
    context.asynchronous.post_finalization_callback = lambda: slow.wait(30)
    context.asynchronous.timeout_secs = 0
    with context:
        response = ocp.save_async(tmp_path / "b", {"x": np.ones(3)})
    with pytest.raises(TimeoutError):
        response.result()
    slow.set()
    response.result(timeout=30)


def test_safetensors(tmp_path: pathlib.Path) -> None:
    from safetensors.numpy import save_file

    save_file({"a": np.arange(4, dtype=np.float32)}, tmp_path / "x.safetensors", {"made": "here"})
    layouts = ocp.options.CheckpointLayout
    context = ocp.Context(checkpoint_layout=layouts.SAFETENSORS)
    with context:
        assert alike(ocp.load(tmp_path), {"a": np.arange(4, dtype=np.float32)})
        loaded = ocp.load_async(tmp_path / "x.safetensors", {
            "a": jax.ShapeDtypeStruct((4,), jnp.bfloat16)}).result()
        assert isinstance(loaded["a"], jax.Array)
        assert loaded["a"].dtype == jnp.bfloat16 or not hasattr(real, "delete")  # an older Orbax
        assert ocp.metadata(tmp_path).metadata["a"].shape == (4,)
        assert ocp.metadata(tmp_path).custom_metadata == {"made": "here"}
        with pytest.raises(KeyError, match="'b' not found"):
            ocp.load(tmp_path, {"b": jax.ShapeDtypeStruct((4,), jnp.bfloat16)})
        with pytest.raises(NotImplementedError):
            ocp.save(tmp_path / "y", {"a": np.ones(1)})
    ocp.save(tmp_path / "orbax", {"a": 1})
    if not hasattr(layouts, "AUTO"):  # an older Orbax
        return
    context.checkpoint_layout = "auto"
    with context:
        assert ocp.load(tmp_path / "orbax") == {"a": 1}
        assert list(ocp.load(tmp_path / "x.safetensors")) == ["a"]


def test_older_names_and_small_modules(tmp_path: pathlib.Path) -> None:
    with pytest.warns(DeprecationWarning, match="save_pytree is deprecated: use save"):
        ocp.save_pytree(tmp_path / "a", {"x": 1})
    with pytest.warns(DeprecationWarning):
        assert ocp.load_pytree(tmp_path / "a") == {"x": 1}
    assert ocp.tree.merge({"a": 1}, {"b": {"c": 2}}, {"b": {"d": 3}}) == {
        "a": 1, "b": {"c": 2, "d": 3}}
    assert ocp.tree.merge({"a": [1, 2]}, {"a": [1, 3]}, overwrite=True) == {"a": [1, 3]}
    with pytest.raises(ValueError, match="common key paths"):
        ocp.tree.merge({"a": 1}, {"a": 2})
    assert (ocp.multihost.process_count(), ocp.multihost.process_index()) == (1, 0)
    assert ocp.multihost.is_primary_host(0) and not ocp.multihost.is_pathways_backend()


def test_every_public_name_is_there() -> None:
    def public(module: Any) -> set[str]:
        return {name for name in dir(module) if not name.startswith("_")}

    for name in ("", "arrays", "errors", "handlers", "multihost", "options", "partial", "path",
                 "path.step", "tree", "training.errors", "training.save_decision_policies",
                 "training.preservation_policies"):
        ours, theirs = ocp, real
        for part in name.split(".") if name else ():
            ours, theirs = getattr(ours, part), getattr(theirs, part)
        lacking = public(theirs) - public(ours) - {
            "annotations", "typing", "Any", "Dict", "Protocol", "Sequence", "types", "NestedDict",
            "PyTree", "orbax", "preservation_policy_lib", "save_decision_policy"}
        assert not lacking, (name, lacking)
    lacking = public(real.training.Checkpointer) - public(ocp.training.Checkpointer)
    assert not lacking


@pytest.mark.parametrize("state", [{"x": 1 + 2j}, {"x": b"bytes"}])
def test_a_tree_of_nothing_that_orbax_can_hold(tmp_path: pathlib.Path, state: Any) -> None:
    ocp.save(tmp_path / "one", state)
    ocp.save_checkpointables(tmp_path / "two", {"other": state, "state": {"n": 1}})
    for found in (ocp.load(tmp_path / "one"), ocp.load(tmp_path / "one", state),
                  ocp.load_checkpointables(tmp_path / "one")["state"],
                  ocp.load_checkpointables(tmp_path / "two")["other"]):
        np.testing.assert_equal(found, state)
    assert real.load_checkpointables(tmp_path / "two") == {"state": {"n": 1}}
    assert ocp.delete(tmp_path / "two", checkpointable_name="other")
    assert ocp.load_checkpointables(tmp_path / "two") == {"state": {"n": 1}}
    assert ocp.delete(tmp_path / "one")


@pytest.mark.parametrize("deleted", [False, True])
def test_a_store_imports_a_checkpoint(tmp_path: pathlib.Path, deleted: bool) -> None:
    """The export's digests hold, or are gone."""
    items: dict[str, Any] = {"model": {"w": np.arange(3.0)}, "data": {"position": 3}}
    ocp.save_checkpointables(tmp_path / "one", items)
    if deleted:
        ocp.delete(tmp_path / "one", checkpointable_name="data")
        del items["data"]
    with stepwell.open(tmp_path / "store") as store:
        store.import_checkpoint(tmp_path / "one", step=1).result()
        np.testing.assert_equal(store.load(1, items=sorted(items)), items)
