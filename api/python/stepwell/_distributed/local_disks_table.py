# SPDX-License-Identifier: Apache-2.0
"""Reading a step of which each process has a part, and none all.

A process wants boxes of leaves, and has pieces of leaves. All processes exchange both lists, so
that a sender knows where its pieces go and a receiver knows what comes. Then every process reads
from its own part what any process wants, and the bytes are exchanged (exchange.py). Elements are
never converted on the way.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from .. import _stepwell
from .._load.device_placement import Box, empty_aligned
from .._load.source import ANY
from .._pytree.records import VALUE
from .._runtime.gc_pause import paused
from .._stepwell import LoadStats, StepTree, Wanted
from ..errors import CorruptionError
from .lockstep import Lockstep
from .messages import Value, Wants, pack, unpack

M = TypeVar("M")
T = TypeVar("T")


class Share(NamedTuple):
    """One part's share of a step."""

    part: int
    core: _stepwell.Core
    reader: _stepwell.Reader
    tree: StepTree

    @property
    def save_id(self) -> str:
        return self.reader.group.save_id.hex() if self.reader.group else ""


class _Piece(NamedTuple):
    """A box of a leaf that a part here has."""

    box: Box
    share: Share
    number: int  # of the leaf in that share


class _Cut(NamedTuple):
    """A piece's share of a box that is wanted."""

    leaf: int
    piece: int  # which one of the process that has it
    want: int  # which one of the process that wants it
    box: Box

    def within(self, box: Box) -> tuple[Any, ...]:
        """An index of an array that is `box`; gives a view for arrays without axes, too."""
        return (*[slice(start - begin, stop - begin)
                  for (start, stop), (begin, _) in zip(self.box, box, strict=True)], ...)


def _common(one: Box, other: Box) -> Box | None:
    box = tuple([(max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True)])
    return box if all(start < stop for start, stop in box) else None


def _lies_in(one: Box, other: Box) -> bool:
    return all(c <= a and b <= d for (a, b), (c, d) in zip(one, other, strict=True))


def _outermost(boxes: Iterable[Box]) -> list[Box]:
    """Without those that lie in others."""
    kept: list[Box] = []
    for _, equal in itertools.groupby(sorted(set(boxes), key=_count, reverse=True), _count):
        kept += [box for box in equal if not any(_lies_in(box, larger) for larger in kept)]
    return kept


def _shape(box: Box) -> tuple[int, ...]:
    return tuple([stop - start for start, stop in box])


def _count(box: Box) -> int:
    return math.prod(_shape(box))


def _box_received(box: list[list[int]]) -> Box:
    return tuple([(start, stop) for start, stop in box])


def _cuts(wants: Sequence[tuple[int, Box]], pieces: dict[int, list[Box]]) -> list[_Cut]:
    """In the same order for the sender and the receiver."""
    found = []
    for want, (leaf, box) in enumerate(wants):
        for number, piece in enumerate(pieces.get(leaf, ())):
            common = _common(box, piece)
            if common is not None:
                found.append(_Cut(leaf, number, want, common))
    return found


# Boxes that were read, by the numbers of a leaf and of its piece.
Memory = dict[tuple[int, int], dict[Box, Any]]


def _holding(memory: Memory, cut: _Cut) -> tuple[Box, Any]:
    boxes = memory[cut.leaf, cut.piece]
    box = cut.box if cut.box in boxes else next(box for box in boxes if _lies_in(cut.box, box))
    return box, boxes[box]


