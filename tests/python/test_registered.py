# SPDX-License-Identifier: Apache-2.0
"""Classes that are registered with JAX and look like something else: JAX's registry decides what is
in them. What is aux data there comes from the target, in every interface."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.example_libraries import optimizers
from orbax import checkpoint as orbax_v0
from orbax.checkpoint import v1 as orbax_v1

import stepwell
from stepwell.compat import equinox, flax, orbax, orbax_v1 as facade_v1

pytestmark = pytest.mark.filterwarnings("ignore:Sharding info not provided:UserWarning")

Tree = Any


class ByNumber(NamedTuple):
    weights: Any
    unit: str


class ByName(NamedTuple):
    weights: Any
    unit: str


class Names(dict[str, Any]):
    pass


class Items(list[Any]):
    pass


class Pair(tuple[Any, ...]):
    pass


class Quantized:
    """It has what arrays have, and is a node with arrays in it."""

    def __init__(self, values: Any, scale: Any) -> None:
        self.values, self.scale = values, scale

    shape = property(lambda self: self.values.shape)
    dtype = property(lambda self: self.scale.dtype)


def register(cls: type, children: Callable[[Any], Any], aux: Callable[[Any], Any],
             make: Callable[[Any, Any], Any]) -> None:
    jax.tree_util.register_pytree_node(cls, lambda node: (children(node), aux(node)), make)


register(ByNumber, lambda node: (node.weights,), lambda node: node.unit,
         lambda unit, children: ByNumber(children[0], unit))
jax.tree_util.register_pytree_with_keys(
    ByName, lambda node: (((jax.tree_util.GetAttrKey("weights"), node.weights),), node.unit),
    lambda unit, children: ByName(children[0], unit))
register(Names, lambda node: tuple(node.values()), tuple,
         lambda names, children: Names(zip(names, children, strict=True)))
register(Items, tuple, lambda _: None, lambda _, children: Items(children))
register(Pair, tuple, lambda _: None, lambda _, children: Pair(children))
register(Quantized, lambda node: (node.values, node.scale), lambda _: None,
         lambda _, children: Quantized(*children))


class SVIState(NamedTuple):
    """NumPyro has this class."""

    optim_state: Any
    mutable_state: Any
    rng_key: Any


def params(value: float) -> Tree:
    return {"auto_loc": jnp.full(3, value), "layers": [jnp.full((2, 2), value), jnp.ones(1)]}


def adam(value: float) -> Tree:
    init, update, _ = optimizers.adam(1e-3)
    return update(0, params(value + 1), init(params(value)))


STATES: dict[str, Callable[[float, str], Tree]] = {
    "optimizer": lambda value, unit: adam(value),
    "svi": lambda value, unit: SVIState(
        (jnp.asarray(int(value)), adam(value)), None, jax.random.PRNGKey(int(value))),
    "by_number": lambda value, unit: ByNumber({"w": jnp.full(2, value)}, unit),
    "by_name": lambda value, unit: ByName({"w": jnp.full(2, value)}, unit),
    "names": lambda value, unit: Names(a=jnp.full(2, value), b=jnp.full(1, value + 1)),
    "items": lambda value, unit: Items([jnp.full(2, value), jnp.full(1, value + 1)]),
    "pair": lambda value, unit: Pair([jnp.full(2, value), jnp.full(1, value + 1)]),
    "quantized": lambda value, unit: Quantized(jnp.full(2, int(value)), jnp.full(1, value)),
}


def by_orbax_v0(path: pathlib.Path, tree: Tree, like: Tree, ocp: Any) -> Tree:
    restore_args = ocp.checkpoint_utils.construct_restore_args(like)
    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(path, tree)
        return checkpointer.restore(
            path, args=ocp.args.PyTreeRestore(like, restore_args=restore_args))


def by_standard_v0(path: pathlib.Path, tree: Tree, like: Tree, ocp: Any) -> Tree:
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, tree)
        checkpointer.wait_until_finished()
        return checkpointer.restore(path, like)


def by_v1(path: pathlib.Path, tree: Tree, like: Tree) -> Tree:
    facade_v1.save(path, tree)
    return facade_v1.load(path, like)


def by_flax(path: pathlib.Path, tree: Tree, like: Tree) -> Tree:
    flax.save_checkpoint(path, tree, 1)
    return flax.restore_checkpoint(path, like)


def by_equinox(path: pathlib.Path, tree: Tree, like: Tree) -> Tree:
    equinox.tree_serialise_leaves(path, tree)
    return equinox.tree_deserialise_leaves(path, like)


def natively(path: pathlib.Path, tree: Tree, like: Tree) -> Tree:
    with stepwell.open(path) as store:
        store.save(1, tree).result()
        return store.load(1, like=like)


def exported(path: pathlib.Path, tree: Tree, like: Tree) -> Tree:
    with stepwell.open(path) as store:
        store.save(1, tree).result()
        store.export(1, path.with_name("exported"))
        store.import_checkpoint(path.with_name("exported"), step=2).result()
        return store.load(2, like=like)


def pushed(path: pathlib.Path, tree: Tree, like: Tree) -> Tree:
    with stepwell.open(path) as store, stepwell.open(path.with_name("other")) as other:
        store.save(1, tree).result()
        store.push(1, path.with_name("pushed"))
        other.pull(path.with_name("pushed"))
        return other.load(1, like=like)


def orbax_reads(path: pathlib.Path, tree: Tree, like: Tree) -> Tree:
    with stepwell.open(path) as store:
        store.save(1, tree).result()
        store.export(1, path.with_name("exported"))
    return orbax_v1.load(path.with_name("exported"), like)


def imported(path: pathlib.Path, tree: Tree, like: Tree) -> Tree:
    orbax_v1.save(path.with_name("saved"), tree)
    with stepwell.open(path) as store:
        store.import_checkpoint(path.with_name("saved"), step=1).result()
        return store.load(1, like=like)


def v1_reads_orbaxs(path: pathlib.Path, tree: Tree, like: Tree) -> Tree:
    orbax_v1.save(path, tree)
    return facade_v1.load(path, like)


def v0_reads_orbaxs(path: pathlib.Path, tree: Tree, like: Tree) -> Tree:
    with orbax_v0.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, tree)
    with orbax.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(path, like)


WAYS: dict[str, Callable[[pathlib.Path, Tree, Tree], Tree]] = {
    "native": natively, "export and import": exported, "push and pull": pushed,
    "Orbax reads": orbax_reads, "Orbax's, imported": imported,
    "v1": by_v1, "v1 reads Orbax's": v1_reads_orbaxs,
    "v0": lambda path, tree, like: by_orbax_v0(path, tree, like, orbax),
    "v0 standard": lambda path, tree, like: by_standard_v0(path, tree, like, orbax),
    "v0 reads Orbax's": v0_reads_orbaxs, "flax": by_flax, "equinox": by_equinox}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("way", WAYS)
def test_the_registry_decides(tmp_path: pathlib.Path, way: str, state: str) -> None:
    tree, like = STATES[state](3.0, "saved"), STATES[state](0.0, "target's")
    got = WAYS[way](tmp_path / "run", tree, like)
    assert jax.tree.structure(got) == jax.tree.structure(like)  # which has the aux data
    for left, right in zip(jax.tree.leaves(got), jax.tree.leaves(tree), strict=True):
        assert isinstance(left, jax.Array) and left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)
