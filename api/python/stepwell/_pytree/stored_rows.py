# SPDX-License-Identifier: Apache-2.0
"""Turns stored leaves into rows to save: with their containers, shardings and generators of keys,
whether the libraries that they come from are imported or not."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from .._stepwell import Row, RowTag, StepTree, Wanted
from .dtypes import NUMBERS
from .records import ARRAY, NODE, VALUE
from .tree import Path

Read = Callable[[list[Wanted]], list[Any]]


def stored_rows(tree: StepTree, number: int, path: Path, read: Read) -> list[Row]:
    """Rows of the record `number` and of all below it, at `path`. The arrays are read at once."""
    rows: list[Row] = []
    leaves: list[tuple[Row, int]] = []
    records = tree.records
    stack = [(number, path)]
    while stack:
        number, path = stack.pop()
        record = records[number]
        if record.kind == NODE:
            row = Row(path, RowTag.NODE)
            row.container, row.type_name = record.container, record.type_name
            children = tree.children(number)
            row.child_count = len(children)
            stack += [(child, (*path, component))
                      for component, child in reversed(children.items())]
        elif record.kind == VALUE:
            row = Row(path, RowTag.VALUE, b"", value_type=record.value_type)
            leaves.append((row, number))
        else:
            row = Row(path, RowTag.SHARDS, [], NUMBERS[record.dtype], record.value_type)
            row.weak_type, row.prng_impl = record.weak_type, record.prng_impl
            row.sharding = record.sharding
            leaves.append((row, number))
        row.variable_types = record.variable_types
        rows.append(row)
    for (row, number), raw in zip(leaves, read([Wanted(leaf) for _, leaf in leaves]), strict=True):
        if records[number].kind == ARRAY:
            _set_shards(row, raw, records[number].shard_shape)
        else:
            row.data = raw
    return rows


def _set_shards(row: Row, array: Any, shard_shape: tuple[int, ...]) -> None:
    row.shape = array.shape
    if not shard_shape or tuple(shard_shape) == array.shape or not array.size:
        row.data = [array]
        return
    row.shard_shape = tuple(shard_shape)
    row.origins = tuple(itertools.product(*[
        range(0, extent, size) for extent, size in zip(array.shape, shard_shape, strict=True)]))
    row.data = [array[tuple([slice(at, at + size)
                             for at, size in zip(origin, shard_shape, strict=True)])]
                for origin in row.origins]
