# SPDX-License-Identifier: Apache-2.0
"""A facade's mismatch speaks of the function that was called, and of arguments which that has."""

from __future__ import annotations

import inspect
import os
import re
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import jax.numpy as jnp  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
from orbax.checkpoint import Transform  # noqa: E402

import stepwell  # noqa: E402
from stepwell.compat import equinox, flax, orbax, orbax_v1  # noqa: E402
from stepwell.compat import keras as stepwell_keras  # noqa: E402

STORED = {"a": jnp.ones(3), "b": jnp.ones(2)}
RENAMED = {"a": jnp.ones(3), "c": jnp.ones(2)}
WIDER = {"a": jnp.ones(4), "b": jnp.ones(2)}
NARROWER = {"a": jnp.ones(3, jnp.bfloat16), "b": jnp.ones(2)}


def message_of(call: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(stepwell.MismatchError) as info:
        call(*args, **kwargs)
    return str(info.value)


def check_names(words: str, function: Any, *also: str) -> None:
    """Each `name=` in the words is an argument of `function`, or one of `also`."""
    has = {*inspect.signature(function).parameters, *also}
    assert set(re.findall(r"(\w+) ?=", words)) <= has, words
    if "like" not in has:
        assert "`like`" not in words, words


def test_flax(tmp_path):
    flax.save_checkpoint(tmp_path, STORED, 1)
    for target in (RENAMED, WIDER, NARROWER):
        words = message_of(flax.restore_checkpoint, tmp_path, target)
        check_names(words, flax.restore_checkpoint, "original_key")
        assert "fit target:" in words and ("orbax_transforms={}" in words) == (target is RENAMED)
    # Its advice works.
    taken = flax.restore_checkpoint(tmp_path, RENAMED, orbax_transforms={})
    assert taken["c"] is RENAMED["c"]
    moved = flax.restore_checkpoint(
        tmp_path, {"c": np.zeros(2, np.float32)},
        orbax_transforms={"c": Transform(original_key="b")})
    assert moved["c"].tolist() == [1, 1]


def test_orbax_v1(tmp_path):
    ocp = orbax_v1
    ocp.save(tmp_path / "v1", STORED)
    words = message_of(ocp.load, tmp_path / "v1", RENAMED)
    check_names(words, ocp.load, "partial_load")
    assert "fit abstract_state:" in words and "not in abstract_state" in words
    assert ocp.load(tmp_path / "v1", {**STORED, "c": ...})["c"] is ...
    context = ocp.Context()
    context.pytree.loading.partial_load = True
    with context:
        assert sorted(ocp.load(tmp_path / "v1", {"a": STORED["a"]})) == ["a"]
        assert "partial_load" not in message_of(ocp.load, tmp_path / "v1", RENAMED)
    words = message_of(ocp.load, tmp_path / "v1", WIDER)
    check_names(words, ocp.load, "enable_padding_and_truncation")
    context = ocp.Context()
    context.array.loading.enable_padding_and_truncation = True
    with context:
        assert ocp.load(tmp_path / "v1", WIDER)["a"].tolist() == [1, 1, 1, 0]


def test_orbax_v0(tmp_path):
    restore = orbax.args.PyTreeRestore
    with orbax.CheckpointManager(tmp_path) as manager:
        manager.save(1, args=orbax.args.StandardSave(STORED))
        manager.wait_until_finished()
        words = message_of(manager.restore, 1, args=orbax.args.StandardRestore(RENAMED))
        assert "StandardRestore() restores" in words
        assert "new CheckpointManager also takes PyTreeRestore: partial_restore=True" in words
        check_names(words, restore)
        restored = manager.restore(1, args=orbax.args.StandardRestore())
        assert sorted(restored) == ["a", "b"]
    with orbax.CheckpointManager(tmp_path) as manager:
        words = message_of(manager.restore, 1, args=restore(RENAMED))
        check_names(words, restore)
        part = manager.restore(1, args=restore({"a": STORED["a"]}, partial_restore=True))
        assert sorted(part) == ["a"]
        assert manager.restore(1, args=restore(RENAMED, transforms={}))["c"].tolist() == [1, 1]


def test_equinox(tmp_path):
    equinox.tree_serialise_leaves(tmp_path / "e.eqx", STORED)
    for like in (RENAMED, WIDER, NARROWER):
        words = message_of(equinox.tree_deserialise_leaves, tmp_path / "e.eqx", like)
        check_names(words, equinox.tree_deserialise_leaves, "key")  # of jax.tree_util.DictKey


def make_model(*names: str | None) -> Any:
    model = keras.Sequential([keras.Input((2,)), *[keras.layers.Dense(3, name=name)
                                                   for name in names]])
    model.compile(optimizer="adam", loss="mse")
    return model


def test_keras(tmp_path):
    data = np.ones((8, 2), np.float32), np.ones((8, 3), np.float32)
    make_model(None).fit(*data, verbose=0, callbacks=[stepwell_keras.Checkpoint(tmp_path / "a")])
    words = message_of(stepwell_keras.restore, make_model(None), tmp_path / "a")
    check_names(words, stepwell_keras.restore)
    assert "fit the model:" in words and "give the layers the names" in words
    make_model("x").fit(*data, verbose=0, callbacks=[stepwell_keras.Checkpoint(tmp_path / "b")])
    assert stepwell_keras.restore(make_model("x"), tmp_path / "b") == 1
