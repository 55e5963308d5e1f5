# SPDX-License-Identifier: Apache-2.0
"""`metadata`: what checkpoints hold, without their data."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from .libraries import jax_module


@dataclasses.dataclass
class Metadata:
    """Of one leaf."""

    name: str
    directory: Any


@dataclasses.dataclass(frozen=True)
class StorageMetadata:
    """How an array is stored."""

    chunk_shape: tuple[int, ...] | None
    write_shape: tuple[int, ...] | None = None


@dataclasses.dataclass(frozen=True)
class ShardingMetadata:
    """The sharding that an array was saved with, in Orbax's words (JSON)."""

    text: str

    def to_jax_sharding(self) -> Any:
        """As a jax.sharding.Sharding. ValueError if its devices are not here."""
        from .shardings import parse_sharding

        sharding = parse_sharding(self.text)
        if sharding is None:
            raise ValueError(f"the devices of this sharding are not here: {self.text}")
        return sharding


@dataclasses.dataclass
class ArrayMetadata(Metadata):
    """Of an array. It is a leaf of restore targets as well: shape and dtype of the result."""

    shape: tuple[int, ...]
    sharding: ShardingMetadata | None
    dtype: Any
    storage: StorageMetadata | None = None


@dataclasses.dataclass
class ScalarMetadata(ArrayMetadata):
    """Of a Python number."""

    shape: tuple[int, ...] = ()
    sharding: ShardingMetadata | None = None
    dtype: Any = None


@dataclasses.dataclass
class StringMetadata(Metadata):
    """Of a str."""


def kind_of(value: object) -> str | None:
    """"array", "scalar" or "string" for metadata of a leaf, ours or Orbax's own; else None."""
    names = {cls.__name__ for cls in type(value).__mro__}
    for name, kind in (("StringMetadata", "string"), ("ScalarMetadata", "scalar"),
                       ("ArrayMetadata", "array")):
        if name in names:
            return kind
    return None


@dataclasses.dataclass
class StepMetadata:
    """Of a step: its items, metrics, times and custom metadata."""

    item_handlers: dict[str, str | None] | str | None = None
    item_metadata: Any = None
    metrics: dict[str, Any] = dataclasses.field(default_factory=dict)
    performance_metrics: dict[str, Any] = dataclasses.field(default_factory=dict)
    init_timestamp_nsecs: int | None = None
    commit_timestamp_nsecs: int | None = None
    custom_metadata: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class RootMetadata:
    """Of a manager's root: what `CheckpointManager(metadata=)` was given."""

    internal_metadata: dict[str, Any] | None = dataclasses.field(default_factory=dict)
    custom_metadata: dict[str, Any] | None = dataclasses.field(default_factory=dict)


class TreeMetadata:
    """Of a pytree: `tree` has metadata in place of each leaf. It is a pytree and a mapping
    (or sequence) itself, and a target for restoring."""

    def __init__(self, *, tree: Any, custom_metadata: Any = None, use_zarr3: bool = False) -> None:
        self._tree = tree
        self._custom_metadata = custom_metadata
        self._use_zarr3 = use_zarr3
        _register()

    @classmethod
    def build(cls, tree: Any, *, custom_metadata: Any = None, use_zarr3: bool = False
              ) -> TreeMetadata:
        return cls(tree=tree, custom_metadata=custom_metadata, use_zarr3=use_zarr3)

    @property
    def tree(self) -> Any:
        return self._tree

    @property
    def custom_metadata(self) -> Any:
        return self._custom_metadata

    @property
    def use_zarr3(self) -> bool:
        return self._use_zarr3

    def __getitem__(self, key: str | int) -> Any:
        return self._tree[key]

    def __contains__(self, key: object) -> bool:
        return key in self._tree

    def __len__(self) -> int:
        return len(self._tree)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._tree)

    def get(self, key: Any, default: Any = None) -> Any:
        try:
            return self._tree[key]
        except (KeyError, IndexError):
            return default

    def keys(self) -> Any:
        return self._tree.keys()

    def values(self) -> Any:
        return self._tree.values()

    def items(self) -> Any:
        return self._tree.items()

    def __repr__(self) -> str:
        return (f"TreeMetadata(\n  custom_metadata={self._custom_metadata}\n"
                f"  tree={self._tree}\n  use_zarr3={self._use_zarr3}\n)")


@functools.cache
def _register() -> None:
    """Makes TreeMetadata a pytree of JAX, with the paths of the tree in it."""
    jax = jax_module()

    def flatten_with_keys(metadata: TreeMetadata) -> Any:
        tree, aux = metadata.tree, (metadata.custom_metadata, metadata.use_zarr3)
        if isinstance(tree, dict):
            keys = sorted(tree)
            return ([(jax.tree_util.DictKey(key), tree[key]) for key in keys],
                    ("dict", tuple(keys), _Opaque(aux)))
        if isinstance(tree, (list, tuple)):
            return ([(jax.tree_util.SequenceKey(i), each) for i, each in enumerate(tree)],
                    (type(tree).__name__, (), _Opaque(aux)))
        return [(jax.tree_util.GetAttrKey("tree"), tree)], ("leaf", (), _Opaque(aux))

    def flatten(metadata: TreeMetadata) -> Any:
        children, aux = flatten_with_keys(metadata)
        return [child for _, child in children], aux

    def unflatten(aux: Any, children: Any) -> TreeMetadata:
        kind, keys, opaque = aux
        children = list(children)
        tree: Any = children
        if kind == "dict":
            tree = dict(zip(keys, children, strict=True))
        elif kind == "tuple":
            tree = tuple(children)
        elif kind == "leaf":
            (tree,) = children
        custom_metadata, use_zarr3 = opaque.value
        return TreeMetadata(tree=tree, custom_metadata=custom_metadata, use_zarr3=use_zarr3)

    jax.tree_util.register_pytree_with_keys(TreeMetadata, flatten_with_keys, unflatten, flatten)


class _Opaque:
    """Auxiliary data of a pytree that never makes two of them differ."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Opaque)

    def __hash__(self) -> int:
        return 0


def scalar_dtype(value_type: type[Any]) -> Any:
    return np.dtype({bool: np.bool_, int: np.int64, float: np.float64,
                     complex: np.complex128}[value_type])
