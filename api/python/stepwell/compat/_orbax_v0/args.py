# SPDX-License-Identifier: Apache-2.0
"""`args`: what to save and restore, and how. handlers.py says which handler each is for."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

from .base import (CheckpointArgs, get_registered_args_cls, get_registered_handler_cls,
                   has_registered_args, register_with_handler)
from .composite import CompositeMapping

__all__ = [
    "ArrayRestore", "ArraySave", "CheckpointArgs", "Composite", "JaxRandomKeyRestore",
    "JaxRandomKeySave", "JsonRestore", "JsonSave", "NumpyRandomKeyRestore", "NumpyRandomKeySave",
    "ProtoRestore", "ProtoSave", "PyTreeRestore", "PyTreeSave", "StandardRestore", "StandardSave",
    "get_registered_args_cls", "get_registered_handler_cls", "has_registered_args",
    "register_with_handler",
]


def is_tree_metadata(value: object) -> bool:
    """A TreeMetadata, ours or Orbax's own."""
    return all(hasattr(value, name) for name in ("tree", "custom_metadata", "use_zarr3"))


def _tree(value: Any) -> Any:
    return value.tree if is_tree_metadata(value) else value


class Composite(CompositeMapping, CheckpointArgs):
    """Arguments of several items, by name; also what restoring several items returns."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CompositeMapping) and self._items == other._items


@dataclasses.dataclass
class StandardSave(CheckpointArgs):
    """Saves a pytree. save_args: a tree of `SaveArgs`, of which `dtype` counts."""

    item: Any
    save_args: Any = None
    custom_metadata: Any = None

    def __post_init__(self) -> None:
        if is_tree_metadata(self.item):
            raise ValueError("Cannot save TreeMetadata.")


@dataclasses.dataclass
class StandardRestore(CheckpointArgs):
    """Restores a pytree, into the structure, types and shardings of `item` if one is given.

    strict: False pads and truncates arrays of other shapes. fallback_sharding: for arrays whose
    saved sharding needs devices that are not here.
    """

    item: Any = None
    strict: bool = True
    support_layout: bool = False
    fallback_sharding: Any = None

    def __post_init__(self) -> None:
        self.item = _tree(self.item)


@dataclasses.dataclass
class PyTreeSave(CheckpointArgs):
    """Saves a pytree. save_args: a tree of `SaveArgs`, of which `dtype` counts."""

    item: Any
    save_args: Any = None
    ocdbt_target_data_file_size: int | None = None
    custom_metadata: Any = None

    def __post_init__(self) -> None:
        if is_tree_metadata(self.item):
            raise ValueError("Cannot save TreeMetadata.")


@dataclasses.dataclass
class PyTreeRestore(CheckpointArgs):
    """Restores a pytree.

    item: the structure of the result. restore_args: a tree of `RestoreArgs`, which say the type of
    each leaf; without, a leaf is restored as it was saved. transforms: how leaves of the checkpoint
    become those of `item`; `transforms={}` takes what the checkpoint lacks from `item`.
    partial_restore: only what is in `item`, which may be less than the checkpoint has.
    """

    item: Any = None
    restore_args: Any = None
    transforms: Any = None
    transforms_default_to_original: bool = True
    legacy_transform_fn: Callable[..., Any] | None = None
    partial_restore: bool = False

    def __post_init__(self) -> None:
        self.item = _tree(self.item)
        self.restore_args = _tree(self.restore_args)
        self.transforms = _tree(self.transforms)


@dataclasses.dataclass
class ArraySave(CheckpointArgs):
    """Saves one array or number."""

    item: Any
    save_args: Any = None


@dataclasses.dataclass
class ArrayRestore(CheckpointArgs):
    """Restores one array or number; restore_args: one `RestoreArgs`."""

    item: Any = None
    restore_args: Any = None


@dataclasses.dataclass
class JsonSave(CheckpointArgs):
    """Saves what JSON holds."""

    item: Any


@dataclasses.dataclass
class JsonRestore(CheckpointArgs):
    """Restores what JsonSave saved. `item` is not used."""

    item: Any = None


@dataclasses.dataclass
class ProtoSave(CheckpointArgs):
    """Saves a protocol buffer, as text."""

    item: Any


@dataclasses.dataclass
class ProtoRestore(CheckpointArgs):
    """Restores a protocol buffer; `item` is its class."""

    item: Any


@dataclasses.dataclass
class JaxRandomKeySave(CheckpointArgs):
    """Saves one JAX random key, typed or not."""

    item: Any
    save_args: Any = None


@dataclasses.dataclass
class JaxRandomKeyRestore(CheckpointArgs):
    """Restores one JAX random key."""

    restore_args: Any = None


@dataclasses.dataclass
class NumpyRandomKeySave(CheckpointArgs):
    """Saves what `numpy.random.get_state` returns, a tuple or a dict."""

    item: Any


@dataclasses.dataclass
class NumpyRandomKeyRestore(CheckpointArgs):
    """Restores what NumpyRandomKeySave saved."""


_OURS = {cls.__name__ + "Args": cls for cls in (
    ArrayRestore, ArraySave, JaxRandomKeyRestore, JaxRandomKeySave, JsonRestore, JsonSave,
    NumpyRandomKeyRestore, NumpyRandomKeySave, ProtoRestore, ProtoSave, PyTreeRestore, PyTreeSave,
    StandardRestore, StandardSave)}


def ours(args: Any) -> Any:
    """Arguments that Orbax's own classes hold as ours; what other libraries defined stays."""
    registry = sys.modules.get("orbax.checkpoint.checkpoint_args")
    if registry is None:
        return args
    if isinstance(args, Composite):
        return Composite(**{name: ours(each) for name, each in args.items()})
    if not isinstance(args, registry.CheckpointArgs):
        return args
    if not type(args).__module__.startswith("orbax.checkpoint."):
        return args
    if type(args).__name__ == "CompositeArgs":
        return Composite(**{name: ours(each) for name, each in args.items()})
    cls = _OURS.get(type(args).__name__)
    if cls is None:
        return args
    return cls(**{field.name: getattr(args, field.name) for field in dataclasses.fields(cls)})
