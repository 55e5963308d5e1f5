# SPDX-License-Identifier: Apache-2.0
"""Pytrees by the names of their leaves: what `utils` and `tree` offer of Orbax's tree functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .libraries import jax_module

Names = tuple[str, ...]


def is_empty_node(value: Any) -> bool:
    """{}, [], (), an empty namedtuple or None."""
    return value is None or isinstance(value, (dict, list, tuple)) and not value


def is_empty_or_leaf(value: Any) -> bool:
    jax = jax_module()

    return is_empty_node(value) or bool(jax.tree_util.all_leaves([value]))


def key_name(key: Any) -> str | int:
    """The name that a key of a JAX path has."""
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            name: str | int = getattr(key, attribute)
            return name
    raise ValueError(f"Unsupported KeyEntry: {type(key)}: {key}")


def tuple_path_from_keypath(keypath: Any) -> Names:
    """A JAX path as a tuple of strings."""
    return tuple([str(key_name(key)) for key in keypath])


def flatten(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[tuple[Names, Any]]:
    """The leaves of a tree with their names, in JAX's order."""
    jax = jax_module()

    flat, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_leaf)
    return [(tuple_path_from_keypath(path), leaf) for path, leaf in flat]


def unflatten(leaves: list[Any], target: Any) -> Any:
    """A tree with the structure of `target`; leaves in JAX's order."""
    jax = jax_module()

    return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(target), leaves)


def to_flat_dict(tree: Any, sep: str | None = None, keep_empty_nodes: bool = False,
                 is_leaf: Callable[[Any], bool] | None = None) -> dict[Any, Any]:
    """The leaves by name: a tuple of strings, or with `sep` one string."""
    is_leaf = is_leaf or (is_empty_or_leaf if keep_empty_nodes else None)
    flat = flatten(tree, is_leaf)
    return {names if sep is None else sep.join(names): leaf for names, leaf in flat}


def from_flat_dict(flat_dict: dict[Any, Any], target: Any = None, sep: str | None = None) -> Any:
    """The tree of leaves by name: with the structure of `target`, or else dicts."""
    if target is not None:
        return unflatten([flat_dict[name] for name in to_flat_dict(target, sep)], target)
    tree: dict[str, Any] = {}
    for name, leaf in flat_dict.items():
        names = name if sep is None else tuple(name.split(sep))
        if not names:
            return leaf
        node = tree
        for each in names[:-1]:
            node = node.setdefault(each, {})
        node[names[-1]] = leaf
    return tree


def serialize_tree(tree: Any, keep_empty_nodes: bool = False) -> Any:
    """The tree in dicts and lists, with strings for keys."""
    jax = jax_module()

    if keep_empty_nodes and is_empty_node(tree):
        return tree
    children = jax.tree_util.default_registry.flatten_one_level_with_keys(tree)
    if children is None:
        return tree
    below = [(key, serialize_tree(child, keep_empty_nodes)) for key, child in children[0]
             if keep_empty_nodes or jax.tree.leaves(child)]
    if below and all(isinstance(key, (jax.tree_util.SequenceKey, jax.tree_util.FlattenedIndexKey))
                     for key, _ in below):
        return [child for _, child in below]
    return {str(key_name(key)): child for key, child in below}


def deserialize_tree(serialized: Any, target: Any) -> Any:
    """What serialize_tree made, with the structure of `target`."""
    return from_flat_dict(to_flat_dict(serialized), target)


def to_shape_dtype_struct(x: Any, dtype: Any = None, scalar_dtype: type[Any] | None = None) -> Any:
    """A leaf as an abstract one: arrays and their metadata as jax.ShapeDtypeStruct."""
    jax = jax_module()
    import numpy as np

    from . import metadata

    described = metadata.kind_of(x)
    if described == "scalar" or isinstance(x, (int, float, np.number)):
        value = np.dtype(x.dtype).type(0).item() if described else x
        return value if scalar_dtype is None else scalar_dtype(value)
    if described == "string" or isinstance(x, str):
        return x
    if isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)  # the step knows that it is a key
    sharding: Any = getattr(x, "sharding", None)
    if hasattr(sharding, "to_jax_sharding"):
        sharding = sharding.to_jax_sharding()
    return jax.ShapeDtypeStruct(tuple(x.shape), dtype or x.dtype, sharding=sharding)
