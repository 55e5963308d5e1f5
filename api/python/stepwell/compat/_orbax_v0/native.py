# SPDX-License-Identifier: Apache-2.0
"""Which of Orbax's handlers need no files here, and what they save and restore.

The item of such a handler is a tree of the store, or JSON. The item of any other handler is the
files that it writes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
from orbax.checkpoint import (ArrayCheckpointHandler, BasePyTreeCheckpointHandler,
                              JsonCheckpointHandler, PyTreeCheckpointHandler, SaveArgs,
                              StandardCheckpointHandler, args)
from orbax.checkpoint.tree import to_flat_dict

from ... import Json
from ..._pytree.tree import is_static, open_node
from ...errors import InvalidArgumentError
from .._orbax_stored import StoredItem
from .leaves import Want, read_leaves, want_of_args
from .restore_tree import restore_pytree, restore_standard

_NATIVE = (StandardCheckpointHandler, PyTreeCheckpointHandler, BasePyTreeCheckpointHandler,
           ArrayCheckpointHandler, JsonCheckpointHandler)
_OVERRIDDEN = ("save", "async_save", "restore", "finalize")
_JSON_FILE = "metadata"  # JsonCheckpointHandler's by default, which a view has, too

# Handlers without arguments of their own save and restore with those of their base class.
_ARGS: dict[Any, tuple[Any, Any]] = {
    BasePyTreeCheckpointHandler: (args.PyTreeSave, args.PyTreeRestore),
    **{cls: args.get_registered_args_cls(cls) for cls in _NATIVE if args.has_registered_args(cls)}}


class ArrayItem(NamedTuple):
    """An array that is an item. Orbax gives it this name."""

    checkpoint: Any


def unwrapped(handler: Any) -> Any:
    """The handler of the user, which Orbax wraps if it has no registered arguments."""
    # Orbax's wrappers have no public name.
    return handler._handler if type(handler).__name__.endswith("LegacyCheckpointHandlerWrapper") \
        else handler


def native_class(handler: Any) -> type[Any] | None:
    """The class of Orbax that says how a handler's items are stored: the handler's own, or one
    that it derives from and changes nothing of. None: its items are files."""
    handler = unwrapped(handler)
    for cls in _NATIVE:
        if isinstance(handler, cls):
            unchanged = all(getattr(type(handler), name, None) is getattr(cls, name, None)
                            for name in _OVERRIDDEN)
            other_file = getattr(handler, "_filename", _JSON_FILE) != _JSON_FILE
            return None if other_file or not unchanged else cls
    return None


def arguments(cls: type[Any], given: Any, for_restore: bool) -> Any:
    """Arguments of a handler as those of `cls`: they may be a call's, which Orbax's wrapper of
    handlers without arguments of their own keeps as they were."""
    if isinstance(given, _ARGS[cls]) or hasattr(given, "item") or not hasattr(given, "kwargs"):
        return given
    kwargs = dict(given.kwargs)
    asked = kwargs.pop("args", None)
    return _ARGS[cls][for_restore](*given.args, **kwargs) if asked is None else asked


# ---- saving -------------------------------------------------------------------------------------


def item_of(cls: type[Any], given: Any) -> Any:
    """Returns what is saved for the arguments of a native handler. ValueError, TypeError."""
    given = arguments(cls, given, False)
    item = given.item
    if cls is JsonCheckpointHandler:
        try:
            return Json(item)
        except InvalidArgumentError as error:
            raise TypeError(str(error)) from None  # as json.dumps, which Orbax calls
    if cls is ArrayCheckpointHandler:
        if not isinstance(item, (np.ndarray, jax.Array, int, float, np.number)):
            raise TypeError(f"Unsupported type: {type(item)}.")
        dtype = getattr(given.save_args, "dtype", None)
        return ArrayItem(item if dtype is None else _cast(item, dtype))
    if cls is StandardCheckpointHandler:
        if item is None:
            raise ValueError("Must provide item to save.")
        if isinstance(item, (jax.Array, int, float, complex, np.number)):
            raise ValueError("StandardCheckpointHandler / StandardSave does not support single "
                             "arrays or scalars. Use ArrayCheckpointHandler / ArraySave")
        if any(getattr(each, "aggregate", False) for each in jax.tree.leaves(given.save_args)):
            raise ValueError("Unsupported option `aggregate`.")
    return _prepared(item, given.save_args)


def _prepared(tree: Any, save_args: Any) -> Any:
    """The tree as it is saved: cast as SaveArgs say; array-likes of other libraries as arrays."""
    casts = {names: each.dtype for names, each in to_flat_dict(save_args).items()
             if isinstance(each, SaveArgs) and each.dtype is not None}
    flat, treedef = jax.tree.flatten(tree)
    for leaf in flat:  # restoring into the same tree, each of these would be a leaf
        if not hasattr(leaf, "__array__") and (
                is_static(leaf, False) or open_node(leaf) is not None):
            raise ValueError(f"Unsupported type: {type(leaf)}: Orbax saves arrays, numbers and "
                             "texts; register a dataclass as a pytree, and take functions out")
    leaves = [np.asarray(leaf) if hasattr(leaf, "__array__")
              and not isinstance(leaf, (np.ndarray, jax.Array)) else leaf for leaf in flat]
    if casts:
        leaves = [_cast(leaf, casts[names]) if casts.get(names) is not None else leaf
                  for names, leaf in zip(to_flat_dict(tree), leaves, strict=True)]
    if all(new is old for new, old in zip(leaves, flat, strict=True)):
        return tree  # as it is: with its own types of nodes
    return jax.tree.unflatten(treedef, leaves)


def _cast(leaf: Any, dtype: Any) -> Any:
    if isinstance(leaf, (int, float)):
        return np.asarray(leaf).astype(dtype).item()
    return leaf.astype(dtype) if hasattr(leaf, "astype") else leaf


# ---- restoring ----------------------------------------------------------------------------------


def restored(cls: type[Any], stored: StoredItem, given: Any) -> Any:
    """Returns what the arguments of a native handler ask for of a tree."""
    if cls is StandardCheckpointHandler:
        return restore_standard(stored, given)
    if cls is ArrayCheckpointHandler:
        (number, *more) = stored.leaves.values()
        if more:
            raise ValueError(f"step {stored.source.step}: item {stored.name!r} is a tree of "
                             f"{1 + len(more)} leaves; ArrayRestore is for single arrays")
        asked = given.restore_args
        want = Want() if asked is None else want_of_args(asked, given.item)
        return read_leaves(stored, [(number, want)])[number]
    return restore_pytree(stored, given)