class Table:
    """The tree of a step, read by all processes together, each for what it wants."""

    def __init__(self, tree: StepTree, step: int, partial: Sequence[int],
                 alone: dict[int, int], shares: Sequence[Share], lockstep: Lockstep) -> None:
        """`tree`: of all parts. `partial`: leaves of which parts have pieces; `alone`: leaves
        that one part has, which is not part 0, with its number. All others are part 0's."""
        self._step = step
        self._what = f"loading step {step}"
        self._lockstep = lockstep
        self.tree = tree
        self._records = tree.records
        self._mine = self._pieces(set(partial), alone, shares)
        self._owned: list[dict[int, list[Box]]] | None = None  # by process, once gathered
        self._shared_error: BaseException | None = None  # the error that all processes know of

    # ---- records ----

    def _pieces(self, partial: set[int], alone: dict[int, int], shares: Sequence[Share]
                ) -> dict[int, list[_Piece]]:
        """Returns the pieces of each leaf that are here."""
        numbers = {key: number for number, key in enumerate(self.tree.keys())}
        found: dict[int, list[_Piece]] = {}
        for share in shares:
            boxes = share.tree.pieces()
            for number, key in enumerate(share.tree.keys()):
                leaf = numbers.get(key)
                if leaf is None or self.tree.is_node(leaf):
                    continue
                if leaf in partial:
                    have = [tuple([(start, start + extent) for start, extent
                                   in zip(box.origin, box.shape, strict=True)])
                            for box in boxes.get(number, ())]
                else:
                    have = [self._whole(leaf)] if share.part == alone.get(leaf, 0) else []
                pieces = [_Piece(box, share, number) for box in have if 0 not in _shape(box)]
                if pieces:
                    found.setdefault(leaf, []).extend(pieces)
        return found

    def _whole(self, leaf: int) -> Box:
        """A leaf as a box; values are their bytes."""
        record = self._records[leaf]
        shape = (record.logical_bytes,) if record.kind == VALUE else record.shape
        return tuple([(0, extent) for extent in shape])

    # ---- what all processes do ----

    def all_or_none(self, load: Callable[[], T]) -> T:
        try:
            value = load()
        except BaseException as error:
            if error is not self._shared_error:
                self._lockstep.abort(error)
            raise
        self._all_gather(Value)
        return value

    def _together(self, work: Callable[[], T]) -> T:
        """`work`, whose errors all processes know of."""
        try:
            return work()
        except BaseException as error:
            self._shared_error = error
            raise

    def _all_gather(self, work: Callable[[], M]) -> list[M]:
        return self._together(lambda: self._lockstep.all_gather(work, self._what))

    def _most(self, work: Callable[[], int]) -> int:
        """The largest of all processes' numbers."""
        return max([int(each.value) for each in self._all_gather(lambda: Value(work()))])

    def read_boxes(self, wanted: list[Wanted]) -> tuple[list[Any], LoadStats]:
        first, *_ = self.read_batches([wanted])
        return first

    def read_batches(self, batches: Sequence[list[Wanted]]
                     ) -> Iterator[tuple[list[Any], LoadStats]]:
        """Each as read_boxes gives it. Where other processes have more, nothing behind the last."""
        count = len(batches)
        most = self._most(lambda: count)
        for number in range(most):
            yield self._read(batches[number] if number < count else [])

    def _read(self, wanted: list[Wanted]) -> tuple[list[Any], LoadStats]:
        index = self._lockstep.index
        wants = [(leaf, self._whole(leaf) if start is None or stop is None
                  else tuple(zip(start, stop, strict=True)))
                 for leaf, start, stop in [(want.leaf, want.start, want.stop) for want in wanted]]
        with paused():
            everyones = self._gather_wants(wants)
            assert self._owned is not None
            sends = [_cuts(theirs, self._owned[index]) for theirs in everyones]
            takes = [_cuts(wants, pieces) for pieces in self._owned]
        memory: Memory = {}
        given: set[int] = set()  # arrays of `memory` that are some of `raws`
        raws: list[Any] = []
        stats = LoadStats()

        def ready() -> int:
            nonlocal stats
            self._check_whole(wants, takes)
            nodes = {(cut.leaf, cut.piece, cut.box): wanted[cut.want].numa_node
                     for cut in takes[index]}
            stats = self._read_own(sends, nodes, memory)
            raws.extend([None] * len(wants))
            for cut in takes[index]:
                box, array = _holding(memory, cut)
                if cut.box == box == wants[cut.want][1] and id(array) not in given:
                    given.add(id(array))
                    raws[cut.want] = array  # just what was read
            return max([sum(_count(cut.box) * self._dtype(cut.leaf).itemsize for cut in cuts)
                        for process, cuts in enumerate(sends) if process != index], default=0)

        most = self._most(ready)
        for want, (leaf, box) in enumerate(wants):
            if raws[want] is None:
                raws[want] = empty_aligned(_shape(box), self._dtype(leaf), wanted[want].numa_node)
        outgoing = [[array[cut.within(box)] for cut in cuts
                     for box, array in [_holding(memory, cut)]] for cuts in sends]
        incoming = [[raws[cut.want][cut.within(wants[cut.want][1])] for cut in cuts]
                    for cuts in takes]
        for source, target in zip(outgoing[index], incoming[index], strict=True):
            if source.ctypes.data != target.ctypes.data:
                target[...] = source
        outgoing[index], incoming[index] = [], []
        self._together(lambda: self._lockstep.exchange(outgoing, incoming, most))
        return [raw.tobytes() if self._records[leaf].kind == VALUE else raw
                for raw, (leaf, _) in zip(raws, wants, strict=True)], stats

    def _gather_wants(self, wants: list[tuple[int, Box]]) -> list[list[tuple[int, Box]]]:
        """Gathers the boxes that every process wants and, once, those that each has."""
        owned = None if self._owned is not None else [
            (leaf, [piece.box for piece in pieces]) for leaf, pieces in self._mine.items()]
        mine = pack(Wants(wants, owned))
        sizes = [each.value for each in self._all_gather(lambda: Value(len(mine)))]
        count = len(sizes)
        texts = self._together(lambda: self._lockstep.send([mine] * count,
                                                           [[size] * count for size in sizes]))
        everyones = [unpack(text, Wants, process, self._what)
                     for process, text in enumerate(texts)]
        if self._owned is None:
            self._owned = [{leaf: [_box_received(box) for box in boxes]
                            for leaf, boxes in each.owned or ()} for each in everyones]
        return [[(leaf, _box_received(box)) for leaf, box in each.wants] for each in everyones]

    # ---- what is here ----

    def _dtype(self, leaf: int) -> Any:
        record = self._records[leaf]
        return np.dtype(np.uint8) if record.kind == VALUE else record.dtype

    def _check_whole(self, wants: list[tuple[int, Box]], takes: list[list[_Cut]]) -> None:
        found = [0] * len(wants)
        for cut in [cut for cuts in takes for cut in cuts]:
            found[cut.want] += _count(cut.box)
        for (leaf, box), count in zip(wants, found, strict=True):
            if count != _count(box):
                raise CorruptionError(
                    f"step {self._step}: {self.tree.text(leaf)}: the parts have {count} of "
                    f"{_count(box)} elements of it")

    def _read_own(self, sends: list[list[_Cut]], nodes: dict[tuple[int, int, Box], int],
                  memory: Memory) -> LoadStats:
        """Reads what any process wants of the pieces here, each chunk once and no other; `nodes`:
        the NUMA node of what is wanted here."""
        asked: dict[tuple[int, int], list[Box]] = {}
        for cut in [cut for cuts in sends for cut in cuts]:
            asked.setdefault((cut.leaf, cut.piece), []).append(cut.box)
        by_share: dict[int, list[tuple[tuple[int, int], _Piece, Box]]] = {}
        for key, boxes in asked.items():
            piece = self._mine[key[0]][key[1]]
            if self._records[key[0]].kind == VALUE:
                boxes = [piece.box]
            by_share.setdefault(piece.share.part, []).extend(
                [(key, piece, box) for box in _outermost(boxes)])
        total = LoadStats()
        for reads in by_share.values():
            loaded = reads[0][1].share.tree.read_boxes([
                Wanted(piece.number)
                if self._records[key[0]].kind == VALUE
                else Wanted(piece.number, [start for start, _ in box], [stop for _, stop in box],
                      nodes.get((*key, box), ANY))
                for key, piece, box in reads])
            total += loaded.stats
            for (key, _, box), raw in zip(reads, loaded.value, strict=True):
                array = np.frombuffer(raw, np.uint8) if isinstance(raw, bytes) else raw
                memory.setdefault(key, {})[box] = array
        return total
