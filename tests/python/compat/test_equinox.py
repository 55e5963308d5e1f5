# SPDX-License-Identifier: Apache-2.0
"""stepwell.compat.equinox, beside the real Equinox."""

from __future__ import annotations

import io
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from orbax.checkpoint import v1 as ocp

import stepwell
from stepwell.compat import equinox as eqx_io
from storm import in_a_storm


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make_model(seed: int = 0, width: int = 4) -> eqx.nn.MLP:
    return eqx.nn.MLP(2, 2, width, 2, key=jax.random.key(seed))


def make_state(seed: int = 0) -> dict[str, Any]:
    model = make_model(seed)
    opt_state = optax.adam(1e-3).init(eqx.filter(model, eqx.is_array))
    return {"model": model, "opt_state": opt_state, "step": 3 + seed, "rate": 0.5, "done": False,
            "phase": 1 + 2j, "scale": np.float32(1.5 + seed), "host": np.arange(3) + seed,
            "half": jnp.full(3, 1 + seed, jnp.bfloat16), "name": "run", "apply": len}


def is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


# ---- what Equinox's documentation shows ----


def test_a_model_comes_back() -> None:
    eqx_io.tree_serialise_leaves("model.eqx", make_model())
    assert eqx.tree_equal(eqx_io.tree_deserialise_leaves("model.eqx", make_model(1)), make_model())


def test_every_type_of_leaf_and_what_is_not_saved_stays_as_it_is_in_like() -> None:
    eqx_io.tree_serialise_leaves("state", make_state())
    assert os.listdir() == ["state.eqx"]
    loaded = eqx_io.tree_deserialise_leaves("state", {**make_state(1), "name": "other"})
    assert eqx.tree_equal(loaded, {**make_state(), "name": "other"})
    assert [type(leaf) for leaf in jax.tree.leaves(loaded)] == [
        type(leaf) for leaf in jax.tree.leaves(make_state())]


def test_an_abstract_like() -> None:
    eqx_io.tree_serialise_leaves("model.eqx", make_model())
    like = eqx.filter_eval_shape(make_model)
    assert eqx.tree_equal(eqx_io.tree_deserialise_leaves("model.eqx", like), make_model())


class Rates(eqx.Module):
    apply: Any
    rate: Any
    depth: int = eqx.field(static=True)


@pytest.mark.parametrize("tree", [
    Rates(jnp.tanh, jax.nn.gelu, 3), Rates(jnp.tanh, None, 3), Rates(len, 2 - 1j, 3),
    eqx.nn.Lambda(jnp.tanh), eqx.nn.Identity(), eqx.nn.Dropout(0.5), jnp.tanh, None, {}, [], "a",
    2.5, True, {"a": 1, "b": None, "c": [True, (), "d"]}], ids=lambda tree: type(tree).__name__)
def test_a_tree_without_arrays(tree: Any) -> None:
    like = jax.tree.map(lambda leaf: type(leaf)(0) if eqx.is_array_like(leaf) else leaf, tree)
    for library in (eqx, eqx_io):
        name = f"{library.__name__}.eqx"
        library.tree_serialise_leaves(name, tree)
        loaded = library.tree_deserialise_leaves(name, like)
        assert eqx.tree_equal(loaded, tree)
        assert list(map(type, jax.tree.leaves(loaded))) == list(map(type, jax.tree.leaves(tree)))


def test_layers_with_state() -> None:
    def make() -> Any:
        return eqx.nn.make_with_state(eqx.nn.BatchNorm)(4, "batch", mode="batch")

    model, state = make()
    state = jax.tree.map(lambda leaf: leaf + 1 if leaf.dtype != bool else leaf, state)
    eqx_io.tree_serialise_leaves("model.eqx", (model, state))
    assert eqx.tree_equal(eqx_io.tree_deserialise_leaves("model.eqx", make())[1], state)


