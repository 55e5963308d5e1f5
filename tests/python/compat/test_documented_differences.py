# SPDX-License-Identifier: Apache-2.0
"""Rows of the tables of differences in the guides that no other test has."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import stepwell
from stepwell.compat import flax as checkpoints
from stepwell.compat import orbax as v0
from stepwell.compat import orbax_v1 as v1


def test_keys_and_their_data_are_not_loaded_for_each_other(tmp_path: pathlib.Path) -> None:
    keys = jax.random.split(jax.random.key(1), 8)
    v1.save(tmp_path / "keys", {"k": keys})
    v1.save(tmp_path / "data", {"k": jax.random.key_data(keys)})
    for path, target in (("keys", jax.random.key_data(keys)), ("data", keys)):
        with pytest.raises(stepwell.MismatchError):
            v1.load(tmp_path / path, {"k": target})
    options = v1.options.ArrayOptions.Loading(enable_padding_and_truncation=True)
    with v1.Context(array_options=v1.options.ArrayOptions(loading=options)):
        with pytest.raises(stepwell.MismatchError):
            v1.load(tmp_path / "keys", {"k": keys[:4]})


@pytest.mark.parametrize("array", [np.zeros(2, "datetime64[s]"), np.array(["a", "b"])],
                         ids=["datetime64", "text"])
def test_arrays_of_other_types_are_refused(tmp_path: pathlib.Path, array: np.ndarray) -> None:
    with pytest.raises(stepwell.UnsupportedLeafError):
        v1.save(tmp_path / "v1", {"a": array})
    with pytest.raises(stepwell.UnsupportedLeafError):
        checkpoints.save_checkpoint(tmp_path / "flax", {"a": array}, 1)


def test_arrays_come_back_in_the_machines_byte_order(tmp_path: pathlib.Path) -> None:
    v1.save(tmp_path / "v1", {"a": np.arange(4, dtype=">i4")})
    loaded = v1.load(tmp_path / "v1")["a"]
    assert loaded.dtype == np.int32 and loaded.tolist() == [0, 1, 2, 3]


def test_flax_without_a_target(tmp_path: pathlib.Path) -> None:
    state = nnx.state(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
    checkpoints.save_checkpoint(tmp_path / "nnx", state, 1)
    restored = checkpoints.restore_checkpoint(tmp_path / "nnx", None)
    assert restored["kernel"].shape == (2, 3)
    checkpoints.save_checkpoint(tmp_path / "optax", {"s": optax.EmptyState(), "x": jnp.ones(1)}, 1)
    assert checkpoints.restore_checkpoint(tmp_path / "optax", None)["s"] == {}


@dataclasses.dataclass
class Unregistered:
    """JAX takes it for a leaf."""
    a: int = 1


@pytest.mark.parametrize("leaf", [jnp.sin, len, int, Unregistered()],
                         ids=["jitted", "builtin", "type", "dataclass"])
def test_v0_refuses_leaves_that_its_restore_would_miss(tmp_path: pathlib.Path, leaf: Any) -> None:
    tree = {"w": np.ones(2), "f": leaf}
    with pytest.raises(ValueError, match="Unsupported type"):
        v0.PyTreeCheckpointer().save(tmp_path / "a", tree)
    with v0.StandardCheckpointer() as checkpointer:
        with pytest.raises(ValueError, match="Unsupported type"):
            checkpointer.save(tmp_path / "b", tree)


@pytest.mark.parametrize("leaf", [np.ma.masked_array([1, 2]), np.zeros(2).view(np.recarray), ...],
                         ids=["masked", "recarray", "placeholder"])
def test_v0_refuses_what_is_no_plain_array(tmp_path: pathlib.Path, leaf: Any) -> None:
    with pytest.raises(stepwell.UnsupportedLeafError):
        v0.PyTreeCheckpointer().save(tmp_path / "a", {"x": leaf})


@dataclasses.dataclass
class ArrayLike:
    """A dataclass that NumPy takes for an array."""
    shape: tuple[int, ...] = (2,)
    dtype: np.dtype[Any] = dataclasses.field(default_factory=lambda: np.dtype(np.float32))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.ones(2, np.float32)


def test_v0_saves_array_likes(tmp_path: pathlib.Path) -> None:
    with v0.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "a", {"x": ArrayLike()})
        checkpointer.wait_until_finished()
        assert checkpointer.restore(tmp_path / "a")["x"].tolist() == [1, 1]


@pytest.mark.parametrize("leaf", [jnp.sin, Unregistered(2)], ids=["function", "dataclass"])
def test_v1_takes_functions_from_the_target(tmp_path: pathlib.Path, leaf: Any) -> None:
    tree = {"w": np.ones(2), "f": leaf}
    v1.save(tmp_path / "a", tree)
    assert v1.load(tmp_path / "a", {"w": np.zeros(2), "f": leaf})["f"] == leaf


@pytest.mark.parametrize(("saved", "target"), [([1, 2], {"0": 0, "1": 0}), ({0: 1, 1: 2}, (0, 0))],
                         ids=["list", "dict"])
def test_lists_and_dicts_of_numbers_are_alike(tmp_path: pathlib.Path, saved: Any, target: Any
                                              ) -> None:
    v1.save(tmp_path / "a", {"s": saved})
    assert jax.tree.leaves(v1.load(tmp_path / "a", {"s": target})) == [1, 2]
    v0.PyTreeCheckpointer().save(tmp_path / "b", {"s": saved})
    assert jax.tree.leaves(v0.PyTreeCheckpointer().restore(
        tmp_path / "b", item={"s": target})) == [1, 2]
