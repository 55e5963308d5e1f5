# SPDX-License-Identifier: Apache-2.0
"""Arrays that are made of stored ones, element by element.

Transposing, taking apart, stacking and joining never change an element. So such an array consists
of boxes of stored arrays, each with its axes in another order. Reading a box of it reads the boxes
of the stored arrays that are in it, and no more; and which of its elements changed is known from
the stored chunks that did.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

Index = tuple[int, ...]
Box = tuple[Index, Index]  # start and stop


class Part(NamedTuple):
    """A box of a stored leaf in an array.

    leaf: its number in the step's tree.
    to, shape: the box in the array: its first element, and extents.
    axes: for each axis of the array that of the leaf; None for a new one, of extent 1.
    origin: the box's first element in the leaf. Axes that are not in `axes` have extent 1.
    """

    leaf: int
    to: Index
    shape: Index
    axes: tuple[int | None, ...]
    origin: Index

    @property
    def _end(self) -> Index:
        return tuple([to + extent for to, extent in zip(self.to, self.shape, strict=True)])

    def source_box(self, start: Index, stop: Index) -> tuple[Box, Box] | None:
        """The part of the array's box that is here, and its box in the leaf; None for nothing."""
        here = common((start, stop), (self.to, self._end))
        if here is None:
            return None
        first, last = here
        begin, end = list(self.origin), [at + 1 for at in self.origin]
        for at, to, low, high in zip(self.axes, self.to, first, last, strict=True):
            if at is not None:
                begin[at] = self.origin[at] + low - to
                end[at] = self.origin[at] + high - to
        return here, (tuple(begin), tuple(end))

    def box_of(self, start: Sequence[int], stop: Sequence[int]) -> Box | None:
        """The box in the array of a box of the leaf; None where that is not in the part."""
        for fixed, low, high in zip(range(len(self.origin)), start, stop, strict=True):
            if fixed not in self.axes and not low <= self.origin[fixed] < high:
                return None
        first, last = list(self.to), list(self._end)
        for axis, at in enumerate(self.axes):
            if at is not None:
                shift = self.to[axis] - self.origin[at]
                first[axis] = max(first[axis], start[at] + shift)
                last[axis] = min(last[axis], stop[at] + shift)
        return common((tuple(first), tuple(last)), (self.to, self._end))

    def arranged(self, raw: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """A box of the leaf as the array has it; a view."""
        kept = [at for at in self.axes if at is not None]
        fixed = [at for at in range(raw.ndim) if at not in kept]
        index: tuple[Any, ...] = (..., *[0] * len(fixed))
        taken: np.ndarray[Any, Any] = raw.transpose(kept + fixed)[index]
        return taken[tuple([None if at is None else slice(None) for at in self.axes])]


class Tensor(NamedTuple):
    """An array made of parts that fill it and do not overlap.

    leaf: one of those that it is made of; the record's other fields come from there.
    dtype: of all of them; None: it is a Python value, in one part.
    """

    leaf: int
    dtype: np.dtype[Any] | None
    shape: Index
    parts: tuple[Part, ...]

    @property
    def is_whole(self) -> bool:
        """True if it is a stored leaf as it is."""
        if len(self.parts) != 1:
            return False
        part = self.parts[0]
        return part.axes == tuple(range(len(part.origin))) and not any(part.origin) and (
            part.shape == self.shape)

    def read_plan(self, start: Index, stop: Index) -> list[tuple[Part, Box, Box]]:
        """For each part that is in the box: it, the box of this that it fills, and its own."""
        return [(part, *boxes) for part in self.parts
                if (boxes := part.source_box(start, stop)) is not None]


def whole(leaf: int, dtype: np.dtype[Any] | None, shape: Sequence[int]) -> Tensor:
    extents = tuple(shape)
    zeros = (0,) * len(extents)
    return Tensor(leaf, dtype, extents,
                  (Part(leaf, zeros, extents, tuple(range(len(extents))), zeros),))


def transposed(tensor: Tensor, axes: Sequence[int]) -> Tensor:
    def order(values: Sequence[Any]) -> tuple[Any, ...]:
        return tuple([values[axis] for axis in axes])

    return tensor._replace(shape=order(tensor.shape), parts=tuple([
        part._replace(to=order(part.to), shape=order(part.shape), axes=order(part.axes))
        for part in tensor.parts]))


def cut(tensor: Tensor, axis: int, start: int, stop: int) -> Tensor:
    """The elements start <= i < stop along an axis."""
    parts = []
    for part in tensor.parts:
        low, high = max(start, part.to[axis]), min(stop, part.to[axis] + part.shape[axis])
        if low >= high:
            continue
        origin, at = list(part.origin), part.axes[axis]
        if at is not None:
            origin[at] += low - part.to[axis]
        parts.append(part._replace(to=_with(part.to, axis, low - start),
                                   shape=_with(part.shape, axis, high - low),
                                   origin=tuple(origin)))
    return tensor._replace(shape=_with(tensor.shape, axis, stop - start), parts=tuple(parts))


def unstacked(tensor: Tensor, axis: int) -> list[Tensor]:
    """One for each index of the axis, without it."""
    made = []
    for number in range(tensor.shape[axis]):
        one = cut(tensor, axis, number, number + 1)
        made.append(one._replace(shape=_without(one.shape, axis), parts=tuple([
            part._replace(to=_without(part.to, axis), shape=_without(part.shape, axis),
                          axes=_without(part.axes, axis)) for part in one.parts])))
    return made


def stacked(tensors: Sequence[Tensor], axis: int) -> Tensor:
    """The inverse of `unstacked`; all have one shape and dtype."""
    parts = [part._replace(to=_insert(part.to, axis, number), shape=_insert(part.shape, axis, 1),
                           axes=_insert(part.axes, axis, None))
             for number, tensor in enumerate(tensors) for part in tensor.parts]
    first = tensors[0]
    return first._replace(shape=_insert(first.shape, axis, len(tensors)), parts=tuple(parts))


def joined(tensors: Sequence[Tensor], axis: int) -> Tensor:
    """One behind the other along an axis; all have one dtype, and otherwise one shape."""
    parts: list[Part] = []
    end = 0
    for tensor in tensors:
        parts += [part._replace(to=_with(part.to, axis, part.to[axis] + end))
                  for part in tensor.parts]
        end += tensor.shape[axis]
    return tensors[0]._replace(shape=_with(tensors[0].shape, axis, end), parts=tuple(parts))


def _with(values: tuple[Any, ...], axis: int, value: Any) -> tuple[Any, ...]:
    return (*values[:axis], value, *values[axis + 1:])


def _without(values: tuple[Any, ...], axis: int) -> tuple[Any, ...]:
    return (*values[:axis], *values[axis + 1:])


def _insert(values: tuple[Any, ...], axis: int, value: Any) -> tuple[Any, ...]:
    return (*values[:axis], value, *values[axis:])


def size_of(box: Box) -> int:
    """The number of its elements."""
    return math.prod([stop - start for start, stop in zip(*box, strict=True)])


def places_of(shape: Index, box: Box, inside: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Flat indices in an array of elements that are given as flat indices in a box of it."""
    start, stop = box
    extents = [high - low for low, high in zip(start, stop, strict=True)]
    if not extents:
        return inside
    index = np.unravel_index(inside, extents)
    return np.ravel_multi_index(
        [at + low for at, low in zip(index, start, strict=True)], shape)


def common(box: Box, other: Box) -> Box | None:
    """What is in both; None for nothing."""
    start = tuple(map(max, box[0], other[0]))
    stop = tuple(map(min, box[1], other[1]))
    return None if any(a >= b for a, b in zip(start, stop, strict=True)) else (start, stop)
