# SPDX-License-Identifier: Apache-2.0
"""Loading into a structure that is not the stored one: missing, unexpected, renamed, skipped."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import stepwell
from stepwell.compat import orbax_v1
from equality import same
from test_damage import flip


class Parts(NamedTuple):
    params: Any
    opt: Any


@pytest.fixture
def layers(store):
    """A store of one step: layers of two arrays each, and an optimizer."""
    params = {f"layer_{i}": {"w": np.full((2, 3), i, np.float32), "b": np.full(3, i, np.float32)}
              for i in range(3)}
    store.save(7, {"params": params, "opt": (np.int32(4), {"m": np.ones(5)})}).result()
    return store


def zeros(count: int):
    return {f"layer_{i}": {"w": np.zeros((2, 3), np.float32), "b": np.zeros(3, np.float32)}
            for i in range(count)}


def test_each_kind_of_mismatch_is_listed_by_path(layers):
    like = {"params": {**zeros(2), "layer_2": {"w": np.zeros((2, 4), np.float32),
                                               "b2": np.zeros(3, np.float32)}},
            "opt": (np.float32(0), {"m": np.ones(5)}), "extra": 1}
    with pytest.raises(stepwell.MismatchError) as info:
        layers.load(like=like)
    error = info.value
    assert [m.path for m in error.missing] == ["params/layer_2/b2", "extra"]
    assert error.missing[0].nearest == "params/layer_2/b"
    assert [m.path for m in error.unexpected] == ["params/layer_2/b"]
    assert [m.path for m in error.shape] == ["params/layer_2/w"]
    assert [m.path for m in error.dtype] == ["opt/0"]
    hints = str(error).splitlines()[-1]
    for hint in ('missing="target"', 'unexpected="ignore"', "rename="):
        assert hint in hints


def test_more_layers_than_were_saved_take_theirs_from_like(layers):
    like = {"params": zeros(4), "opt": (np.int32(0), {"m": np.zeros(5)})}
    with pytest.raises(stepwell.MismatchError, match="layer_3"):
        layers.load(like=like)
    loaded = layers.load(like=like, missing="target")
    assert loaded["params"]["layer_2"]["w"][0, 0] == 2 and loaded["opt"][0] == 4
    assert loaded["params"]["layer_3"]["w"] is like["params"]["layer_3"]["w"]


def test_what_like_lacks_is_ignored_and_not_read(layers):
    loaded = layers.load(like={"params": zeros(1)}, unexpected="ignore")
    assert same(loaded, {"params": {"layer_0": {"w": np.zeros((2, 3), np.float32),
                                                "b": np.zeros(3, np.float32)}}})
    assert layers.stats()["last_load"]["bytes_out"] == 36
    with pytest.raises(stepwell.MismatchError) as info:
        layers.load(like={"params": {"layer_0": {"w": np.zeros(2)}}}, unexpected="ignore")
    assert {m.kind for m in info.value.mismatches} == {"shape"}


def test_missing_leaves_need_a_value(layers):
    like = {"params": zeros(3), "opt": (np.int32(0), {"m": np.zeros(5)}),
            "new": jax.ShapeDtypeStruct((2,), jnp.float32)}
    with pytest.raises(stepwell.MismatchError, match="new: missing in the store, and `like` has no "
                                                     "value"):
        layers.load(like=like, missing="target")
    loaded = layers.load(like={**like, "new": jnp.arange(2)}, missing="target")
    assert loaded["new"].tolist() == [0, 1]
    flat = {"params/layer_0/w": np.zeros((2, 3), np.float32), "params/new": like["new"]}
    with pytest.raises(stepwell.MismatchError, match="params/new: .* `like` has no value"):
        layers.load(path="params/*/w", like=flat, missing="target", unexpected="ignore")
    loaded = layers.load(path="params/*/w", like={**flat, "params/new": jnp.arange(2)},
                         missing="target", unexpected="ignore")
    assert sorted(loaded) == sorted(flat) and loaded["params/new"].tolist() == [0, 1]


def test_an_ellipsis_skips_a_leaf_or_a_subtree(layers):
    loaded = layers.load(like={"params": {"layer_0": {"w": np.zeros((2, 3), np.float32), "b": ...},
                                          "layer_1": ..., "layer_2": ...}, "opt": ...})
    assert loaded["opt"] is ... and loaded["params"]["layer_1"] is ...
    assert loaded["params"]["layer_0"]["b"] is ...
    assert loaded["params"]["layer_0"]["w"].shape == (2, 3)
    assert layers.stats()["last_load"]["bytes_out"] == 24
    assert layers.load(like=...) is ...


def test_renames_of_nodes_leaves_and_globs(layers):
    block = {"kernel": np.zeros((2, 3), np.float32), "bias": np.zeros(3, np.float32)}
    like = {"model": {f"block_{i}": {"inner": block} for i in range(3)},
            "opt": (np.int32(0), {"m": np.zeros(5)})}
    loaded = layers.load(like=like, rename={"params/layer_*/w": "model/block_*/inner/kernel",
                                            "params/**/b": "model/**/inner/bias",
                                            "opt": "opt"},
                         missing="target", unexpected="ignore")
    assert loaded["model"]["block_2"]["inner"]["kernel"][0, 0] == 2
    assert loaded["model"]["block_2"]["inner"]["bias"] is block["bias"]  # ** is layer_2
    moved = layers.load(like={"encoder": zeros(3), "opt": (np.int32(0), {"m": np.zeros(5)})},
                        rename={"params": "encoder"})
    assert moved["encoder"]["layer_1"]["b"].tolist() == [1, 1, 1]
    swapped = layers.load(like={"params": zeros(3), "opt": ...},
                          rename={"params/layer_0": "params/layer_1",
                                  "params/layer_1": "params/layer_0"})
    assert swapped["params"]["layer_0"]["w"][0, 0] == 1
    assert swapped["params"]["layer_1"]["w"][0, 0] == 0
    # Relative to what is loaded.
    part = layers.load(7, "params", like={"a": zeros(1)["layer_0"]}, unexpected="ignore",
                       rename={"layer_2": "a"})
    assert part["a"]["w"][0, 0] == 2


def test_wildcards_of_renames_stand_for_characters(store):
    store.save(1, {"é1": {"w": np.arange(3)}, "é2": {"w": np.arange(4)}}).result()
    like = {"ü": {"1": np.zeros(3, np.int64), "2": np.zeros(4, np.int64)}}
    loaded = store.load(like=like, rename={"é?/w": "ü/?"})
    assert same(loaded, {"ü": {"1": np.arange(3), "2": np.arange(4)}})


@pytest.mark.parametrize(("rename", "error", "why"), [
    ({"params/nothing": "x"}, stepwell.PathNotFoundError, 'nothing at "params/nothing"; there are: '
     "params/layer_0"),
    ({"params/layer0": "x"}, stepwell.PathNotFoundError, "rename: .* nearest: params/layer_0"),
    ({"parms/*/w": "x/*"}, stepwell.PathNotFoundError, 'rename: .* nothing at "parms/.*params'),
    ({"params": "x", "params/layer_0": "y"}, stepwell.InvalidArgumentError,
     "nothing that is loaded is left at 'params/layer_0'; of several rules the first"),
    ({"params/layer_0/w": "params/layer_0/b"}, stepwell.InvalidArgumentError,
     "is the place of another leaf"),
    ({"params/layer_*": "params/x"}, stepwell.InvalidArgumentError, "the same wildcards"),
    ({"params/**/w": "params/*/w"}, stepwell.InvalidArgumentError, "the same wildcards"),
    ({"params/layer_0": "params/layer_1/w/x"}, stepwell.InvalidArgumentError,
     "is the place of another leaf"),
    ({"params": 3}, stepwell.InvalidArgumentError, "rename is a dict"),
    (["params"], stepwell.InvalidArgumentError, "rename must be a dict"),
])
def test_renames_that_cannot_be(layers, rename, error, why):
    with pytest.raises(error, match=why):
        layers.load(like={"params": zeros(3)}, rename=rename)


@pytest.mark.parametrize("container", [dict, lambda **parts: nnx.State(parts), Parts])
def test_a_target_of_more_or_less_than_is_loaded_is_named(layers, container):
    params, opt = zeros(3), (np.int32(0), {"m": np.zeros(5)})
    whole = container(params=params, opt=opt)
    part = "like.params" if container is Parts else 'like["params"]'
    with pytest.raises(stepwell.MismatchError) as info:
        layers.load(7, "params", like=whole)
    assert str(info.value).endswith(f"\n`like` has more than this path loads: give {part}")
    with pytest.raises(stepwell.MismatchError) as info:
        layers.load(7, ("params", "layer_1"), like=whole)
    assert str(info.value).endswith(f'give {part}["layer_1"]')
    with pytest.raises(stepwell.MismatchError) as info:
        layers.load(7, like=params)
    assert str(info.value).endswith("\n`like` is what the path 'params' loads: give that path, too")
    # If it fits nowhere else, the error names the ways to mend it.
    with pytest.raises(stepwell.MismatchError, match="missing="):
        layers.load(7, "params", like={"params": zeros(4), "opt": opt})
    with pytest.raises(stepwell.MismatchError, match="a flat dict by path"):
        layers.load(7, "params/*/w", like=whole if container is dict else {"params": params})


def test_an_optimizer_that_was_changed(store):
    params = {"w": jnp.ones((3, 2)), "b": jnp.zeros(2)}
    before, after = optax.sgd(0.1, momentum=0.9), optax.adam(0.1)
    store.save(0, {"params": params, "opt": before.init(params)}).result()
    init = {"params": jax.tree.map(jnp.zeros_like, params), "opt": after.init(params)}
    with pytest.raises(stepwell.MismatchError):
        store.load_or(init)
    state, start = store.load_or(init, missing="target", unexpected="ignore")
    assert start == 1 and same(state["params"], params) and same(state["opt"], init["opt"])


def test_items(store):
    store.save(0, items={"params": {"w": np.arange(3)}, "opt": [np.int64(1)], "data": {"n": 5}}
               ).result()
    assert same(store.load(items=["data", "params"]), {"data": {"n": 5},
                                                       "params": {"w": np.arange(3)}})
    like = {"params": {"w": np.zeros(3, np.int64)}, "data": {"n": 0}}
    assert same(store.load(0, items=["params", "data"], like=like),
                {"params": {"w": np.arange(3)}, "data": {"n": 5}})
    with pytest.raises(stepwell.PathNotFoundError, match="no item 'dataset'; it has 'data', 'opt'"):
        store.load(items=["params", "dataset"])
    with pytest.raises(stepwell.InvalidArgumentError, match="nothing for the item 'opt'"):
        store.load(items=["params", "opt"], like=like)
    with pytest.raises(stepwell.InvalidArgumentError, match="a dict by item name"):
        store.load(items=["params"], like=[1])
    with pytest.raises(stepwell.InvalidArgumentError, match="a path or items"):
        store.load(0, "params", items=["params"])
    # One that may be absent.
    absent = {**like, "dataset": {"position": 0}}
    state, start = store.load_or(absent, items=list(absent), missing="target")
    assert start == 1 and state["dataset"] == {"position": 0} and state["data"] == {"n": 5}
    renamed = store.load(items=["params"], like={"params": {"kernel": np.zeros(3, np.int64)}},
                         rename={"params/w": "params/kernel"})
    assert renamed["params"]["kernel"].tolist() == [0, 1, 2]


def test_items_of_a_step_with_only_the_state(store):
    store.save(0, {"w": np.arange(3)}).result()
    assert same(store.load(items=["state"]), {"state": {"w": np.arange(3)}})
    assert store.load(items=["state"], like={"state": {"w": np.zeros(3, int)}}
                      )["state"]["w"].tolist() == [0, 1, 2]


def test_arguments_that_need_like(store):
    store.save(0, 1).result()
    for how in ({"missing": "target"}, {"unexpected": "ignore"}, {"rename": {"a": "b"}}):
        with pytest.raises(stepwell.InvalidArgumentError, match="give like=, too"):
            store.load(**how)
    for how in ({"missing": "no"}, {"unexpected": None}, {"as_": "torch"}):
        with pytest.raises(stepwell.InvalidArgumentError, match=f"{next(iter(how))} must be"):
            store.load(like=1, **how)


# ---- where a run begins ------------------------------------------------------------------------


def test_a_run_begins_from_a_source(tmp_path):
    init = {"w": np.zeros(3), "head": np.zeros(2)}
    with stepwell.open(tmp_path / "pretrained") as source:
        source.save(900, {"w": np.arange(3.0), "old_head": np.ones(4)}).result()
        source.export(900, tmp_path / "orbax")
        source.export(900, tmp_path / "manager", layout="v0")
        changed = {"missing": "target", "unexpected": "ignore"}
        for number, begin in enumerate((source, tmp_path / "pretrained", tmp_path / "orbax",
                                        tmp_path / "manager")):
            with stepwell.open(tmp_path / f"run{number}") as store:
                state, start = store.load_or(init, source=begin, **changed)
                assert start == 0 and state["w"].tolist() == [0, 1, 2], begin
                assert state["head"] is init["head"]
                store.save(0, {**state, "w": state["w"] + 1}).result()
                state, start = store.load_or(init, source=begin, **changed)
                assert start == 1 and state["w"].tolist() == [1, 2, 3]
                # The run's own steps fit; a change of theirs is not excused by the source's.
                with pytest.raises(stepwell.MismatchError):
                    store.load_or({"v": 1, **init}, source=begin, **changed)
    with stepwell.open(tmp_path / "run9") as store:
        with pytest.raises(stepwell.CheckpointNotFoundError):
            store.load_or(init, source=tmp_path / "nowhere")
        with pytest.raises(stepwell.MismatchError):
            store.load_or(init, source=tmp_path / "orbax")


def test_a_run_begins_from_a_checkpoint_of_a_facade(tmp_path):
    """With what Orbax cannot hold: the store within is loaded, not the Orbax checkpoint."""
    state = {"w": np.arange(3.0), "phase": 1 + 2j, "name": b"bytes"}
    orbax_v1.save(tmp_path / "single", state)
    with stepwell.open(tmp_path / "run") as store:
        init = {"w": np.zeros(3), "phase": 0j, "name": b""}
        loaded, start = store.load_or(init, source=tmp_path / "single", missing="target")
        assert start == 0 and same(loaded, state)


# ---- damage ------------------------------------------------------------------------------------


def test_a_damaged_newest_step_gives_way_to_the_one_before(path, caplog):
    rng = np.random.default_rng(0)
    states = [{"w": rng.integers(0, 2**62, 20_000)} for _ in range(3)]
    with stepwell.open(path, codec="raw") as store:
        for step, state in enumerate(states):
            store.save(step, state).result()
    flip(path, states[2]["w"][9_000:9_100].tobytes())
    with stepwell.open(path) as store:
        with pytest.raises(stepwell.CorruptionError):
            store.load()
        with pytest.raises(stepwell.CorruptionError):
            store.load_or(states[0])
        with caplog.at_level("WARNING", "stepwell"):
            assert same(store.load(on_corrupt="previous"), states[1])
            state, start = store.load_or(states[0], on_corrupt="previous")
        assert same(state, states[1]) and start == 2
        assert "step 2 is damaged" in caplog.text and "loaded step 1" in caplog.text
        with pytest.raises(stepwell.InvalidArgumentError, match="for the newest step"):
            store.load(2, on_corrupt="previous")
    for state in states[:2]:
        flip(path, state["w"][9_000:9_100].tobytes())
    with stepwell.open(path) as store:
        with pytest.raises(stepwell.CorruptionError):
            store.load(on_corrupt="previous")
