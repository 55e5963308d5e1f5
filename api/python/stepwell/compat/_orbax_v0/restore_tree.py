# SPDX-License-Identifier: Apache-2.0
"""Restoring an item that is a tree: as saved, into a target, or through transforms.

Leaves are matched by name, as Orbax does: containers may differ. What is empty ({}, None, a
MaskedNode) matches a leaf of its name: what is stored, or the target where that is empty, stays.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import jax
from orbax.checkpoint import PLACEHOLDER, RestoreArgs, Transform, apply_transformations, args
from orbax.checkpoint.tree import to_flat_dict

from ..._pytree.tree import KEY, path_text
from ...errors import Mismatch, MismatchError
from .._orbax_stored import Names, StoredItem
from .leaves import Want, fallback_of, read_leaves, want_of_args, want_of_leaf

_PARTIAL = ("partial_restore=True restores what the target has; transforms={} takes what the step "
            "lacks from the target")


def restore_standard(item: StoredItem, asked: args.StandardRestore) -> Any:
    """Restores as StandardRestore asks: leaves as those of the target."""
    if asked.item is None:
        return _restore_all(item, {}, asked.fallback_sharding)
    wants: dict[Names, Want] = {}
    for names, leaf in to_flat_dict(asked.item).items():
        number = item.leaves.get(names)
        record = None if number is None else item.record(number)
        try:
            wants[names] = want_of_leaf(leaf, record, asked.strict, asked.fallback_sharding)
        except TypeError as error:
            raise ValueError(f"{error} for key: {names}.") from None
    _check_structure(item, asked.item, wants, "StandardRestore() restores all of it; a new "
                     f"CheckpointManager also takes PyTreeRestore: {_PARTIAL}")
    return _restore_into(item, asked.item, wants, {})


def restore_pytree(item: StoredItem, asked: args.PyTreeRestore) -> Any:
    """Restores as PyTreeRestore asks: leaves as restore_args say, without as they were saved."""
    given = {names: each for names, each in to_flat_dict(asked.restore_args).items()
             if isinstance(each, RestoreArgs)}
    if getattr(asked, "transforms", None) is not None:
        return _restore_transformed(item, asked, given)
    if asked.item is None:
        return _restore_all(item, given, None)
    leaves = to_flat_dict(asked.item)
    wants = {names: Want("skip") if leaf is PLACEHOLDER else
             want_of_args(given[names], leaf) if names in given else Want()
             for names, leaf in leaves.items()}
    if not asked.partial_restore:
        _check_structure(item, asked.item, wants, f"PyTreeRestore: {_PARTIAL}")
    return _restore_into(item, asked.item, wants, leaves)


def _restore_all(item: StoredItem, given: dict[Names, Any], fallback: Any) -> Any:
    wants: list[tuple[int, Want]] = []
    for names, number in item.leaves.items():
        want = want_of_args(given[names]) if names in given else Want()
        sharding = fallback_of(item.record(number), fallback)
        if sharding is not None and want.kind == "as_saved":
            want = Want("jax", sharding=sharding)
        wants.append((number, want))
    values = read_leaves(item, wants)
    return item.build(lambda number: values.get(number, PLACEHOLDER))


def _restore_into(item: StoredItem, target: Any, wants: dict[Names, Want],
                  instead: dict[Names, Any]) -> Any:
    """The structure of `target` with what is wanted; what is not stored comes from `instead`."""
    stored = item.leaves
    values = read_leaves(item, [(stored[names], want) for names, want in wants.items()
                                if names in stored])
    leaves = []
    for names, want in wants.items():
        if names in stored:
            leaves.append(values.get(stored[names], PLACEHOLDER))
        elif names in item.empties and want.kind != "skip":
            leaves.append(item.empties[names])
        else:
            leaves.append(instead.get(names, PLACEHOLDER))
    return jax.tree.unflatten(jax.tree.structure(target), leaves)


def _check_structure(item: StoredItem, target: Any, wants: dict[Names, Want], hint: str) -> None:
    """MismatchError, a ValueError, with every leaf that only the target or only the step has."""
    bad = [Mismatch(_text(names), "missing in the step", "missing") for names, want in wants.items()
           if names not in item.leaves and names not in item.empties and want.kind != "skip"]
    unwanted = item.leaves.keys() - wants.keys()
    if unwanted:
        unwanted -= to_flat_dict(target, keep_empty_nodes=True).keys()
    bad += [Mismatch(_text(names), f"stored {item.tree.describe(number)}, not in the target",
                     "unexpected")
            for names, number in item.leaves.items() if names in unwanted]
    if bad:
        raise MismatchError(
            f"step {item.source.step}, item {item.name!r}: the restore target and the step have "
            "other leaves:", bad, hint)


def _text(names: Names) -> str:
    return path_text((KEY, name) for name in names)


# ---- transforms ---------------------------------------------------------------------------------


def _restore_transformed(item: StoredItem, asked: args.PyTreeRestore, given: dict[Names, Any]
                         ) -> Any:
    if asked.item is None:
        raise ValueError("If providing `transforms`, must provide `item` matching structure of "
                         "expected result.")
    target = to_flat_dict(asked.item)
    transforms = to_flat_dict(asked.transforms, sep="/")
    wants: list[tuple[int, Want]] = []
    for names, number in item.leaves.items():
        found = _want_for(names, target, transforms, given, asked.transforms_default_to_original)
        if found is not None:
            wants.append((number, found))
    values = read_leaves(item, wants)
    original = item.build(lambda number: values.get(number, PLACEHOLDER))
    by_key = {"/".join(names): each for names, each in given.items()}
    bound = {key: _bound(transform, by_key) for key, transform in transforms.items()}
    return apply_transformations(original, bound, asked.item, asked.transforms_default_to_original)


def _want_for(names: Names, target: dict[Names, Any], transforms: dict[str, Any],
              given: dict[Names, Any], default_to_original: bool) -> Want | None:
    """Returns the type that a stored leaf is restored as; None: nothing needs it."""
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
