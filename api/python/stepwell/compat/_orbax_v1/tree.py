# SPDX-License-Identifier: Apache-2.0
"""ocp.tree: types of trees, and merging."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from ..._pytree.tree import is_array_like, open_node, rebuild
from ..._pytree.values import encode_value

Leaf = Any
AbstractLeaf = Any
PyTree = Any
PyTreeKey = Any
PyTreeKeyPath = tuple[Any, ...]
JsonType = Any
T = TypeVar("T")


class PyTreeOf(Generic[T]):
    """Only for annotations: a tree with leaves of a type."""


def _default_is_leaf(node: Any) -> bool:
    if node is None or is_array_like(node) or encode_value(node) is not None:
        return True
    opened = open_node(node)
    return opened is None or not opened.children


def merge(*trees: PyTree, overwrite: bool = False, is_leaf: Callable[[Any], bool] | None = None
          ) -> PyTree:
    """One tree of several. Mappings are merged by key, sequences of one length by index, objects by
    field. Where two have a leaf, `overwrite` takes the later one; else ValueError."""
    leaf = is_leaf or _default_is_leaf
    merged: Any = {}
    for number, tree in enumerate(trees):
        merged = tree if number == 0 else _merged(merged, tree, overwrite, leaf, "")
    return merged


def _merged(one: Any, two: Any, overwrite: bool, is_leaf: Callable[[Any], bool], at: str) -> Any:
    if two is None:
        return one
    if one is None:
        return two
    if is_leaf(one) or is_leaf(two):
        if not overwrite:
            raise ValueError(f"both trees have a leaf at {at or 'the top'!r}; overwrite=True takes "
                             "the later one")
        return two
    if isinstance(one, Mapping) and isinstance(two, Mapping):
        kind: Any = type(one)
        union = {**one, **{key: _merged(one[key], value, overwrite, is_leaf, f"{at}/{key}")
                           if key in one else value for key, value in two.items()}}
        return union if kind is dict else kind(union)
    if type(one) is not type(two):
        if not overwrite:
            raise ValueError(f"the nodes at {at or 'the top'!r} are a {type(one).__name__} and a "
                             f"{type(two).__name__}")
        return two
    first, second = open_node(one), open_node(two)
    assert first is not None and second is not None
    if [name for name, _ in first.children] != [name for name, _ in second.children]:
        raise ValueError(f"the nodes at {at or 'the top'!r} have {len(first.children)} and "
                         f"{len(second.children)} children")
    return rebuild(one, first, [
        _merged(a, b, overwrite, is_leaf, f"{at}/{name[1]}")
        for (name, a), (_, b) in zip(first.children, second.children, strict=True)])
