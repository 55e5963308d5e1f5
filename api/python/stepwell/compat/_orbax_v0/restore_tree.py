# SPDX-License-Identifier: Apache-2.0
"""Restoring an item that is a tree: as saved, into a target, or through transforms.

Leaves are matched by name, as Orbax does: containers may differ.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from ..._pytree.tree import KEY, path_text
from ...errors import Mismatch, MismatchError
from .args import PyTreeRestore, StandardRestore
from .leaf_args import is_restore_args
from .leaves import Want, read_leaves, want_of_args, want_of_leaf
from .stored import Names, StoredItem
from .transform_utils import Transform, apply_transformations, flat_transforms
from .tree_names import flatten, unflatten


def restore_standard(item: StoredItem, args: StandardRestore) -> Any:
    """What StandardRestore asks for: leaves as those of the target."""
    if args.item is None:
        return _restore_all(item, {}, args.fallback_sharding)
    wants: list[tuple[Names, Want]] = []
    for names, leaf in flatten(args.item):
        number = item.leaves.get(names)
        record = None if number is None else item.record(number)
        try:
            wants.append((names, want_of_leaf(leaf, record, args.strict, args.fallback_sharding)))
        except TypeError as error:
            raise ValueError(f"{error} for key: {names}.") from None
    _check_structure(item, wants)
    return _restore_into(item, args.item, wants, {})


def restore_pytree(item: StoredItem, args: PyTreeRestore) -> Any:
    """What PyTreeRestore asks for: leaves as restore_args say, without as they were saved."""
    given = {names: each for names, each in flatten(args.restore_args, is_restore_args)
             if is_restore_args(each)}
    if args.legacy_transform_fn is not None:
        raise ValueError("legacy_transform_fn works on Orbax's own files; use `transforms`, or "
                         "change the restored tree")
    if args.transforms is not None:
        return _restore_transformed(item, args, given)
    if args.item is None:
        return _restore_all(item, given, None)
    leaves = flatten(args.item)
    wants = [(names, Want("skip") if leaf is ... else
              want_of_args(given[names], leaf) if names in given else Want())
             for names, leaf in leaves]
    if not args.partial_restore:
        _check_structure(item, wants)
    return _restore_into(item, args.item, wants, dict(leaves))


def _restore_all(item: StoredItem, given: dict[Names, Any], fallback: Any) -> Any:
    wants: list[tuple[int, Want]] = []
    for names, number in item.leaves.items():
        want = want_of_args(given[names]) if names in given else Want()
        if fallback is not None and want.kind == "as_saved":
            want = _with_fallback(item, number, fallback)
        wants.append((number, want))
    values = read_leaves(item, wants)
    return item.build(lambda number: values.get(number, ...))


def _with_fallback(item: StoredItem, number: int, fallback: Any) -> Want:
    from .leaves import fallback_of

    sharding = fallback_of(item.record(number), fallback)
    return Want() if sharding is None else Want("jax", sharding=sharding)


def _restore_into(item: StoredItem, target: Any, wants: list[tuple[Names, Want]],
                  instead: dict[Names, Any]) -> Any:
    """The structure of `target` with what is wanted; what is not stored comes from `instead`."""
    stored = item.leaves
    values = read_leaves(item, [(stored[names], want) for names, want in wants if names in stored])
    return unflatten([values.get(stored[names], ...) if names in stored
                      else instead.get(names, ...) for names, _ in wants], target)


def _check_structure(item: StoredItem, wants: list[tuple[Names, Want]]) -> None:
    """MismatchError, a ValueError, with every leaf that only the target or only the step has."""
    wanted = {names for names, _ in wants}
    bad = [Mismatch(_text(names), "missing in the step") for names, want in wants
           if names not in item.leaves and want.kind != "skip"]
    bad += [Mismatch(_text(names), f"stored {item.tree.describe(number)}, not in the target")
            for names, number in item.leaves.items() if names not in wanted]
    if bad:
        raise MismatchError(
            f"step {item.source.step}, item {item.name!r}: the restore target and the step have "
            "other leaves:", bad,
            "PyTreeRestore(partial_restore=True) restores what the target has; transforms={} takes "
            "what the step lacks from the target")


def _text(names: Names) -> str:
    return path_text((KEY, name) for name in names)


def _restore_transformed(item: StoredItem, args: PyTreeRestore, given: dict[Names, Any]) -> Any:
    if args.item is None:
        raise ValueError("If providing `transforms`, must provide `item` matching structure of "
                         "expected result.")
    target = dict(flatten(args.item))
    transforms = flat_transforms(args.transforms)
    wants: list[tuple[int, Want]] = []
    for names, number in item.leaves.items():
        found = _args_for(names, target, transforms, given, args.transforms_default_to_original)
        if found is not None:
            wants.append((number, found))
    values = read_leaves(item, wants)
    original = item.build(lambda number: values.get(number, ...))
    by_key = {"/".join(names): each for names, each in given.items()}
    bound = {key: _bound(transform, by_key) for key, transform in transforms.items()}
    return apply_transformations(original, bound, args.item, args.transforms_default_to_original)


def _args_for(names: Names, target: dict[Names, Any], transforms: dict[str, Any],
              given: dict[Names, Any], default_to_original: bool) -> Want | None:
    """What a stored leaf is restored as; None: nothing needs it."""
    key = "/".join(names)
    falls_back = False
    for pattern, transform in transforms.items():
        inputs = getattr(transform, "multi_value_fn_input_args", None)
        if transform.multi_value_fn is not None:
            if inputs is None:
                raise ValueError("`multi_value_fn` needs `multi_value_fn_input_args`, which names "
                                 "what it reads: use RestoreTransform")
            for wanted, each in inputs.items():
                if re.fullmatch(wanted, key):
                    return want_of_args(each)
            continue
        if transform.use_fallback:
            falls_back = falls_back or re.fullmatch(pattern, key) is not None
            continue
        for output in target:
            match = re.fullmatch(pattern, "/".join(output))
            if match is None:
                continue
            source = ("/".join(output) if transform.original_key is None
                      else match.expand(transform.original_key))
            if source == key:
                return _given(output, target, given)
    if names not in target or falls_back == default_to_original:
        return None
    return _given(names, target, given)


def _given(names: Names, target: dict[Names, Any], given: dict[Names, Any]) -> Want:
    return want_of_args(given[names], target[names]) if names in given else Want()


def _bound(transform: Any, given: dict[str, Any]) -> Any:
    """A transform whose multi_value_fn gets the RestoreArgs of its leaf."""
    if transform.multi_value_fn is None:
        return transform
    function = transform.multi_value_fn
    return dataclasses.replace(
        Transform(), multi_value_fn=lambda key, tree: function(key, tree, given.get(key)))
