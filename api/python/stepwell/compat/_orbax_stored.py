# SPDX-License-Identifier: Apache-2.0
"""An item of a step as Orbax names it: leaves by their names, containers as Orbax gives them.

Orbax has strings for all keys, lists for tuples, dicts for namedtuples and objects, and a level
`value` for each Variable of NNX; of what it calls empty it keeps {}, [], () and None.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from orbax.checkpoint import metadata as orbax_metadata
# TreeMetadata has no public name; as a restore target it must be Orbax's.
from orbax.checkpoint._src.metadata.tree import build_default_tree_metadata

from .._load.source import Source
from .._pytree.records import ARRAY, ROOT, VALUE
from .._pytree.tree import INDEX, KEY
from .._stepwell import ContainerKind, Record, ValueType
from ._mismatch import check_names

Names = tuple[str, ...]

PYTHON_TYPES: dict[int, type[Any]] = {
    ValueType.INT: int, ValueType.FLOAT: float, ValueType.BOOL: bool, ValueType.STR: str,
    ValueType.BYTES: bytes, ValueType.COMPLEX: complex}
_DTYPES: dict[type[Any], Any] = {bool: np.bool_, int: np.int64, float: np.float64,
                                 complex: np.complex128}


class StoredItem:
    """One item of an opened step. KeyError if the step does not have it."""

    def __init__(self, source: Source, name: str) -> None:
        self.source = source
        self.tree = source.tree
        self.records = source.tree.records
        self.name = name
        self.number = self.tree.children(ROOT)[(KEY, name)]

    def record(self, number: int) -> Record:
        return self.records[number]

    @functools.cached_property
    def leaves(self) -> dict[Names, int]:
        """Numbers of the leaves by name; None, which Orbax calls empty, is none."""
        return {names: number for names, number in self._ends.items()
                if not (self.tree.is_node(number) or _is_none(self.record(number)))}

    @functools.cached_property
    def empties(self) -> dict[Names, Any]:
        """Returns the nodes that Orbax calls empty, by name."""
        return {names: _empty(self.record(number)) for names, number in self._ends.items()
                if names not in self.leaves}

    @functools.cached_property
    def _ends(self) -> dict[Names, int]:
        found: dict[Names, int] = {}
        self._collect(self.number, (), found)
        return found

    def _collect(self, number: int, names: Names, found: dict[Names, int]) -> None:
        names = (*names, *["value"] * len(self.record(number).variable_types.split()))
        children = self.tree.children(number)
        if not children:
            found[names] = number
        for (_, key), child in children.items():
            self._collect(child, (*names, str(key)), found)

    def build(self, value_of: Callable[[int], Any]) -> Any:
        """The item in the containers that Orbax restores without a target."""
        return self._build(self.number, value_of)

    def _build(self, number: int, value_of: Callable[[int], Any]) -> Any:
        record = self.record(number)
        children = self.tree.children(number)
        check_names(key for _, key in children)
        below = [self._build(child, value_of) for child in children.values()]
        built: Any
        if not children:
            is_leaf = not (self.tree.is_node(number) or _is_none(record))
            built = value_of(number) if is_leaf else _empty(record)
        elif all(kind == INDEX for kind, _ in children):
            built = below
        else:
            built = dict(zip([str(key) for _, key in children], below, strict=True))
        for _ in record.variable_types.split():
            built = {"value": built}
        return built

    def metadata(self, directory: Any, custom_metadata: Any) -> Any:
        """Orbax's TreeMetadata of the item."""
        names = {number: name for name, number in self.leaves.items()}
        tree = self.build(lambda number: _leaf_metadata(
            self.record(number), ".".join(names[number]), directory))
        return build_default_tree_metadata(tree, custom_metadata=custom_metadata)


def _is_none(record: Record) -> bool:
    return record.kind == VALUE and record.value_type == ValueType.NONE


def _empty(record: Record) -> Any:
    empty: Mapping[Any, Any] = {ContainerKind.LIST: [], ContainerKind.TUPLE: (),
                                ContainerKind.DICT: {}}
    return empty.get(record.container)


def scalar_dtype(value_type: int) -> Any:
    """The dtype that Orbax has for a Python number."""
    return np.dtype(_DTYPES[PYTHON_TYPES[value_type]])


def _leaf_metadata(record: Record, name: str, directory: Any) -> Any:
    if record.kind == ARRAY:
        storage = orbax_metadata.StorageMetadata(
            tuple(record.chunk_shape), tuple(record.shard_shape) if record.shard_shape else None)
        return orbax_metadata.ArrayMetadata(
            name=name, directory=directory, shape=tuple(record.shape),
            sharding=sharding_metadata(record.sharding), dtype=record.dtype, storage=storage)
    if PYTHON_TYPES[record.value_type] in (str, bytes):
        return orbax_metadata.StringMetadata(name=name, directory=directory)
    return orbax_metadata.ScalarMetadata(name=name, directory=directory,
                                         dtype=scalar_dtype(record.value_type))


# ---- shardings ----------------------------------------------------------------------------------


def sharding_metadata(text: str) -> Any:
    """A saved sharding (JSON) as Orbax's metadata of it; None for those that Orbax has none of."""
    with contextlib.suppress(KeyError, ValueError, TypeError):
        saved = json.loads(text)
        kind = {"NamedSharding": orbax_metadata.NamedShardingMetadata,
                "SingleDeviceSharding": orbax_metadata.SingleDeviceShardingMetadata}
        return kind[saved["sharding_type"]].from_deserialized_dict(saved)
    return None


def saved_sharding(text: str) -> Any:
    """A saved sharding over the devices that are here; None if some are not."""
    described = sharding_metadata(text)
    if described is None:
        return None
    with contextlib.suppress(ValueError, TypeError):
        sharding = described.to_jax_sharding()
        kind = json.loads(text).get("memory_kind")  # which Orbax's metadata leave out
        return sharding if kind is None else sharding.with_memory_kind(kind)
    return None
