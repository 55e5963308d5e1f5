# SPDX-License-Identifier: Apache-2.0
"""Elements of a stored array, as NumPy's basic slices name them, in pieces that memory holds."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from .._load.slicing import parts_of
from .._text import counted
from .._views import ArrayView
from ..errors import InvalidArgumentError

EDGE = 3  # elements at each end of an axis that NumPy prints of a large array


class Taken(NamedTuple):
    """The part taken of one axis. is_index: the result lacks the axis."""

    numbers: range
    is_index: bool = False


def parse(text: str, shape: tuple[int, ...]) -> list[Taken]:
    """ "0:16, :, -1", "::2", "..., 3", with or without brackets. InvalidArgumentError says which
    part is wrong, and why."""
    inner = text.strip()
    if inner.startswith("[") and inner.endswith("]"):
        inner = inner[1:-1]
    parts = [part.strip() for part in inner.split(",")]
    if len(parts) > 1 and not parts[-1]:
        parts.pop()  # "1,"
    if parts == [""]:
        raise InvalidArgumentError("--slice is empty; \"...\" takes everything")
    if parts.count("...") > 1:
        raise InvalidArgumentError('--slice has more than one "..."')
    named = len(parts) - parts.count("...")
    if named > len(shape):
        raise InvalidArgumentError(
            f"--slice names {counted(named, 'axis')}; the array has {len(shape)}")
    if "..." not in parts:
        parts.append("...")
    at = parts.index("...")
    parts[at:at + 1] = [":"] * (len(shape) - named)
    return [_taken(part, axis, extent) for axis, (part, extent) in
            enumerate(zip(parts, shape, strict=True))]


def _taken(part: str, axis: int, extent: int) -> Taken:
    fields = [field.strip() for field in part.split(":")]
    if len(fields) > 3:
        raise InvalidArgumentError(f'--slice: "{part}" has more than two colons')
    if not all(re.fullmatch(r"[+-]?[0-9]+", field) or (not field and len(fields) > 1)
               for field in fields):
        raise InvalidArgumentError(f'--slice: "{part}" is not an index, START:STOP:STEP or ...')
    numbers = [int(field) if field else None for field in fields]
    if len(numbers) == 1:
        index = numbers[0]
        assert index is not None
        if not -extent <= index < extent:
            raise InvalidArgumentError(f"--slice: index {index} is out of bounds for axis {axis} "
                                       f"with {counted(extent, 'element')}")
        return Taken(range(index % extent, index % extent + 1), True)
    if numbers[2:] == [0]:
        raise InvalidArgumentError(f"--slice: axis {axis} has step 0")
    return Taken(range(*slice(*numbers).indices(extent)))


def shape_of(taken: list[Taken]) -> tuple[int, ...]:
    """Returns the shape of the result."""
    return tuple([len(each.numbers) for each in taken if not each.is_index])


def read(view: ArrayView, taken: list[Taken]) -> np.ndarray[Any, Any]:
    """All of it at once; reads the chunks that have it."""
    return np.asarray(view[index_of(taken)])


def index_of(taken: list[Taken]) -> tuple[Any, ...]:
    """The index that takes it of an array, as an array."""
    return (*[each.numbers[0] if each.is_index else _slice(each.numbers) for each in taken], ...)


def _slice(numbers: range) -> slice:
    if not numbers:
        return slice(0, 0)
    end = numbers[-1] + (1 if numbers.step > 0 else -1)
    return slice(numbers[0], None if end < 0 else end, numbers.step)


def pieces(view: ArrayView, taken: list[Taken]) -> Iterator[list[Taken]]:
    """Parts that follow each other in C order, of about PART_BYTES (`parts_of`)."""
    for part in parts_of([each.numbers for each in taken], view.dtype.itemsize, view.chunk_shape):
        yield [each._replace(numbers=numbers) if numbers is not each.numbers else each
               for each, numbers in zip(taken, part, strict=True)]


def corners(view: ArrayView, taken: list[Taken]) -> np.ndarray[Any, Any]:
    """An array that NumPy prints as it would print all of it, where it leaves out the middle of
    long axes: one element stands for each such middle."""
    blocks = []
    extents = []
    for each in taken:
        numbers = each.numbers
        is_long = len(numbers) > 2 * EDGE
        if not each.is_index:
            extents.append(2 * EDGE + 1 if is_long else len(numbers))
        blocks.append([(numbers[:EDGE], slice(0, EDGE)),
                       (numbers[-EDGE:], slice(EDGE + 1, None))] if is_long else
                      [(numbers, slice(None))])
    out = np.zeros(extents, view.dtype)
    for block in itertools.product(*blocks):
        to = tuple([place for (_, place), each in zip(block, taken, strict=True)
                    if not each.is_index])
        out[to] = read(view, [each._replace(numbers=part) for (part, _), each in
                              zip(block, taken, strict=True)])
    return out


def count_of(taken: list[Taken]) -> int:
    return math.prod([len(each.numbers) for each in taken])
