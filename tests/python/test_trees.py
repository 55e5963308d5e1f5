# SPDX-License-Identifier: Apache-2.0
"""Every kind of pytree goes in and comes back."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.core import FrozenDict
from flax.training.train_state import TrainState

import stepwell


class Model(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Linear(2, 3, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.blocks = nnx.List([nnx.Linear(3, 3, rngs=rngs), nnx.Linear(3, 3, rngs=rngs)])


class Pair(NamedTuple):
    left: Any
    right: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Registered:
    weights: Any
    count: Any


@flax.struct.dataclass
class Struct:
    weights: Any
    name: str = flax.struct.field(pytree_node=False, default="x")


def test_nnx_state(round_trip, store):
    loaded = round_trip(nnx.state(Model(nnx.Rngs(0))))
    assert sorted(loaded) == ["blocks", "dropout", "embed"]
    assert list(loaded["blocks"]) == [0, 1]  # int keys come back as ints
    assert loaded["embed"]["kernel"].shape == (2, 3)  # a Variable's `value` is not a component
    assert store[0]["blocks/1/kernel"].shape == (3, 3)


def test_nnx_abstract_like(round_trip):
    like = nnx.state(nnx.eval_shape(lambda: Model(nnx.Rngs(0))))
    round_trip(nnx.state(Model(nnx.Rngs(1))), like)


def test_nnx_optimizer_and_module(round_trip, store):
    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)
    round_trip(nnx.state(optimizer))
    assert "opt_state/0/mu/embed/kernel" in store[0]
    store.save(50, model).result()
    assert not [p for p in store.tree(50) if "_pytree" in p]
    restored = store.load(50, like=Model(nnx.Rngs(5)))
    np.testing.assert_array_equal(restored.embed.kernel[...], model.embed.kernel[...])


def test_train_state(round_trip):
    state = TrainState.create(apply_fn=len, params={"w": jnp.ones(2)}, tx=optax.adam(1e-3))
    loaded = round_trip(state)
    assert loaded["step"] == 0
    assert loaded["opt_state"][0]["mu"]["w"].shape == (2,)


def test_optax_states(round_trip):
    params = {"w": jnp.ones((3, 2)), "b": jnp.zeros(2)}
    chain = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3), optax.ema(0.9))
    round_trip(chain.init(params))
    round_trip(jax.eval_shape(chain.init, params) and chain.init(params),
               jax.eval_shape(chain.init, params))


def test_equinox_module(round_trip, store):
    def make() -> eqx.nn.MLP:
        return eqx.nn.MLP(2, 2, 4, 1, key=jax.random.key(0))

    model = make()
    round_trip(model)
    assert sorted(store.tree(0)) == ["layers/0/bias", "layers/0/weight",
                                     "layers/1/bias", "layers/1/weight"]
    abstract = store.load(0, like=eqx.filter_eval_shape(make))
    x = jnp.ones(2)
    np.testing.assert_array_equal(abstract(x), model(x))  # the activation is like's
    arrays = eqx.filter(model, eqx.is_array)
    assert jax.tree.structure(store.load(0, like=arrays)) == jax.tree.structure(arrays)


def test_equinox_static_leaves_of_any_kind(store):
    class Odd(eqx.Module):
        weight: jax.Array
        marker: Any

    marker = object()
    store.save(0, Odd(jnp.ones(2), marker)).result()
    assert list(store.tree(0)) == ["weight"]
    assert store.load(0, like=Odd(jnp.zeros(2), marker)).marker is marker


def test_flax_containers(round_trip):
    assert round_trip(FrozenDict({"a": {"b": jnp.float32(1)}})) == {"a": {"b": 1}}
    assert list(round_trip(Struct(jnp.ones(2)))) == ["weights"]


class Slots:
    """Its keys have no names that are the same the next time."""

    def __init__(self, *children: Any) -> None:
        self.children = children


jax.tree_util.register_pytree_with_keys(
    Slots, lambda slots: ([(object(), child) for child in slots.children], None),
    lambda _, children: Slots(*children))


def test_keys_without_names_are_indices(store):
    store.save(0, {"slots": Slots(jnp.ones(2), {"a": 3})}).result()
    assert "slots/0" in store.tree(0) and "slots/1/a" in store.tree(0)
    loaded = store.load(0, like={"slots": Slots(jnp.zeros(2), {"a": 0})})["slots"]
    assert loaded.children[0].tolist() == [1, 1] and loaded.children[1] == {"a": 3}


def test_dataclass_and_namedtuple(round_trip):
    assert round_trip(Registered(np.ones(2), 3))["count"] == 3
    assert round_trip(Pair(1, Pair(2, {}))) == {"left": 1, "right": {"left": 2, "right": {}}}


def test_builtin_containers(round_trip):
    tree = {"list": [1, (2, [3])], "tuple": (), "empty": {}, "none": None, "deep": [[[]]],
            7: {"x": 1},
            "ordered": collections.OrderedDict(b=1, a=2),
            "default": collections.defaultdict(list, {"z": [1]})}
    loaded = round_trip(tree)
    assert loaded == tree
    assert type(loaded["list"][1]) is tuple


@pytest.mark.parametrize("tree", [np.arange(3), 5, None, "text", {}, [], ()])
def test_bare_leaves_and_empty_trees(store, tree):
    store.save(0, tree, items={"other": 1}).result()
    loaded = store.load(0, "state")
    assert type(loaded) is type(tree)
    np.testing.assert_array_equal(loaded, tree)


NASTY = ["", "/", "a/b", "a\\b", ".", "..", "a.b", "%2F", "*", "?", "[", "**",
         "é☃𐍈", "\x00", "\udcff",
         "x" * 10_000, "0", " ", "state", "a\nb"]


def test_nasty_keys(round_trip, store):
    tree = {"in": {key: i for i, key in enumerate(NASTY)}, "a.b": 1, "a": {"b": 2}}
    assert round_trip(tree) == tree
    for i, key in enumerate(NASTY):
        assert store.load(0, ("in", key)) == i
    for text in store.tree(0):  # each text path leads back to its leaf
        assert store.load(0, text) == store[0][text]
    assert store.load(0, "in/**") == {p: v for p, v in store.load(0, "**").items()
                                      if p.startswith("in/")}


def test_key_types_stay_apart(round_trip):
    tree = {"d": {0: 1, "0": 2, -5: 3, 2**63 - 1: 4, -(2**63): 5}}
    assert round_trip(tree) == tree


def test_unsupported_leaves_are_all_named(store):
    tree = {"a": {"b": object()}, "c": [np.array(["text"]), np.array([object()])], "ok": 1,
            "d": np.array(["2020-01-01"], "datetime64[D]"), "e": {1j: 2}, "f": {range(1): 1},
            "g": {1, 2}}
    with pytest.raises(stepwell.UnsupportedLeafError) as info:
        store.save(0, tree)
    assert sorted(info.value.paths) == ["a/b", "c/0", "c/1", "d", "e", "f", "g"]
    for part in ("a/b: is of type builtins.object", "c/0: has dtype <U4", "c/1: has dtype object",
                 "d: has dtype datetime64", "e: has a key of type complex (1j)",
                 "f: has a key of type range (range(0, 1))", "g: is of type builtins.set"):
        assert part in str(info.value)
    assert isinstance(info.value, TypeError)
    assert store.steps() == []


def test_tree_that_contains_itself(store):
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(stepwell.UnsupportedLeafError, match="levels deep"):
        store.save(0, loop)
    twice: dict[str, Any] = {}  # 2^250 paths
    twice["a"] = twice["b"] = twice
    with pytest.raises(stepwell.UnsupportedLeafError, match=r"a/a/.* levels deep"):
        store.save(0, twice)
    store.save(0, {"a": 1}).result()
    with pytest.raises(stepwell.UnsupportedLeafError, match=r"load into b/a/.* levels deep"):
        store.load(0, like={"a": 1, "b": twice})


def test_items(store):
    store.save(3, items={"params": {"w": np.ones(3)}, "dataset": {"epoch": 3}}).result()
    assert store[3].items == ["dataset", "params"]
    assert store.load(3, "dataset") == {"epoch": 3}
    assert store.load(3, "params/w").tolist() == [1, 1, 1]
    assert sorted(store.load(3)) == ["dataset", "params"]
    like = {"params": {"w": np.zeros(3)}, "dataset": {"epoch": 0}}
    assert store.load(3, like=like)["dataset"] == {
        "epoch": 3}
    store.save(4, {"w": 1}, items={"extra": [1]}).result()
    assert store.load(4) == {"state": {"w": 1}, "extra": [1]}
    with pytest.raises(stepwell.PathNotFoundError):
        store.load(4, "w")  # with more than one item, the item comes first
    for bad in ({"": 1}, {3: 1}):
        with pytest.raises(stepwell.InvalidArgumentError, match="item's name"):
            store.save(5, items=bad)
    with pytest.raises(stepwell.InvalidArgumentError, match="needs a state or items"):
        store.save(5)
    with pytest.raises(stepwell.InvalidArgumentError, match="has a 'state'"):
        store.save(5, {}, items={"state": {}})


def test_abstract_and_traced_leaves(store):
    with pytest.raises(stepwell.UnsupportedLeafError, match="a/x: is a ShapeDtypeStruct"):
        store.save(0, {"a": {"x": jax.ShapeDtypeStruct((2,), jnp.float32)}})
    with pytest.raises(stepwell.UnsupportedLeafError, match="x: is a traced value"):
        jax.jit(lambda x: store.save(0, {"x": x}) and x)(1.0)


def test_plain_containers_are_built_as_they_were_stored(store):
    tree = {"z": [1, (), {}, [np.float32(2)], {3: "three", "3": b"three"}], "a": (None, [[]]),
            "s": np.arange(3)}
    store.save(0, tree, items={"one": np.ones(2), "none": None, "empty": {}}).result()
    loaded = store.load(0)
    assert sorted(loaded) == ["empty", "none", "one", "state"]
    assert loaded["one"].tolist() == [1, 1]
    assert loaded["none"] is None and loaded["empty"] == {}
    state = loaded["state"]
    assert state["z"] == tree["z"] and type(state["z"][1]) is tuple
    assert type(state["z"][3][0]) is np.float32
    assert state["a"] == tree["a"] and type(state["a"]) is tuple
    assert state["s"].tolist() == [0, 1, 2]
    assert store.load(0, "state/z/4") == {3: "three", "3": b"three"}
    assert store.load(0, "state/a") == (None, [[]])


def test_arrays_that_cannot_be_saved_are_not_left_out_of_equinox_modules(store):
    class Odd(eqx.Module):
        weight: jax.Array
        other: Any

    for other in (np.ma.masked_array([1.0, 2.0]), jax.ShapeDtypeStruct((2,), jnp.float32),
                  jax.new_ref(jnp.ones(2))):
        with pytest.raises(stepwell.UnsupportedLeafError, match="cannot save other: is "):
            store.save(0, Odd(jnp.ones(2), other))
    with pytest.raises(stepwell.UnsupportedLeafError, match="is a ShapeDtypeStruct"):
        store.save(0, eqx.filter_eval_shape(eqx.nn.Linear, 2, 2, key=jax.random.key(0)))
