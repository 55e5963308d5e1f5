# SPDX-License-Identifier: Apache-2.0
"""The values that Orbax gives for a tree, with and without a target, and equality bit for bit."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from orbax_trees import Nothing, WIDE, some_sharding


def is_key(leaf: object) -> bool:
    return isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(
        leaf.dtype, jax.dtypes.prng_key)


def as_restored(tree: Any, leaves: str) -> Any:
    """Returns what a load without a target gives: dicts with str keys, lists, None for namedtuples
    without fields; numbers for NumPy's scalars. `leaves`: "jax" or "numpy", as in `export`, or
    "saved": as Stepwell loads with as_="jax"."""
    if isinstance(tree, Nothing) or type(tree).__name__ == "EmptyState":
        return None
    if isinstance(tree, Mapping):
        return {str(key): as_restored(child, leaves) for key, child in tree.items()}
    if hasattr(tree, "_fields"):
        return {name: as_restored(getattr(tree, name), leaves) for name in tree._fields}
    if isinstance(tree, (list, tuple)):
        return [as_restored(child, leaves) for child in tree] if tree else type(tree)()
    if dataclasses.is_dataclass(tree):
        return {field.name: as_restored(getattr(tree, field.name), leaves)
                for field in dataclasses.fields(tree)}
    if leaves == "saved" and isinstance(tree, jax.Array):
        return tree
    if leaves == "numpy" and is_key(tree):  # NumPy has none; wherever they load, on all devices
        return jax.device_put(tree, everywhere())
    if leaves == "numpy" and isinstance(tree, jax.Array):
        return np.asarray(tree)
    return native(tree)


def everywhere() -> jax.sharding.Sharding:
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()), ("devices",))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())


def native(leaf: Any) -> Any:
    """NumPy's arrays in the machine's byte order, its scalars as Python numbers; those for which
    Python or Orbax v1 has none as arrays."""
    if isinstance(leaf, np.generic):
        is_number = type(leaf).__module__ == "numpy" and leaf.dtype.kind != "c"
        return leaf.item() if is_number else np.asarray(leaf)
    return leaf.astype(leaf.dtype.newbyteorder("=")) if isinstance(leaf, np.ndarray) else leaf


def key_data(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if is_key(leaf) else leaf


class Target:
    """A tree to load into, with other shardings than were saved, and what is to come of it.

    Arrays become now jax.Arrays, now NumPy's, whatever they were; 64-bit ones stay NumPy's.
    """

    def __init__(self, tree: Any, chance: random.Random) -> None:
        self._chance = chance
        both = jax.tree.map(self._leaf, tree)
        self.abstract = jax.tree.map(lambda pair: pair[0], both, is_leaf=is_pair)
        self.restored = jax.tree.map(lambda pair: pair[1], both, is_leaf=is_pair)

    def _leaf(self, leaf: Any) -> Pair:
        leaf = native(leaf)
        if is_key(leaf):
            sharding = some_sharding(self._chance, leaf.shape)
            abstract = jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
            data = np.asarray(jax.random.key_data(leaf))
            impl = jax.random.key_impl(leaf)
            key = jax.random.wrap_key_data(data, impl=impl)
            return Pair(abstract, jax.device_put(key, sharding))
        if isinstance(leaf, (jax.Array, np.ndarray)):
            wide = leaf.dtype.name in WIDE and not jax.config.jax_enable_x64
            if wide or self._chance.random() < 0.4:
                return Pair(np.empty(leaf.shape, leaf.dtype), np.asarray(leaf))
            sharding = some_sharding(self._chance, leaf.shape)
            abstract = jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
            return Pair(abstract, jax.device_put(np.asarray(leaf), sharding))
        return Pair(type(leaf)(), leaf)


@dataclasses.dataclass(frozen=True)
class Pair:
    abstract: Any
    restored: Any

    def __iter__(self) -> Iterator[Any]:
        return iter((self.abstract, self.restored))

    def __getitem__(self, index: int) -> Any:
        return (self.abstract, self.restored)[index]


def is_pair(node: object) -> bool:
    return isinstance(node, Pair)


def raw(leaf: Any) -> bytes:
    array = np.asarray(leaf)
    if array.dtype.name in ("int2", "int4"):  # the high bits of their bytes mean nothing
        array = array.astype(np.int8)
    return array.tobytes()


def differences(wanted: Any, got: Any, where: str = "") -> Iterator[str]:
    """Lists the differences between two trees: structure, types of nodes and leaves, shardings,
    bits."""
    if isinstance(wanted, Mapping) and type(wanted) is type(got):
        if wanted.keys() != got.keys():
            yield f"{where}: keys {list(wanted)} became {list(got)}"
            return
        for key in wanted:
            yield from differences(wanted[key], got[key], f"{where}[{key!r}]")
    elif isinstance(wanted, (list, tuple)) and type(wanted) is type(got):
        if len(wanted) != len(got):
            yield f"{where}: {len(wanted)} elements became {len(got)}"
            return
        for index, (one, other) in enumerate(zip(wanted, got, strict=True)):
            yield from differences(one, other, f"{where}[{index}]")
    elif type(wanted) is not type(got):
        yield f"{where}: {kind_of(wanted)} became {kind_of(got)}"
    elif dataclasses.is_dataclass(wanted):
        for field in dataclasses.fields(wanted):
            name = field.name
            yield from differences(getattr(wanted, name), getattr(got, name), f"{where}.{name}")
    elif isinstance(wanted, (jax.Array, np.ndarray)):
        if (wanted.dtype, wanted.shape) != (got.dtype, got.shape):
            yield f"{where}: {kind_of(wanted)} became {kind_of(got)}"
        elif isinstance(wanted, jax.Array) and not same_sharding(wanted, got):
            yield f"{where}: {wanted.sharding} became {got.sharding}"
        elif raw(key_data(wanted)) != raw(key_data(got)):
            yield f"{where}: {kind_of(wanted)}: other bits"
    elif isinstance(wanted, float):
        if np.float64(wanted).tobytes() != np.float64(got).tobytes():
            yield f"{where}: {wanted!r} became {got!r}"
    elif wanted != got:
        yield f"{where}: {wanted!r} became {got!r}"


def same_sharding(wanted: jax.Array, got: jax.Array) -> bool:
    if is_key(wanted):  # P() or P(None), as JAX pleases
        return bool(wanted.sharding.is_equivalent_to(got.sharding, wanted.ndim))
    return wanted.sharding == got.sharding


def kind_of(leaf: Any) -> str:
    if isinstance(leaf, (jax.Array, np.ndarray)):
        return f"{type(leaf).__name__} of {leaf.dtype}{list(leaf.shape)}"
    return f"{type(leaf).__name__} {leaf!r}"[:200]


def check(wanted: Any, got: Any) -> None:
    found = list(differences(wanted, got))
    if found:
        raise AssertionError(f"{len(found)} differences: " + "\n  ".join(found[:8]))
