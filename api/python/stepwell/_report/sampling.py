# SPDX-License-Identifier: Apache-2.0
"""Elements of a stored array that a request may read: all that a slice takes, or evenly spaced
chunks of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from .._printed.selection import Taken, count_of, read
from .._views import ArrayView

READ_MAX = 64 << 20  # bytes of chunks, when loaded
_RUNS_MAX = 8  # of chunks that follow each other, of an axis that is read in part

Array = np.ndarray[Any, Any]


class Piece(NamedTuple):
    """Elements that were read: places on each axis of the slice, and what is there."""

    places: list[range]
    values: Array


class Sample(NamedTuple):
    """What was read of a slice. `note`: what is missing; None: nothing is."""

    shape: tuple[int, ...]  # of the slice
    pieces: list[Piece]
    note: str | None

    @property
    def elements(self) -> int:
        return sum([piece.values.size for piece in self.pieces])


def sample(view: ArrayView, taken: list[Taken]) -> Sample:
    """Reads what a slice takes, at most READ_MAX of chunks, or a single chunk."""
    blocks = [_blocks(each.numbers, chunk)
              for each, chunk in zip(taken, view.chunk_shape, strict=True)]
    chunk_bytes = max(1, math.prod(view.chunk_shape) * view.dtype.itemsize)
    counts = _thinned([len(each) for each in blocks], max(1, READ_MAX // chunk_bytes))
    chosen = [_runs(each, count) for each, count in zip(blocks, counts, strict=True)]
    pieces = list(_read(view, taken, chosen))
    shape = tuple([len(each.numbers) for each in taken if not each.is_index])
    total = math.prod([len(each) for each in blocks])
    part = math.prod(counts)
    note = None if part >= total else (
        f"{part:,} of {total:,} chunks were read, evenly spaced: all would take "
        f"{total * chunk_bytes:,} bytes")
    assert note is not None or sum([each.values.size for each in pieces]) == count_of(taken)
    return Sample(shape, pieces, note)


def _blocks(numbers: range, chunk: int) -> list[range]:
    """Places in `numbers`, those in one chunk together."""
    if not numbers:
        return []
    blocks = []
    begin = 0
    while begin < len(numbers):
        border = numbers[begin] // chunk * chunk
        distance = (border + chunk - 1 - numbers[begin] if numbers.step > 0 else
                    numbers[begin] - border)
        end = min(begin + distance // abs(numbers.step) + 1, len(numbers))
        blocks.append(range(begin, end))
        begin = end
    return blocks


def _thinned(counts: list[int], most: int) -> list[int]:
    """So many chunks of each axis that there are `most` in all."""
    kept = list(counts)
    while math.prod(kept) > most:
        axis = max(range(len(kept)), key=lambda i: kept[i])
        others = math.prod(kept) // kept[axis]
        kept[axis] = max(1, min(kept[axis] - 1, most // others))
    return kept


def _runs(blocks: Sequence[range], count: int) -> list[range]:
    """`count` of the blocks, in evenly spaced runs of blocks that follow each other."""
    if count >= len(blocks):
        return [range(0, blocks[-1].stop)] if blocks else []
    runs = min(count, _RUNS_MAX)
    chosen = []
    for run in range(runs):
        length = count * (run + 1) // runs - count * run // runs
        room = len(blocks) * (run + 1) // runs - len(blocks) * run // runs
        first = len(blocks) * run // runs + (room - length) // 2
        chosen.append(range(blocks[first].start, blocks[first + length - 1].stop))
    return chosen


def _read(view: ArrayView, taken: list[Taken], chosen: list[list[range]]) -> Iterator[Piece]:
    for places in itertools.product(*chosen):
        parts = [each._replace(numbers=each.numbers[place.start:place.stop])
                 for each, place in zip(taken, places, strict=True)]
        yield Piece([place for place, each in zip(places, taken, strict=True)
                     if not each.is_index], read(view, parts))