@pytest.mark.parametrize("real", ["both", "saves", "loads", "neither"])
def test_a_filter_spec_as_the_documentation_has_it(real: str) -> None:
    """A function that leaves arrays out, over Equinox's default functions or over ours."""
    save_rest = (eqx if real in ("both", "saves") else eqx_io).default_serialise_filter_spec
    load_rest = (eqx if real in ("both", "loads") else eqx_io).default_deserialise_filter_spec
    eqx_io.tree_serialise_leaves(
        "state", make_state(), lambda f, x: None if isinstance(x, jax.Array) else save_rest(f, x))
    loaded = eqx_io.tree_deserialise_leaves(
        "state", make_state(1), lambda f, x: x if isinstance(x, jax.Array) else load_rest(f, x))
    assert eqx.tree_equal(loaded, {**make_state(1), **{
        name: make_state()[name] for name in ("step", "rate", "done", "phase", "scale", "host")}})


def test_a_filter_spec_that_writes_and_a_tree_of_them() -> None:
    def save(f: Any, x: Any) -> None:
        np.save(f, jax.random.key_data(x))
        f.write(b"end")

    def load(f: Any, x: Any) -> Any:
        key = jax.random.wrap_key_data(jnp.asarray(np.load(f)))
        assert f.read() == b"end"
        return key

    state = {"key": [jax.random.key(7)], "model": make_model()}
    eqx_io.tree_serialise_leaves("state", state, {
        "key": save, "model": eqx.default_serialise_filter_spec})
    loaded = eqx_io.tree_deserialise_leaves(
        "state", {"key": [jax.random.key(0)], "model": make_model(1)},
        {"key": load, "model": eqx.default_deserialise_filter_spec})
    assert eqx.tree_equal(loaded, state)


def test_a_filter_spec_reads_what_was_saved_without_one() -> None:
    eqx_io.tree_serialise_leaves("state", {"w": jnp.arange(3)})
    loaded = eqx_io.tree_deserialise_leaves("state", {"w": None, "v": 1},
                                            {"w": None, "v": lambda f, x: x})
    assert loaded == {"w": None, "v": 1}
    assert eqx_io.tree_deserialise_leaves(
        "state", {"w": jnp.zeros(3)}, lambda f, x: np.load(f).sum())["w"] == 3


def test_is_leaf() -> None:
    def is_pair(node: Any) -> bool:
        return isinstance(node, tuple)

    def save(f: Any, x: Any) -> None:
        np.save(f, np.stack(x)) if is_pair(x) else eqx.default_serialise_filter_spec(f, x)

    def load(f: Any, x: Any) -> Any:
        return tuple(np.load(f)) if is_pair(x) else eqx.default_deserialise_filter_spec(f, x)

    state = {"pair": (np.ones(2), np.zeros(2)), "one": 1}
    eqx_io.tree_serialise_leaves("state", state, save, is_leaf=is_pair)
    loaded = eqx_io.tree_deserialise_leaves(
        "state", {"pair": (np.zeros(2), np.zeros(2)), "one": 0}, load, is_leaf=is_pair)
    assert loaded["one"] == 1
    assert np.array_equal(loaded["pair"], state["pair"])


# ---- what goes beyond ----


def test_a_subtree_without_the_rest() -> None:
    eqx_io.tree_serialise_leaves("state", make_state())
    model = eqx_io.tree_deserialise_leaves("state", make_model(1), path="model")
    assert eqx.tree_equal(model, make_model())
    layer = eqx_io.tree_deserialise_leaves("state", make_model(1).layers[1], path="model/layers/1")
    assert eqx.tree_equal(layer, make_model().layers[1])
    bias = eqx_io.tree_deserialise_leaves("state", jnp.zeros(4), path=("model", "layers", 0,
                                                                       "bias"))
    assert jnp.array_equal(bias, make_model().layers[0].bias)
    step = eqx_io.tree_deserialise_leaves("state", 0, lambda f, x: int(np.load(f)), path="step")
    assert step == 3
    loaded = eqx_io.tree_deserialise_leaves("state", {**dict.fromkeys(make_state(), ...),
                                                      "model": make_model(1)})
    assert eqx.tree_equal(loaded.pop("model"), make_model())
    assert set(loaded.values()) == {...}


