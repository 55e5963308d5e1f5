# SPDX-License-Identifier: Apache-2.0
"""Transforms: how the leaves of a checkpoint become those of a target."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

from .tree_names import from_flat_dict, to_flat_dict


@dataclasses.dataclass
class Transform:
    """How one leaf of the target comes about. The key of a transform is a leaf's path, with "/",
    or a regular expression that such paths match.

    original_key: the path in the checkpoint; may refer to groups of the expression (`\\1`).
    use_fallback: take the target's value. value_fn: a function of the checkpoint's value.
    multi_value_fn: a function of the path and the whole checkpoint.
    """

    original_key: str | tuple[str] | None = None
    use_fallback: bool = False
    value_fn: Callable[[Any], Any] | None = None
    multi_value_fn: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("original_key", "use_fallback", "value_fn", "multi_value_fn")
                 if getattr(self, name) not in (None, False)]
        assert len(given) <= 1 or given == ["original_key", "value_fn"], (
            f"a Transform takes one of these, not all: {', '.join(given)}")


@dataclasses.dataclass
class RestoreTransform(Transform):
    """A Transform for restoring: `multi_value_fn` gets the leaf's RestoreArgs as well, and
    `multi_value_fn_input_args` names what it reads: RestoreArgs by path in the checkpoint."""

    multi_value_fn_input_args: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.multi_value_fn_input_args is None or self.multi_value_fn is not None


def is_transform(value: object) -> bool:
    """A Transform, ours or Orbax's own."""
    return hasattr(value, "original_key") and hasattr(value, "use_fallback")


def flat_transforms(transforms: Any) -> dict[str, Any]:
    return to_flat_dict(transforms, sep="/", is_leaf=is_transform)


def apply_transformations(original_tree: Any, transformations: Any, new_tree: Any,
                          default_to_original: bool | None = True) -> Any:
    """A tree with the structure of `new_tree`: what a transform says, else the leaf of
    `original_tree` with the same path, else the leaf of `new_tree`. default_to_original: False
    takes leaves without a transform from `new_tree`."""
    new = to_flat_dict(new_tree, sep="/")
    if not new and not new_tree:
        return {}
    original = to_flat_dict(original_tree, sep="/")
    transforms = flat_transforms(transformations)
    for key in new:
        found = False
        for pattern, transform in transforms.items():
            match = re.fullmatch(pattern, key)
            if match:
                found = True
                new[key] = _transformed(key, match, transform, original_tree, original, new[key],
                                        bool(default_to_original))
        if not found and key in original and default_to_original:
            new[key] = original[key]
    return from_flat_dict(new, target=new_tree, sep="/")


def _transformed(key: str, match: re.Match[str], transform: Any, tree: Any,
                 original: dict[str, Any], value: Any, default_to_original: bool) -> Any:
    if transform.use_fallback:
        if default_to_original:
            return value
        if key not in original:
            raise ValueError(f"{key} not found in origin tree (`use_fallback` requested).")
        return original[key]
    if transform.multi_value_fn is not None:
        return transform.multi_value_fn(key, tree)
    source = key if transform.original_key is None else match.expand(transform.original_key)
    if source not in original:
        raise ValueError(f'Transformation key "{source}" not found in origin tree.')
    return original[source] if transform.value_fn is None else transform.value_fn(original[source])


def merge_trees(*trees: Any, target: Any = None) -> Any:
    """One tree with the leaves of all; of equal paths the last."""
    merged: dict[Any, Any] = {}
    for tree in trees:
        merged |= to_flat_dict(tree)
    return from_flat_dict(merged, target=target)


def intersect_trees(*trees: Any, target: Any = None) -> Any:
    """The leaves of the last tree that all have."""
    flat = [to_flat_dict(tree) for tree in trees]
    common = set.intersection(*[set(each) for each in flat])
    return from_flat_dict({name: flat[-1][name] for name in flat[-1] if name in common},
                          target=target)
