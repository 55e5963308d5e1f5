# SPDX-License-Identifier: Apache-2.0
"""Basic indices of a stored array: the chunks that hold what they take are read, no others.

Along an axis that is taken in strides each chunk's part is a box of its own, so that chunks between
them stay unread; the boxes are read in batches of about `BATCH_BYTES`, one ahead.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from types import EllipsisType
from typing import Any, NamedTuple, SupportsIndex

import numpy as np

from .._stepwell import LoadStats, Record, Wanted
from .._text import counted
from .source import Source, in_batches

Index = SupportsIndex | slice | EllipsisType | None

BATCH_BYTES = 64 << 20
PART_BYTES = 32 << 20


def read_slice(source: Source, number: int, index: tuple[Any, ...]) -> Any:
    """Returns the result that NumPy gives for `array[index]`."""
    axes, local = axes_of(source.tree.records[number].shape, index)
    if all(axis.step == 1 for axis in axes):
        box = source.read(number, [axis.start for axis in axes], [axis.stop for axis in axes])
    else:
        box = _read_strided(source, number, axes)
    return box[local]


def axes_of(shape: tuple[int, ...], index: tuple[Any, ...]) -> tuple[list[range], tuple[Any, ...]]:
    """Returns the part taken of each axis, ascending, and the index that makes the result of it."""
    named = sum(1 for part in index if part is not None and part is not Ellipsis)
    dots = sum(1 for part in index if part is Ellipsis)
    if dots > 1:
        raise IndexError("an index can have only one ellipsis ('...')")
    if named > len(shape):
        raise IndexError(f"too many indices: the array has {counted(len(shape), 'axis')}, not "
                         f"{named}")
    if not dots:
        index = (*index, Ellipsis)
    axes: list[range] = []
    local: list[Any] = []
    for part in index:
        if part is None:
            local.append(None)
        elif part is Ellipsis:
            # Kept in the local index: with it NumPy gives an array even when no axis is left.
            if dots:
                local.append(Ellipsis)
            for extent in shape[len(axes):len(axes) + len(shape) - named]:
                axes.append(range(extent))
                if not dots:
                    local.append(slice(None))
        elif isinstance(part, slice):
            wanted = range(*part.indices(shape[len(axes)]))
            axes.append(_ascending(wanted))
            local.append(slice(None, None, -1 if wanted.step < 0 else None))
        else:
            extent = shape[len(axes)]
            number = _integer(part)
            if not -extent <= number < extent:
                raise IndexError(f"index {number} is out of bounds for axis {len(axes)} with size "
                                 f"{extent}")
            axes.append(range(number % extent, number % extent + 1))
            local.append(0)
    return axes, tuple(local)


def _ascending(wanted: range) -> range:
    """The same numbers; with a step of 1 where there are less than two of them."""
    if len(wanted) < 2:
        return range(wanted[0], wanted[0] + 1) if wanted else range(0)
    if wanted.step < 0:
        wanted = wanted[::-1]
    return range(wanted.start, wanted[-1] + 1, wanted.step)


def _integer(part: Any) -> int:
    try:
        if not isinstance(part, (bool, np.bool_)):
            return operator.index(part)
    except TypeError:
        pass
    raise TypeError("a stored array takes ints, slices, ... and None; for lists and masks read it "
                    "first: np.asarray(view)[...]")


class _Piece(NamedTuple):
    """One chunk's part of an axis, and its place in the result."""

    taken: range
    to: slice


class Box(NamedTuple):
    """A box that is read, what is taken of it, and its place in the result."""

    start: list[int]
    stop: list[int]
    taken: tuple[slice, ...]
    to: tuple[slice, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple([stop - start for start, stop in zip(self.start, self.stop, strict=True)])


def boxes_of(record: Record, axes: list[range]) -> Iterator[Box]:
    """Along an axis that is taken in strides a box for each chunk."""
    shards = record.shard_shape or record.shape
    pieces = [[_Piece(axis, slice(None))] if axis.step == 1 else list(_pieces(axis, shard, chunk))
              for axis, shard, chunk in zip(axes, shards, record.chunk_shape, strict=True)]
    for box in itertools.product(*pieces):
        yield Box([piece.taken.start for piece in box], [piece.taken.stop for piece in box],
                  tuple([slice(None, None, piece.taken.step) for piece in box]),
                  tuple([piece.to for piece in box]))


def _read_strided(source: Source, number: int, axes: list[range]) -> np.ndarray[Any, Any]:
    record = source.tree.records[number]
    out = np.empty([len(axis) for axis in axes], record.dtype)
    batches = in_batches(boxes_of(record, axes),
                         lambda box: record.dtype.itemsize * math.prod(box.shape), BATCH_BYTES)
    wanted = [[Wanted(number, box.start, box.stop) for box in batch] for batch in batches]
    total = LoadStats()
    order = iter(batches)
    for raws, stats in source.read_batches(wanted):
        total += stats
        for box, raw in zip(next(order, []), raws, strict=True):
            out[box.to] = raw[box.taken]
    source.account(total)
    return out


def parts_of(axes: list[range], itemsize: int, chunk_shape: Sequence[int]
             ) -> Iterator[list[range]]:
    """What is taken of the axes in parts that follow each other in C order, of about PART_BYTES; on
    borders of chunks where they can end there, so that no chunk is read twice."""
    if any(len(axis) == 0 for axis in axes):
        return
    inner = itemsize  # bytes below one index of `cut`
    cut = len(axes)
    while cut > 0 and inner * len(axes[cut - 1]) <= PART_BYTES:
        cut -= 1
        inner *= len(axes[cut])
    if cut == 0:
        yield axes
        return
    cut -= 1  # the axis that is cut; those before it go index by index
    for above in itertools.product(*axes[:cut]):
        outer = [range(number, number + 1) for number in above]
        for part in _cut(axes[cut], max(1, PART_BYTES // inner), chunk_shape[cut]):
            yield [*outer, part, *axes[cut + 1:]]


def _cut(numbers: range, count: int, chunk: int) -> Iterator[range]:
    done = 0
    while done < len(numbers):
        end = min(done + count, len(numbers))
        if end < len(numbers) and numbers.step == 1:
            border = numbers[end] // chunk * chunk - numbers.start
            end = border if border > done else end
        yield numbers[done:end]
        done = end


def _pieces(axis: range, shard: int, chunk: int) -> Iterator[_Piece]:
    done = 0
    while done < len(axis):
        first = axis[done]
        begin = first // shard * shard  # of the shard; its chunks are counted from there
        end = min(begin + ((first - begin) // chunk + 1) * chunk, begin + shard)
        count = min((end - first + axis.step - 1) // axis.step, len(axis) - done)
        taken = axis[done:done + count]
        yield _Piece(range(first, taken[-1] + 1, axis.step), slice(done, done + count))
        done += count
