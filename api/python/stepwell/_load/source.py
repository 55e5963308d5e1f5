# SPDX-License-Identifier: Apache-2.0
"""A step opened for reading: its records, and how to read what they describe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from .. import _stepwell
from .._pytree.paths import PathLike, Selection, readings, resolve
from .._pytree.records import StoredTree
from .._pytree.tree import Component
from ..errors import PathNotFoundError

T = TypeVar("T")


class Source:
    """A step opened for looking, shared by its views: the tree, and how to read from it."""

    def __init__(self, reader: _stepwell.Reader, check: Callable[[], None],
                 account: Callable[[tuple[int, int, int, int, int]], None],
                 tree: StoredTree | None = None) -> None:
        self.reader = reader
        self.step = reader.step
        self.check = check
        self.account = account
        self._tree = tree

    def together(self, load: Callable[[], T]) -> T:
        """`load`; by all processes or by none, where they read together."""
        all_of_them = getattr(self.reader, "together", None)
        return load() if all_of_them is None else cast(T, all_of_them(load))

    @property
    def tree(self) -> StoredTree:
        if self._tree is None:
            self.check()
            self._tree = StoredTree(self.reader.leaves())
        return self._tree

    def select(self, path: PathLike | None, whole: bool,
               above: list[Component] | None = None) -> tuple[Source, Selection]:
        """What `path` names, and a source with the records of that alone where they can be found
        without the others. `whole`: with all that is below a node; else that may be missing.
        `above`: the path starts there (components, the item first)."""
        if self._tree is None and (path or above or not whole):
            items = sorted(name for name, *_ in self.reader.items())
            found, is_glob = readings(path, items, above)
            if found:
                self.check()
                tree = StoredTree(self.reader.lookup(found, whole or is_glob), items == ["state"])
                try:
                    below = tree.number(above) if above else None
                    part = Source(self.reader, self.check, self.account, tree)
                    return part, resolve(tree, path, self.step, below)
                except (PathNotFoundError, KeyError):
                    pass  # the whole tree says what there is instead
        return self, resolve(self.tree, path, self.step, self.tree.number(above) if above else None)

    def read_box(self, number: int, start: list[int], stop: list[int]) -> Any:
        self.check()
        array, stats = self.tree.table.read_box(number, start, stop)
        self.account(stats)
        return array

    def read(self, numbers: list[int]) -> list[Any]:
        self.check()
        raws, stats = self.tree.table.read(numbers)
        self.account(stats)
        return raws