def test_typed_keys() -> None:
    eqx_io.tree_serialise_leaves("key", jax.random.key(7))
    assert eqx_io.tree_deserialise_leaves("key", jax.random.key(0)) == jax.random.key(7)


def test_paths_of_other_kinds(folder: Path) -> None:
    for path in ("text", folder / "path.eqx", os.fsencode(folder / "other.bin").decode()):
        eqx_io.tree_serialise_leaves(path, {"w": 1})
        assert eqx_io.tree_deserialise_leaves(path, {"w": 0}) == {"w": 1}
    assert sorted(os.listdir()) == ["other.bin", "path.eqx", "text.eqx"]


def test_files_of_equinox_load_and_are_replaced() -> None:
    eqx.tree_serialise_leaves("state.eqx", make_state())
    assert eqx.tree_equal(eqx_io.tree_deserialise_leaves("state", make_state(1)), make_state())
    with pytest.raises(stepwell.InvalidArgumentError, match="by position"):
        eqx_io.tree_deserialise_leaves("state", make_model(), path="model")
    eqx_io.tree_serialise_leaves("state", make_state(2))
    assert os.path.isdir("state.eqx")
    eqx_io.tree_serialise_leaves("state", make_state(3))
    assert eqx.tree_equal(eqx_io.tree_deserialise_leaves("state", make_state(1)), make_state(3))
    assert os.listdir() == ["state.eqx"]


def test_a_directory_that_is_no_checkpoint_stays(folder: Path) -> None:
    (folder / "empty.eqx").mkdir()
    (folder / "work.eqx").mkdir()
    (folder / "work.eqx/notes").write_text("mine")
    (folder / "link.eqx").symlink_to("work.eqx")
    with stepwell.open("store.eqx") as store:
        store.save(0, {"w": 1}).result()
    with stepwell.open("run") as store, store.orbax_view("view.eqx", name_prefix="step.") as view:
        store.save(7, {"w": np.arange(3)}).result()
        view.wait()

        def contents() -> list[Path]:
            return sorted(path for each in folder.glob("*.eqx*") for path in each.rglob("*"))

        before = contents()
        for path in ("empty", "work", "link", "store", "view", "view.eqx/step.7"):
            for library in (eqx, eqx_io):
                with pytest.raises(IsADirectoryError):
                    library.tree_serialise_leaves(path, {"w": np.ones(2)})
        assert contents() == before


@pytest.mark.parametrize("ours", ["saves", "loads", "both"])
def test_objects_with_write_and_read_take_the_format_of_equinox(ours: str) -> None:
    file = io.BytesIO()
    (eqx_io if ours != "loads" else eqx).tree_serialise_leaves(file, make_state())
    file.seek(0)
    loaded = (eqx_io if ours != "saves" else eqx).tree_deserialise_leaves(file, make_state(1))
    assert eqx.tree_equal(loaded, make_state())


@pytest.mark.filterwarnings("ignore:Sharding info not provided")  # of Orbax, without a target
def test_it_survives_being_moved_and_copied_and_orbax_loads_it(folder: Path) -> None:
    eqx_io.tree_serialise_leaves("state", {"w": jnp.arange(4.0), "n": 3})
    os.rename("state.eqx", "moved.eqx")
    shutil.copytree("moved.eqx", "copied.eqx")
    shutil.rmtree("moved.eqx")
    loaded = eqx_io.tree_deserialise_leaves("copied", {"w": jnp.zeros(4), "n": 0})
    assert eqx.tree_equal(loaded, {"w": jnp.arange(4.0), "n": 3})
    stored = ocp.load_checkpointables(folder / "copied.eqx")
    assert jnp.array_equal(stored["state"]["w"], jnp.arange(4.0))


# ---- errors ----


