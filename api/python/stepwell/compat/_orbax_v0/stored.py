# SPDX-License-Identifier: Apache-2.0
"""An item of a step as Orbax names it: leaves by their names, containers as Orbax gives them.

Orbax has strings for all keys, lists for tuples, dicts for namedtuples and objects, and a level
`value` for each Variable of NNX; of what it calls empty it keeps {}, [], () and None.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from ..._load.source import Source
from ..._pytree.records import ARRAY, VALUE
from ..._pytree.tree import INDEX, KEY
from ..._stepwell import ContainerKind, Record, ValueType
from .metadata import (ArrayMetadata, ScalarMetadata, ShardingMetadata, StorageMetadata,
                       StringMetadata, TreeMetadata, scalar_dtype)

Names = tuple[str, ...]

PYTHON_TYPES: dict[int, type[Any]] = {
    ValueType.INT: int, ValueType.FLOAT: float, ValueType.BOOL: bool, ValueType.STR: str,
    ValueType.BYTES: bytes, ValueType.COMPLEX: complex}


class StoredItem:
    """One item of an opened step. KeyError if the step does not have it."""

    def __init__(self, source: Source, name: str) -> None:
        self.source = source
        self.tree = source.tree
        self.name = name
        self.number = self.tree.children[-1][(KEY, name)]

    def record(self, number: int) -> Record:
        return self.tree.records[number]

    @functools.cached_property
    def leaves(self) -> dict[Names, int]:
        """Numbers of the leaves by name; None, which Orbax calls empty, is none."""
        found: dict[Names, int] = {}
        self._collect(self.number, (), found)
        return found

    def _collect(self, number: int, names: Names, found: dict[Names, int]) -> None:
        record = self.record(number)
        names = (*names, *["value"] * len(record.variable_types.split()))
        if self.tree.is_node(number):
            for (_, key), child in self.tree.children[number].items():
                self._collect(child, (*names, str(key)), found)
        elif not is_none(record):
            found[names] = number

    def build(self, value_of: Callable[[int], Any]) -> Any:
        """The item in the containers that Orbax restores without a target."""
        return self._build(self.number, value_of)

    def _build(self, number: int, value_of: Callable[[int], Any]) -> Any:
        record = self.record(number)
        if not self.tree.is_node(number):
            built = None if is_none(record) else value_of(number)
        else:
            children = self.tree.children[number]
            below = [self._build(child, value_of) for child in children.values()]
            if not children:
                built = _empty(record)
            elif all(kind == INDEX for kind, _ in children):
                built = below
            else:
                built = dict(zip([str(key) for _, key in children], below, strict=True))
        for _ in record.variable_types.split():
            built = {"value": built}
        return built

    def metadata(self, directory: Any, custom_metadata: Any) -> TreeMetadata:
        names = {number: name for name, number in self.leaves.items()}
        tree = self.build(lambda number: _leaf_metadata(
            self.record(number), ".".join(names[number]), directory))
        return TreeMetadata(tree=tree, custom_metadata=custom_metadata)


def is_none(record: Record) -> bool:
    return record.kind == VALUE and record.value_type == ValueType.NONE


def _empty(record: Record) -> Any:
    empty: Mapping[Any, Any] = {ContainerKind.LIST: [], ContainerKind.TUPLE: (),
                                ContainerKind.DICT: {}}
    return empty.get(record.container)


def _leaf_metadata(record: Record, name: str, directory: Any) -> Any:
    if record.kind == ARRAY:
        sharding = ShardingMetadata(record.sharding) if record.sharding else None
        storage = StorageMetadata(tuple(record.chunk_shape),
                                  tuple(record.shard_shape) if record.shard_shape else None)
        return ArrayMetadata(name, directory, tuple(record.shape), sharding, record.dtype, storage)
    kind = PYTHON_TYPES[record.value_type]
    if kind in (str, bytes):
        return StringMetadata(name, directory)
    return ScalarMetadata(name, directory, dtype=scalar_dtype(kind))
