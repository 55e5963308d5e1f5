# SPDX-License-Identifier: Apache-2.0
"""The difference between two steps, from their records."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import SupportsIndex, TypeVar

from ._backend.changes import LeafDifference
from ._display import ROWS_MAX, format_bytes, html_table
from ._lifetime import OpenStore
from ._load.source import Source
from ._pytree.keys import key_of
from ._pytree.records import PathLike
from ._pytree.tree import LITERAL, path_text
from ._runtime.arguments import check_path, step_number
from ._runtime.gc_pause import paused
from ._stepwell import Selection, StepTree
from ._text import counted
from ._views import LeafInfo, info_of, lines_of
from .errors import InvalidArgumentError, PathNotFoundError

T = TypeVar("T")


@dataclass(frozen=True)
class ChangedLeaf:
    """A leaf that differs between two steps: in its content, dtype, shape or kind.

    path: as `load` takes it; it begins with the item unless "state" is the only one of both steps.
    item: the name of its item.
    before, after: what it is in each step.
    chunks_changed, chunks: how many of its chunks changed, and how many it has in the later step.
        Where dtype, shape or kind differs, all of them. 0 of 0 for a value of up to 1 KiB, which
        needs no chunk.
    nbytes_changed: size of the changed chunks when loaded, in bytes.
    elements: the number of elements that changed. None without `changed(elements=True)`, for a
        value, and for an array that differs in dtype, shape or kind.
    """

    path: str
    item: str
    before: LeafInfo
    after: LeafInfo
    chunks_changed: int
    chunks: int
    nbytes_changed: int
    elements: int | None = None

    def __str__(self) -> str:
        what = str(self.after)
        if what != str(self.before):
            what = f"{self.before} -> {what}"
        parts = [self.path or "(the state)", what]
        if self.chunks:
            parts.append(f"{self.chunks_changed:,} of {counted(self.chunks, 'chunk')}, "
                         f"{format_bytes(self.nbytes_changed)}")
        if self.elements is not None:
            parts.append(counted(self.elements, "element"))
        return "  ".join(parts)


@dataclass(frozen=True)
class Changed:
    """The leaves that differ between the steps `a` and `b`, by path, in key order; what
    `Store.changed` returns. Printing it gives a table.

    A path is a str as `load` takes it, or a tuple where two leaves have one such str.

    added: leaves that only `b` has. removed: leaves that only `a` has. changed: leaves that both
        have, and that differ. unchanged: the number of all others.
    """

    a: int
    b: int
    added: Mapping[PathLike, LeafInfo]
    removed: Mapping[PathLike, LeafInfo]
    changed: Mapping[PathLike, ChangedLeaf]
    unchanged: int

    @property
    def same(self) -> bool:
        """True if no leaf was added, removed or changed."""
        return not (self.added or self.removed or self.changed)

    def _head(self) -> str:
        return (f"step {self.a} -> step {self.b}: {len(self.changed):,} changed, "
                f"{len(self.added):,} added, {len(self.removed):,} removed, "
                f"{self.unchanged:,} unchanged")

    def _repr_html_(self) -> str:
        """The largest changes first."""
        leaves: list[tuple[int, str, PathLike, LeafInfo | ChangedLeaf]] = [
            *[(info.nbytes, "added", path, info) for path, info in self.added.items()],
            *[(info.nbytes, "removed", path, info) for path, info in self.removed.items()],
            *[(leaf.nbytes_changed, "changed", path, leaf) for path, leaf in self.changed.items()]]
        rows = [_html_row(*each)
                for each in heapq.nlargest(ROWS_MAX, leaves, key=lambda each: each[0])]
        if len(leaves) > ROWS_MAX:
            rows.append((f"… {len(leaves) - ROWS_MAX:,} more, none larger", "", "", "", ""))
        return html_table(self._head(), ("", "path", "type", "chunks", "size"), rows, cut=False)

    def __repr__(self) -> str:
        rows = [f"  - {path or '(the state)'}  {info}" for path, info in self.removed.items()]
        rows += [f"  + {path or '(the state)'}  {info}" for path, info in self.added.items()]
        rows += [f"  ~ {leaf}" for leaf in self.changed.values()]
        return "\n".join([self._head(), *lines_of(rows, ROWS_MAX, str)])


def _html_row(nbytes: int, what: str, path: PathLike, leaf: LeafInfo | ChangedLeaf
              ) -> tuple[str, str, str, str, str]:
    chunks = ""
    if isinstance(leaf, ChangedLeaf):
        before, after = str(leaf.before), str(leaf.after)
        kind = after if before == after else f"{before} -> {after}"
        if leaf.chunks:
            chunks = f"{leaf.chunks_changed:,} of {leaf.chunks:,}"
    else:
        kind = str(leaf)
    return what, str(path or "(the state)"), kind, chunks, format_bytes(nbytes)


def changed(self: OpenStore, a: SupportsIndex, b: SupportsIndex, path: PathLike | None = None, *,
            elements: bool = False) -> Changed:
    """Which leaves were added, removed and changed from step `a` to step `b`, or below `path`.

    The answer comes from the steps' records, which have a hash of every chunk: nothing of the
    arrays is read, whatever their size. Only two things make it read chunks. An array that the two
    steps store in other chunks, because it was saved from another mesh or with another
    `save(chunks=)`, is read as a whole in both, and is unchanged if its content is. And
    `elements=True` reads the changed chunks.

    Content is compared bit for bit: -0.0 is not 0.0, and NaNs differ if their payloads do. Where an
    array was and how JAX saw it does not count: NumPy or JAX, sharding, weak type.

    path: a leaf, a node or a glob, as in `load`; it may be in one of the steps only.
    elements: also counts the elements that changed, in each array that has the same dtype and
        shape in both steps.

    Raises StepNotFoundError, PathNotFoundError when neither step has the path, CorruptionError when
    records, or chunks that must be read, are damaged. With local disks it is collective.
    """
    check_path(path)
    numbers = step_number(a), step_number(b)
    if not isinstance(elements, bool):
        raise InvalidArgumentError(f"elements must be True or False, not {elements!r}")
    self._check()
    before, after = (self._source(number) for number in numbers)
    with paused():
        selections = _selected(before, after, path), _selected(after, before, path)
        for missing in selections:
            if isinstance(missing, PathNotFoundError) and all(
                    isinstance(each, PathNotFoundError) for each in selections):
                raise missing
        sources = [source if isinstance(each, PathNotFoundError) else each[0]
                   for source, each in zip((before, after), selections, strict=True)]
        leaves = [[] if isinstance(each, PathNotFoundError) else _leaves(each[1])
                  for each in selections]
    found = self._backend.compare(sources[0], sources[1], leaves[0], leaves[1], elements)
    self._account(found.stats)
    with paused():
        names = _Names(_has_only_state(before) and _has_only_state(after))
        one, other = (source.tree for source in sources)
        changes = names.by_path(other, [change.after for change in found.changed],
                                [names.leaf(one, other, change) for change in found.changed])
        return Changed(before.step, after.step, MappingProxyType(names.infos(other, found.added)),
                       MappingProxyType(names.infos(one, found.removed)),
                       MappingProxyType(changes), found.unchanged)


def _has_only_state(source: Source) -> bool:
    return [item.name for item in source.reader.items] == ["state"]


def _selected(source: Source, other: Source, path: PathLike | None
              ) -> tuple[Source, Selection] | PathNotFoundError:
    """Resolves the path in one step, and returns a source of the records there, too. Where the
    other step has the item `state` alone, the path may leave its name out, and means that item
    here, too."""
    try:
        return source.select(path, whole=True)
    except PathNotFoundError as error:
        if not path or not _has_only_state(other) or _has_only_state(source):
            return error
        try:
            inside = f"state/{path}" if isinstance(path, str) else ("state", *path)
            return source.select(inside, whole=True)
        except PathNotFoundError:
            return error


def _leaves(selection: Selection) -> list[int]:
    number = selection.number
    return selection.leaves if number is None else selection.tree.leaves(number)


class _Names:
    """Spells the paths of leaves."""

    def __init__(self, only_state: bool) -> None:
        self._first = 1 if only_state else 0  # component that is shown

    def text(self, tree: StepTree, number: int) -> str:
        return path_text(tree.components(number)[self._first:])

    def by_path(self, tree: StepTree, numbers: list[int], values: Iterable[T]
                   ) -> dict[PathLike, T]:
        texts = [self.text(tree, number) for number in numbers]
        several = {text for text, count in Counter(texts).items() if count > 1}
        return {self._exact(tree, number) if text in several else text: value
                for text, number, value in zip(texts, numbers, values, strict=True)}

    def _exact(self, tree: StepTree, number: int) -> PathLike:
        return tuple([key_of(name) if kind == LITERAL else name
                      for kind, name in tree.components(number)[self._first:]])

    def infos(self, tree: StepTree, numbers: list[int]) -> dict[PathLike, LeafInfo]:
        return self.by_path(tree, numbers, [info_of(tree, number) for number in numbers])

    def leaf(self, one: StepTree, other: StepTree, change: LeafDifference) -> ChangedLeaf:
        return ChangedLeaf(
            self.text(other, change.after), str(other.components(change.after)[0][1]),
            info_of(one, change.before), info_of(other, change.after), change.changed_chunks,
            change.chunk_count, change.changed_bytes, change.changed_elements)