def test_shapes_and_dtypes_that_differ_are_all_told() -> None:
    eqx_io.tree_serialise_leaves("state", make_state())
    like = {**make_state(), "model": make_model(width=5), "host": np.zeros(3, np.int8)}
    with pytest.raises(RuntimeError) as caught:
        eqx_io.tree_deserialise_leaves("state", like)
    error = caught.value
    assert isinstance(error, stepwell.MismatchError)
    assert {each.path for each in error.shape} == {
        f"model/layers/{layer}/{name}" for layer in range(3) for name in ("weight", "bias")
    } - {"model/layers/2/bias"}
    assert [each.path for each in error.dtype] == ["host"]


def test_leaves_that_only_one_side_has() -> None:
    eqx_io.tree_serialise_leaves("state", {"w": 1, "v": 2})
    with pytest.raises(eqx_io.TreeMismatchError, match="missing in the store") as caught:
        eqx_io.tree_deserialise_leaves("state", {"w": 1, "u": 2})
    assert [each.path for each in caught.value.missing] == ["u"]
    assert [each.path for each in caught.value.unexpected] == ["v"]
    assert "`...` in `like`" in str(caught.value)


@pytest.mark.parametrize("like", [jnp.zeros(4), jnp.zeros(3, jnp.int8), np.zeros((3, 1))])
def test_a_filter_spec_over_the_default_checks_as_well(like: Any) -> None:
    eqx_io.tree_serialise_leaves("state", [jnp.zeros(3)])
    with pytest.raises(eqx_io.TreeMismatchError, match="0: stored float32"):
        eqx_io.tree_deserialise_leaves(
            "state", [like], lambda f, x: eqx_io.default_deserialise_filter_spec(f, x))


def test_what_is_not_there() -> None:
    with pytest.raises(FileNotFoundError, match="nothing"):
        eqx_io.tree_deserialise_leaves("nothing", 0)
    os.mkdir("empty.eqx")
    with pytest.raises(FileNotFoundError, match="empty"):
        eqx_io.tree_deserialise_leaves("empty", 0)
    eqx_io.tree_serialise_leaves("state", {"w": 1})
    with pytest.raises(KeyError, match="nothing at"):
        eqx_io.tree_deserialise_leaves("state", 0, path="v")


def test_a_damaged_byte_is_an_error(folder: Path) -> None:
    noise = np.random.default_rng(0).bytes(40_000)  # nothing compresses it
    eqx_io.tree_serialise_leaves("state", {"w": np.frombuffer(noise, np.uint8)})
    (segment,) = (file for file in (folder / "state.eqx").rglob(".stepwell/segments/*")
                  if noise[20_000:20_100] in file.read_bytes())
    data = bytearray(segment.read_bytes())
    data[data.index(noise[20_000:20_100])] ^= 1
    segment.write_bytes(data)
    with pytest.raises(stepwell.CorruptionError):
        eqx_io.tree_deserialise_leaves("state", {"w": np.zeros(40_000, np.uint8)})


def test_a_failed_save_leaves_the_old_checkpoint() -> None:
    eqx_io.tree_serialise_leaves("state", {"w": 1})

    def fail(f: Any, x: Any) -> None:
        raise OSError("no")

    with pytest.raises(RuntimeError, match="OSError: no"):
        eqx_io.tree_serialise_leaves("state", {"w": 2}, fail)
    assert eqx_io.tree_deserialise_leaves("state", {"w": 0}) == {"w": 1}
    assert os.listdir() == ["state.eqx"]


# ---- beside Equinox ----


def random_leaf(rng: random.Random) -> Any:
    shape = tuple(rng.randrange(3) for _ in range(rng.randrange(3)))
    return rng.choice([
        lambda: jnp.full(shape, rng.random()), lambda: np.full(shape, rng.random()),
        lambda: jnp.full(shape, rng.randrange(9), jnp.bfloat16), lambda: rng.randrange(99),
        lambda: rng.random(), lambda: np.int16(rng.randrange(99)), lambda: "text", lambda: None,
        lambda: jnp.full(shape, rng.randrange(9)), lambda: True, lambda: len])()


