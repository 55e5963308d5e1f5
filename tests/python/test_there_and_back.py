# SPDX-License-Identifier: Apache-2.0
"""A step that is exported or pushed, and imported or pulled again, is the tree that was saved."""

import collections
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from equality import same
from flax import nnx
from orbax.checkpoint import v1 as ocp_v1

import stepwell

Point = collections.namedtuple("Point", "x y")


class Net(nnx.Module):
    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.layers = nnx.List([nnx.Linear(3, 4, rngs=rngs), nnx.BatchNorm(4, rngs=rngs)])


def wild() -> dict[str, Any]:
    return {
        "nnx": nnx.state(Net()), "opt": optax.adam(1e-3).init({"w": jnp.ones((3, 4))}),
        "values": (1, 2.5, True, None, "s" * 2000, "", 1 << 62, -0.0), "empty": ((), [], {}),
        "point": Point(np.float32(3), jnp.ones((), jnp.bfloat16)), "key": jax.random.key(3),
        "old_key": jax.random.PRNGKey(1), "host": np.arange(5), "weak": jnp.sin(2.0),
        "none": np.zeros((0, 3)), "many": jax.random.normal(jax.random.key(0), (300, 400)),
        "order": collections.OrderedDict(b=1, a=np.bool_(True))}


def tree_of(store: stepwell.Store, step: int) -> str:
    """Describes what a step is made of, in words, without its number."""
    return store.tree(step).table().partition("\n")[2]


DOORS: dict[str, Callable[[stepwell.Store, pathlib.Path], str]] = {
    "v1": lambda store, to: store.export(1, to / "v1").path,
    "v1, zarr 2, NumPy": lambda store, to: store.export(1, to / "z", zarr=2, leaves="numpy").path,
    "v0": lambda store, to: store.export(1, to / "run", layout="v0").path,
    "v0, default": lambda store, to: store.export(
        1, to / "unnamed", layout="v0", unnamed_default=True, step_prefix="ckpt").path,
    "copy": lambda store, to: store.export(1, to / "copy", mode="copy").path}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("item", ["state", "weights"])
def test_exports_come_back_as_they_were_saved(tmp_path: pathlib.Path, door: str, item: str) -> None:
    state = wild()
    with stepwell.open(tmp_path / "store") as store:
        store.save(1, items={item: state}, metadata={"q": 1}, metrics={"loss": 2.0}).result()
        path = DOORS[door](store, tmp_path)
        store.import_checkpoint(path, 2).result()
        assert tree_of(store, 2) == tree_of(store, 1)
        assert store[2].metadata == {"q": 1} and store[2].metrics == {"loss": 2.0}
        loaded = store.load(2, like={item: state}, items=[item])[item]
        assert jax.tree.structure(loaded) == jax.tree.structure(state)
        assert same(loaded, state)
        plain, again = store.load(1), store.load(2)
        assert jax.tree.structure(plain) == jax.tree.structure(again) and same(plain, again)


@pytest.mark.parametrize("place", ["directory", "memory"])
def test_pushes_come_back_as_they_were_saved(tmp_path: pathlib.Path, place: str) -> None:
    state = wild()
    to = f"memory://there-and-back-{tmp_path.name}" if place == "memory" else str(tmp_path / "to")
    with stepwell.open(tmp_path / "store") as store:
        store.save(1, (state, 7), items={"more": [1, {"a": (2,)}], "data": stepwell.Json([1])}
                   ).result()
        store.push(1, to)
        store.pull(to, 2)
        assert tree_of(store, 2) == tree_of(store, 1)
        assert same(store.load(2, "state", like=(state, 7)), (state, 7))


