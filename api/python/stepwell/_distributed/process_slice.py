# SPDX-License-Identifier: Apache-2.0
"""What one of many processes writes of a step: its part.

Arrays that are spread over processes are dealt out box by box (shard_ownership.py). Everything else
is the same on all processes, by contract, and written by the first: the tree's containers, Python's
values, NumPy arrays, and jax arrays that each process has for itself. One on a mesh of one process
alone may be either; that process writes it, and where the first has one, too, that one counts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .._pytree.chunks import Chunks, Wish, wishes
from .._pytree.sharding import Layout
from .._pytree.tree import (NODE, SHARDS, VALUE, Flattener, Row, SpreadLeaf, name_in_items,
                            walk_items)
from ..errors import UnsupportedLeafError
from .shard_ownership import Box, Spread, owners


class Part(NamedTuple):
    rows: list[tuple[str, list[Row]]]  # of each item
    wishes: list[Wish]  # about these rows
    outline: list[str]  # the whole tree in words, the same on all processes: "path: what it is"


def part_of(items: dict[str, Any], process: int, chunks: Chunks | None) -> Part:
    """What `process` writes. Raises as flatten_items."""
    flats = walk_items(items, spread=True)
    only_state = list(items) == ["state"]
    outline: list[str] = []
    for name, flat in flats:
        arrays = {leaf.row: leaf.array for leaf in flat.spread}
        _check(name, flat, only_state)
        outline += [f"{name_in_items(name, row[0], only_state) or name}: "
                    f"{_words(row, arrays.get(number))}" for number, row in enumerate(flat.rows)]
    asked = wishes(chunks, [(name, flat.rows) for name, flat in flats])
    # What is on one process alone looks different there: the others must not count it, either.
    leaves = [leaf for _, flat in flats for leaf in flat.spread if len(_processes(leaf.array)) > 1]
    dealt = iter(owners([Spread(tuple(leaf.array.shape), leaf.array.dtype.itemsize,
                                leaf.array.sharding) for leaf in leaves]))
    rows: list[tuple[str, list[Row]]] = []
    places: dict[tuple[int, int], int] = {}  # (item, row of the tree) to its row here
    for number, (name, flat) in enumerate(flats):
        elsewhere = set()
        layout: Layout | None
        for leaf in flat.spread:
            alone = len(_processes(leaf.array)) == 1
            layout = None if alone else _layout(leaf, next(dealt), process)
            if layout is None:
                elsewhere.add(leaf.row)
            else:
                flat.complete(leaf, layout)
        own = {leaf.row for leaf in flat.spread} | flat.meshes
        kept: list[Row] = []
        for row_number, row in enumerate(flat.rows):
            if row_number not in elsewhere and (process == 0 or row_number in own):
                places[number, row_number] = len(kept)
                kept.append(row)
        rows.append((name, kept))
    # Copies from other devices are on their way for all of them before the first is waited for.
    for _, flat in flats:
        flat.finish()
    return Part(rows, [(item, places[item, row], max_bytes, axes)
                       for item, row, max_bytes, axes in asked if (item, row) in places], outline)


def _words(row: Row, spread: Any) -> str:
    """What must be the same on all processes of a leaf or container; without ": ". `spread`: the
    array, if it has parts on several."""
    if row[1] == NODE:
        return f"container {row[2]} {row[3]}".rstrip()
    if row[1] == VALUE:
        return f"value of type {row[2]}"
    if spread is not None and len(_processes(spread)) > 1:
        return f"{spread.dtype}{list(spread.shape)} {row[7]}".rstrip().replace(": ", ":")
    array = spread if spread is not None else row[2][0] if row[1] == SHARDS else row[2]
    shape = row[8] if row[1] == SHARDS else array.shape
    return f"{array.dtype}{list(shape)}"


def _processes(array: Any) -> set[int]:
    return {device.process_index for device in array.sharding.device_set}


def _check(item: str, flat: Flattener, only_state: bool) -> None:
    for leaf in flat.spread:
        if not leaf.info.is_mesh:
            text = name_in_items(item, flat.rows[leaf.row][0], only_state)
            (process,) = _processes(leaf.array)
            raise UnsupportedLeafError(
                f"cannot save {text or 'the state itself'}: it is on one device of process "
                f"{process}, which cannot know that the others have it, too; give it a "
                "NamedSharding", [text])


def _layout(leaf: SpreadLeaf, boxes: list[Box], process: int) -> Layout | None:
    """The boxes that `process` writes; None: nothing, not even that there is such an array, which
    is the first process's to say."""
    array = leaf.array
    if not boxes:  # no elements
        return Layout((), (), None) if process == 0 else None
    mine = {box.origin for box in boxes if box.owner == process}
    numbers: dict[tuple[int, ...], int] = {}
    for number, shard in enumerate(array.addressable_shards):
        origin = tuple([part.start or 0 for part in shard.index])
        if origin in mine:
            numbers.setdefault(origin, number)
    if not numbers and process != 0:
        return None
    return Layout(tuple(numbers.values()), tuple(numbers),
                  tuple(array.sharding.shard_shape(array.shape)))