def random_tree(rng: random.Random, depth: int = 3) -> Any:
    if depth == 0 or rng.random() < 0.2:
        return random_leaf(rng)
    parts = [random_tree(rng, depth - 1) for _ in range(rng.randrange(1, 4))]
    return rng.choice([list, tuple, lambda all: dict(zip("abc", all, strict=False)),
                       lambda all: eqx.nn.Lambda(all)])(parts)


def changed(rng: random.Random, tree: Any) -> Iterator[Any]:
    """The tree with other values; and with one leaf of another shape, dtype or type."""
    leaves, structure = jax.tree.flatten(tree)
    yield jax.tree.map(lambda leaf: leaf * 0 if eqx.is_array_like(leaf) and leaf is not True
                       else leaf, tree)
    for change in (lambda leaf: jnp.zeros((*np.shape(leaf), 2)),
                   lambda leaf: np.zeros(np.shape(leaf), np.int8)):
        arrays = [number for number, leaf in enumerate(leaves) if eqx.is_array(leaf)]
        if arrays:
            number = rng.choice(arrays)
            yield structure.unflatten([*leaves[:number], change(leaves[number]),
                                       *leaves[number + 1:]])


@pytest.mark.parametrize("seed", range(in_a_storm(8)))
def test_random_trees_give_what_equinox_gives(seed: int) -> None:
    rng = random.Random(seed)
    tree = [random_tree(rng), jnp.ones(seed)]
    eqx.tree_serialise_leaves("real.eqx", tree)
    eqx_io.tree_serialise_leaves("ours.eqx", tree)
    for like in changed(rng, tree):
        try:
            real = eqx.tree_deserialise_leaves("real.eqx", like)
        except RuntimeError:
            with pytest.raises(RuntimeError):
                eqx_io.tree_deserialise_leaves("ours.eqx", like)
            continue
        ours = eqx_io.tree_deserialise_leaves("ours.eqx", like)
        assert eqx.tree_equal(ours, real, typematch=True)


def test_what_fails_at_a_leaf_is_the_runtime_error_of_equinox() -> None:
    tree = {"a": jnp.zeros(2), "b": (jnp.ones(1), 3)}
    eqx_io.tree_serialise_leaves("saved", tree)
    where = r"leaf with path \(DictKey\(key='b'\), SequenceKey\(idx=0\)\)"

    def fails(f: Any, x: Any) -> Any:
        if getattr(x, "shape", None) == (1,):
            raise KeyError("of a user's function")
        return eqx_io.default_deserialise_filter_spec(f, x)

    with pytest.raises(RuntimeError, match=f"Error at {where}: KeyError"):
        eqx_io.tree_deserialise_leaves("saved", tree, fails)
    with pytest.raises(RuntimeError, match=f"Error at {where}: ZeroDivisionError"):
        eqx_io.tree_serialise_leaves(
            "other", tree, lambda f, x: f.write(b"%d" % (1 // (getattr(x, "shape", 0) != (1,)))))
    more = {**tree, "b": (jnp.ones(1), 3, jnp.ones(1))}
    missing = r"Error at leaf with path \(DictKey\(key='b'\), SequenceKey\(idx=2\)\):"
    with pytest.raises(RuntimeError, match=missing):
        eqx_io.tree_deserialise_leaves("saved", more)
    # Also with a function of one's own.
    with pytest.raises(eqx_io.TreeMismatchError, match=missing):
        eqx_io.tree_deserialise_leaves(
            "saved", more, lambda f, x: eqx_io.default_deserialise_filter_spec(f, x))
    changed = {**tree, "b": (jnp.ones(1, jnp.int32), 3)}
    with pytest.raises(RuntimeError, match=r"Deserialised leaf at path \(DictKey\(key='b'\), Seq.*"
                                           " has changed dtype"):
        eqx_io.tree_deserialise_leaves("saved", changed)
    with pytest.raises(RuntimeError, match=r"Deserialised leaf at path \(SequenceKey\(idx=0\),\)"):
        eqx_io.tree_deserialise_leaves("saved", changed["b"], path="b")