def test_a_part_of_a_step_and_skipped_leaves(tmp_path: pathlib.Path) -> None:
    with stepwell.open(tmp_path / "store") as store:
        tree = {"t": (1, b"x"), "only": {"bytes": [b"y", 1j, 1 << 90, "\udcff"]},
                "long": b"z" * 3000}
        nibbles = np.arange(3).astype(ml_dtypes.uint4)
        store.save(1, {"a": tree, "b": Point(1, (2,)), "c": (1, nibbles)}).result()
        store.import_checkpoint(store.export(1, tmp_path / "b", path="b").path, 2).result()
        assert store.load(2, like=Point(0, (0,))) == Point(1, (2,))
        store.import_checkpoint(store.export(1, tmp_path / "a", path="a", on_unsupported="skip"
                                             ).path, 3).result()
        assert store.load(3) == tree  # values that Orbax cannot hold, too
        store.import_checkpoint(store.export(1, tmp_path / "c", path="c", on_unsupported="skip"
                                             ).path, 5).result()
        assert store.load(5) == {0: 1} and store[5]["0"] == 1  # arrays not
        store.import_checkpoint(store.export(1, tmp_path / "leaf", path="b/y/0").path, 4).result()
        assert store.load(4) == 2


def test_records_that_are_not_the_exports_are_not_taken(tmp_path: pathlib.Path) -> None:
    with stepwell.open(tmp_path / "store") as store:
        store.save(1, {"t": (jnp.ones(3), 2)}).result()
        store.save(2, {"t": [jnp.ones(3), 2], "u": 1}).result()
        first, second = (pathlib.Path(store.export(step, tmp_path / f"e{step}").path)
                         for step in (1, 2))
        records = first / "state/stepwell-records"
        (second / "state/stepwell-records").write_bytes(records.read_bytes())
        with pytest.raises(stepwell.CorruptionError, match="stepwell-records"):
            store.import_checkpoint(second, 3).result()
        # Without the digests it is Orbax's checkpoint, as whoever changed it left it.
        (second / "stepwell-digests").unlink()
        store.import_checkpoint(second, 4).result()
        assert same(store.load(4), {"t": [np.ones(3, np.float32), 2], "u": 1})
        data = bytearray(records.read_bytes())
        for at in range(0, len(data), 7):
            flipped = bytearray(data)
            flipped[at] ^= 1
            records.write_bytes(flipped)
            with pytest.raises(stepwell.CorruptionError):
                store.import_checkpoint(first, 5).result()


def test_orbax_reads_an_export_with_records(tmp_path: pathlib.Path) -> None:
    state = wild()
    with stepwell.open(tmp_path / "store") as store:
        store.save(1, {"opt": state["opt"], "t": (1, 2)}).result()
        store.export(1, tmp_path / "v1")
        store.export(1, tmp_path / "v0", layout="v0")
    loaded = ocp_v1.load(tmp_path / "v1", {"opt": state["opt"], "t": (0, 0)},
                         checkpointable_name="state")
    assert jax.tree.structure(loaded["opt"]) == jax.tree.structure(state["opt"])
    assert loaded["t"] == (1, 2)
    with ocp.CheckpointManager(tmp_path / "v0") as manager:
        restored = manager.restore(1, args=ocp.args.Composite(state=ocp.args.StandardRestore()))
        assert restored["state"]["t"] == [1, 2]


def test_an_unnamed_item_of_orbax_is_the_state(tmp_path: pathlib.Path) -> None:
    tree = {"a": np.arange(3), "b": 2}
    # Versions of Orbax before 0.12 give this name to what `save` saves.
    ocp_v1.save_checkpointables(tmp_path / "plain", {"pytree": tree})
    ocp_v1.save_checkpointables(tmp_path / "two", {"pytree": tree, "state": {"c": 1}})
    with stepwell.open(tmp_path / "store") as store:
        store.import_checkpoint(tmp_path / "plain", 1).result()
        assert same(store.load(1), tree) and store[1].items == ["state"]
        store.import_checkpoint(tmp_path / "two", 2).result()
        assert sorted(store[2].items) == ["pytree", "state"]
        store.save(3, items={"pytree": tree}).result()  # a name that was chosen stays
        store.import_checkpoint(store.export(3, tmp_path / "own").path, 4).result()
        assert store[4].items == ["pytree"]
