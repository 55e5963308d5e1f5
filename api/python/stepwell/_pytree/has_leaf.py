# SPDX-License-Identifier: Apache-2.0
"""Trees of which nothing would be saved, as of a train step that forgot its `return`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import InvalidArgumentError
from .keys import BadKeyError
from .tree import DEPTH_MAX, is_static, open_node


def has_leaf(node: Any, depth: int = 0) -> bool:
    """Returns true if `save` would save a leaf of the tree. As in JAX, None is no leaf. Functions
    are not saved. The search ends at the first leaf."""
    if node is None:
        return False
    if depth > DEPTH_MAX:
        return True  # the save says what is wrong
    children: Iterable[Any]  # not by open_node, which lists all of them first
    if type(node) is dict:
        children = node.values()
    elif type(node) is list or type(node) is tuple:
        children = node
    else:
        try:
            opened = open_node(node)
        except BadKeyError:
            return True  # the save says which
        if opened is None:
            return not is_static(node, False)
        children = (child for _, child in opened.children)
    return any(has_leaf(child, depth + 1) for child in children)


def check_has_leaf(items: Mapping[str, Any]) -> None:
    """InvalidArgumentError for items without a leaf: such a step would be of no use, and a policy
    would delete a good one for it."""
    if any(has_leaf(tree) for tree in items.values()):
        return
    what = "the state is" if list(items) == ["state"] else (
        f"the items {', '.join(map(repr, items))} are")
    if all(tree is None for tree in items.values()):
        raise InvalidArgumentError(f"{what} None: nothing would be saved. Did the function that "
                                   "was to make it end without `return`?")
    raise InvalidArgumentError(f"{what} without a leaf: nothing would be saved, because no array, "
                               "number or string is in it")
