# SPDX-License-Identifier: Apache-2.0
"""A step opened for reading: its records, and how to read what they describe."""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from .. import _stepwell
from .._pytree.records import PathLike
from .._pytree.tree import Component
from .._stepwell import LoadStats, Record, Selection, StepTree, Wanted

T = TypeVar("T")
ANY = -1  # NUMA node: it does not matter
Account = Callable[[LoadStats], None]


class Source:
    """A step opened for looking, shared by its views: the tree, and how to read from it."""

    collective = False  # whether all processes read together

    def __init__(self, reader: _stepwell.Reader, check: Callable[[], None], account: Account,
                 tree: StepTree | None = None) -> None:
        self.reader = reader
        self.step = reader.step
        self.check = check
        self.account = account
        self._tree = tree
        # Actions that wait until the load has succeeded. Each returns a function that undoes it.
        self.afterwards: list[Callable[[], Callable[[], object]]] = []

    def all_or_none(self, load: Callable[[], T]) -> T:
        """`load`; where all processes read together, an error of one is one on all. Then what was
        put off until nothing can fail any more."""
        loaded = self._together(load)
        undo: list[Callable[[], object]] = []
        try:
            for work in self.afterwards:
                undo.append(work())
        except BaseException:
            for each in reversed(undo):
                with contextlib.suppress(Exception):  # the first error says more
                    each()
            raise
        return loaded

    def _together(self, load: Callable[[], T]) -> T:
        return load()

    def read_boxes(self, wanted: list[Wanted]) -> tuple[list[Any], LoadStats]:
        self.check()
        loaded = self.tree.read_boxes(wanted)
        return loaded.value, loaded.stats

    def read_batches(self, batches: list[list[Wanted]]) -> Iterator[tuple[list[Any], LoadStats]]:
        """Each as read_boxes gives it, one read ahead in a thread. Where all processes read
        together there may be more: empty ones."""
        if len(batches) == 1:
            yield self.read_boxes(batches[0])
        if len(batches) < 2:
            return
        with concurrent.futures.ThreadPoolExecutor(1, "stepwell-load") as thread:
            ahead = thread.submit(self.read_boxes, batches[0])
            for batch in batches[1:]:
                done = [ahead.result()]
                ahead = thread.submit(self.read_boxes, batch)
                yield done.pop()  # nothing here refers to it while it is used
            done = [ahead.result()]
            del ahead
            yield done.pop()

    @property
    def tree(self) -> StepTree:
        if self._tree is None:
            self.check()
            self._tree = self.reader.tree()
        return self._tree

    @property
    def records(self) -> list[Record]:
        """Of what can be read, by number."""
        return self.tree.records

    def select(self, path: PathLike | None, whole: bool,
               above: list[Component] | None = None) -> tuple[Source, Selection]:
        """Resolves `path`, and returns a source of its records alone where they can be found
        without the others. `whole`: with all that is below a node; otherwise that may be missing.
        `above`: the path starts there (components, the item first)."""
        if self._tree is None and (path or above or not whole):
            self.check()
            found = self.reader.select(path, above or [], whole)
            if found is not None:
                part = Source(self.reader, self.check, self.account, found.tree)
                part.afterwards = self.afterwards
                return part, found
        return self, self.tree.resolve(path, self.tree.at(above) if above else None)

    def read(self, number: int, start: list[int] | None = None, stop: list[int] | None = None
             ) -> Any:
        """One leaf, or a box of it."""
        (raw,), stats = self.read_boxes([Wanted(number, start, stop)])
        self.account(stats)
        return raw


def in_batches(items: Iterable[T], size: Callable[[T], int], most: int) -> list[list[T]]:
    """One batch at least; none is larger than `most`, or it is a single item."""
    batches: list[list[T]] = [[]]
    total = 0
    for item in items:
        nbytes = size(item)
        if batches[-1] and total + nbytes > most:
            batches.append([])
            total = 0
        batches[-1].append(item)
        total += nbytes
    return batches
