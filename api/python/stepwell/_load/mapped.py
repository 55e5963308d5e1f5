# SPDX-License-Identifier: Apache-2.0
"""A step under other names, and with arrays that are made of stored ones (`rename=`)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from .._mapping import Box, Tensor, whole
from .._pytree.records import ARRAY
from .._renaming import Named, Rule, renamed
from .._stepwell import LoadStats, Record, StepTree, ValueType, Wanted
from ..errors import AmbiguousPathError, InvalidArgumentError, PathNotFoundError
from .device_placement import empty_aligned
from .source import Source


class MappedSource(Source):
    """A source with more leaves: arrays that are made of its own. Their numbers go on behind those
    of the tree. records: theirs, where they are asked for."""

    def __init__(self, source: Source, tensors: Sequence[Tensor], records: list[Record]) -> None:
        super().__init__(source.reader, source.check, source.account, source.tree)
        self.afterwards = source.afterwards
        self._source = source
        self._tensors = tensors
        self._more = records

    @property
    def records(self) -> list[Record]:
        return self.tree.records + self._more

    def read_boxes(self, wanted: list[Wanted]) -> tuple[list[Any], LoadStats]:
        boxes: list[Wanted] = []
        makers: list[Callable[[list[Any]], Any]] = []
        counts: list[int] = []
        own = len(self._source.tree)
        for each in wanted:
            if each.leaf < own:
                boxes.append(each)
                makers.append(lambda raws: raws[0])
                counts.append(1)
                continue
            tensor = self._tensors[each.leaf - own]
            start = tuple(each.start) if each.start is not None else (0,) * len(tensor.shape)
            stop = tuple(each.stop) if each.stop is not None else tensor.shape
            maker = _Maker(tensor, (start, stop), each.numa_node)
            boxes += maker.wanted()
            makers.append(maker)
            counts.append(len(maker.plan))
        raws, stats = self._source.read_boxes(boxes)
        made, at = [], 0
        for maker_, count in zip(makers, counts, strict=True):
            made.append(maker_(raws[at:at + count]))
            raws[at:at + count] = [None] * count  # its memory goes
            at += count
        return made, stats


class _Maker:
    """Makes a box of a tensor of the boxes of leaves that are in it."""

    def __init__(self, tensor: Tensor, box: Box, numa_node: int) -> None:
        self._tensor = tensor
        self._start, self._stop = box
        self._numa_node = numa_node
        self.plan = tensor.read_plan(*box)

    def wanted(self) -> list[Wanted]:
        return [Wanted(part.leaf, list(begin), list(end), self._numa_node)
                for part, _, (begin, end) in self.plan]

    def __call__(self, raws: list[Any]) -> Any:
        shape = tuple([stop - start for start, stop in zip(self._start, self._stop, strict=True)])
        out = empty_aligned(shape, self._tensor.dtype, self._numa_node)
        for (part, (first, last), _), raw in zip(self.plan, raws, strict=True):
            to = tuple([slice(low - start, high - start) for low, high, start
                        in zip(first, last, self._start, strict=True)])
            out[to] = part.arranged(raw)
        return out


def rearranged(source: Source, items: list[str] | None, rules: list[Rule], top: int
               ) -> tuple[Source, StepTree]:
    """The source's tree with some items only (None: all), and with what is below `top` under other
    names; and a source that reads it."""
    tree = source.tree
    records = tree.records
    named: Named = {}
    for number in tree.leaves(top) if rules else []:
        if items is not None and tree.components(number)[0][1] not in items:
            continue
        record = records[number]
        names = names_of(tree, number, top)
        if names in named:
            raise InvalidArgumentError(
                f"rename: two leaves are spelled {'/'.join(names)!r}, and no rule can tell them "
                "apart")
        named[names] = whole(number, record.dtype if record.kind == ARRAY else None, record.shape)
    after = renamed(rules, named, lambda pattern: check_there(tree, pattern, top))
    moves: list[tuple[int, int, tuple[str, ...], tuple[int, ...] | None]] = []
    tensors: list[Tensor] = []
    stay = set()
    for names, tensor in after.items():
        if named.get(names) is tensor:
            stay.add(tensor.leaf)
        elif tensor.is_whole:
            moves.append((tensor.leaf, tensor.leaf, names, None))
        else:
            if records[tensor.leaf].value_type == ValueType.PRNG_KEY:
                raise InvalidArgumentError(
                    f"rename: {tree.text(tensor.leaf)!r} has PRNG keys, which can only be renamed")
            moves.append((tensor.leaf, len(tree) + len(tensors), names, tensor.shape))
            tensors.append(tensor)
    taken = [tensor.leaf for tensor in named.values() if tensor.leaf not in stay]
    made = tree.rearranged(items, taken, moves, top)
    if not tensors:
        return source, made
    if source.collective:
        raise InvalidArgumentError("with local disks, rename can give names but not make arrays")
    numbers = {origin: number for number, origin in enumerate(made.origins or [])}
    more = [made.record(numbers[len(tree) + place]) for place in range(len(tensors))]
    return MappedSource(source, tensors, more), made


def names_of(tree: StepTree, number: int, top: int) -> tuple[str, ...]:
    """The components of a leaf's path from `top` on, as they are spelled."""
    return tuple([str(name) for _, name in tree.components(number, top)])


def check_there(tree: StepTree, pattern: str, top: int) -> None:
    """PathNotFoundError, which names what is near, if there is nothing at a pattern."""
    with contextlib.suppress(AmbiguousPathError):
        try:
            tree.resolve(pattern, None if top == tree.top else top)
        except PathNotFoundError as error:
            raise PathNotFoundError(f"rename: {error}") from None
