# SPDX-License-Identifier: Apache-2.0
"""`stepwell diff`: what differs between two steps, of one store or of two.

Which leaves and chunks differ the steps' records tell (Store.changed). Of a leaf that differs each
chunk is read once, and those that differ in both steps: the numbers that are printed need that.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import operator
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from .. import _stepwell, _store
from .._display import format_bytes
from .._load.slicing import PART_BYTES
from .._load.source import Source, in_batches
from .._printed import selection
from .._printed.values import described, value_json, wide
from .._pytree.records import ARRAY, VALUE
from .._pytree.tree import Component, path_text
from .._stepwell import LeafChange, StepTree, Wanted, decode_value
from .._text import counted, printable
from .._views import ArrayView
from ..errors import PathNotFoundError

Path = tuple[Component, ...]
Box = tuple[list[int], list[int]]  # start and stop

_COMPARED_MAX = 1 << 18  # elements at one time, which take some ten times their bytes
_DESCRIBED_MAX = 1000  # bytes of a value that is printed beside its type
_COLUMNS = ("", "PATH", "WHAT", "CHANGES", "CHUNKS", "CHANGED", "MAX ABS", "MAX REL", "|A|", "|B|",
            "|A-B|")
_NUMBERS = ("max_absolute", "max_relative", "l2_a", "l2_b", "l2_difference")


class Entry(NamedTuple):
    """One step's value at a path."""

    source: Source
    number: int
    path: Path  # the item first
    text: str

    @property
    def is_node(self) -> bool:
        return self.source.tree.is_node(self.number)

    @property
    def is_value(self) -> bool:
        return not self.is_node and self.source.tree.records[self.number].kind == VALUE

    @property
    def nbytes(self) -> int:
        record = self.source.tree.records[self.number]
        return record.logical_bytes if self.is_value else (
            math.prod(record.shape) * record.dtype.itemsize)

    def value(self) -> Any:
        record = self.source.tree.records[self.number]
        return decode_value(record.value_type, self.source.read(self.number))

    def kind(self) -> Any:
        """Equal for two entries of one type."""
        if self.is_node:
            record = self.source.tree.records[self.number]
            return record.container, record.type_name
        record = self.source.tree.records[self.number]
        return record.value_type, record.prng_impl

    def describe(self) -> str:
        text = self.source.tree.describe(self.number)
        if self.is_value and self.nbytes <= _DESCRIBED_MAX:
            return described(text, self.value())
        if self.is_node:
            return text.partition(" of ")[0] + (", empty" if not self.source.tree.children(
                self.number) else "")
        return printable(text)

    def document(self) -> dict[str, Any]:
        record = self.source.tree.records[self.number]
        document: dict[str, Any] = {"description": self.describe()}
        if not self.is_node and record.kind == ARRAY:
            document |= {"dtype": record.dtype.name, "shape": record.shape}
        if self.is_value and self.nbytes <= _DESCRIBED_MAX:
            document["value"] = value_json(self.value())
        return document


class Comparison:
    """Measures how much two arrays of the same dtype differ, piece by piece. Elements with the same
    bytes, and two NaNs, differ by nothing; a NaN in one alone makes maxima and norms NaN."""

    def __init__(self) -> None:
        self.changed_bytes = self.changed_elements = self.nan_mismatches = 0
        self.max_absolute = self.max_relative = 0.0
        self._squares: list[Any] = [0.0, 0.0, 0.0]  # of a, b and their difference

    def add(self, a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> None:
        a, b = a.reshape(-1), b.reshape(-1)
        for begin in range(0, a.size, _COMPARED_MAX):
            self._add(a[begin:begin + _COMPARED_MAX], b[begin:begin + _COMPARED_MAX])

    def _add(self, a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> None:
        other = a.view(np.uint8).reshape(a.size, -1) != b.view(np.uint8).reshape(a.size, -1)
        changed = other.any(axis=1)
        self.changed_bytes += int(np.count_nonzero(other))
        self.changed_elements += int(np.count_nonzero(changed))
        with np.errstate(all="ignore"):
            wide_a, wide_b = wide(a), wide(b)
            size_a, size_b = np.abs(wide_a), np.abs(wide_b)
            nan_a, nan_b = np.isnan(size_a), np.isnan(size_b)
            self.nan_mismatches += int(np.count_nonzero(nan_a != nan_b))
            distance = np.where(changed & ~(nan_a & nan_b), np.abs(wide_a - wide_b), 0)
            larger = np.maximum(size_a, size_b)
            relative = np.where(distance > 0, distance / larger, distance)
            relative = np.where(np.isinf(distance), np.inf, relative)
            self.max_absolute = float(np.maximum(self.max_absolute, distance.max()))
            self.max_relative = float(np.maximum(self.max_relative, relative.max()))
            for i, each in enumerate((size_a, size_b, distance)):
                self._squares[i] = self._squares[i] + np.square(each).sum()

    def document(self) -> dict[str, Any]:
        numbers: dict[str, Any] = {"max_absolute": self.max_absolute,
                                   "max_relative": self.max_relative}
        for name, squares in zip(_NUMBERS[2:], self._squares, strict=True):
            numbers[name] = float(np.sqrt(squares))
        return {"changed_bytes": self.changed_bytes, "changed_elements": self.changed_elements,
                "nan_mismatches": self.nan_mismatches, **numbers}


class Pair:
    """A path that both steps have."""

    def __init__(self, a: Entry, b: Entry) -> None:
        self.a, self.b = a, b
        self.changes: list[str] = []
        self.found: LeafChange | None = None  # what the records tell of comparable content
        self.data: Comparison | None = None
        same_class = (a.is_node, a.is_value) == (b.is_node, b.is_value)
        if not same_class:
            self.changes.append("type")
        elif a.kind() != b.kind():
            self.changes.append("container" if a.is_node else "type")
        self.is_comparable = same_class and not a.is_node
        if same_class and not a.is_node and not a.is_value:
            record_a, record_b = (each.source.tree.records[each.number] for each in (a, b))
            self.changes += [name for name in ("dtype", "shape")
                             if getattr(record_a, name) != getattr(record_b, name)]
            self.is_comparable = record_a.dtype == record_b.dtype and (
                record_a.shape == record_b.shape)

    @property
    def has_chunks(self) -> bool:
        """True for arrays, and long values, whose content differs."""
        return (self.found is not None and self.found.chunk_count > 0
                and "data" in self.changes)

    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "path": self.a.text, "changes": self.changes, "a": self.a.document(),
            "b": self.b.document()}
        if self.has_chunks:
            assert self.found is not None
            document["chunks"] = {"changed": self.found.changed_chunks,
                                  "count": self.found.chunk_count}
        if self.data is not None:
            document |= {"bytes": self.a.nbytes, **self.data.document()}
            document |= {name: value_json(document[name]) for name in _NUMBERS}
        return document

    def row(self) -> list[str]:
        what = self.a.describe()
        if self.b.describe() != what:
            what += f" -> {self.b.describe()}"
        row = ["~", printable(self.a.text), what, ",".join(self.changes)]
        if self.has_chunks:
            assert self.found is not None
            row.append(f"{self.found.changed_chunks:,}/{self.found.chunk_count:,}")
        elif self.data is not None:
            row.append("")
        if self.data is not None:
            numbers = self.data.document()
            percent = 100 * self.data.changed_bytes / max(self.a.nbytes, 1)
            row += [f"{format_bytes(self.data.changed_bytes)} ({percent:.3g}%)",
                    *[f"{numbers[name]:.5g}" for name in _NUMBERS]]
        return row


def run(given: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Returns the output, as a document or as text. `given.status` becomes 7 where --exit-code is
    asked for and the steps differ."""
    with contextlib.ExitStack() as closing:
        store_a = closing.enter_context(_store.open(
            given.store, mode="r", untrusted=given.untrusted))
        store_b = store_a if given.other is None else closing.enter_context(_store.open(
            given.other, mode="r", untrusted=given.untrusted))
        a, b = store_a[given.number], store_b[given.number_b]
        only_state = a.items == b.items == ["state"]
        sides = [_side(mine._source, other._source, given.path, only_state)
                 for mine, other in ((a, b), (b, a))]
        for missing in sides:
            if isinstance(missing, PathNotFoundError) and all(
                    isinstance(each, PathNotFoundError) for each in sides):
                raise missing
        entries_a, entries_b = ([] if isinstance(each, PathNotFoundError) else each
                                for each in sides)
        pairs, removed, added = _paired(entries_a, entries_b)
        head = ""
        itself = given.other is None and a._source.reader.commit == b._source.reader.commit
        if not itself:
            differing = _differing([pair for pair in pairs if pair.is_comparable])
            head = _head(differing) if differing and not (given.json or given.records) else ""
            if sys.stdout.isatty():  # what follows may take long
                given.print(head)
                sys.stdout.flush()
                head = ""
            _measure(differing, given)
        changed = [pair for pair in pairs if pair.changes]
        same = sum(1 for pair in pairs if not pair.changes and not pair.a.is_node)
        differ = bool(changed or removed or added)
        if given.exit_code and differ:
            given.status = 7
        if not given.json:
            return {}, head + _text(changed, removed, added, same)
        listed = [[{**each.document(), "path": each.text} for each in entries]
                  for entries in (added, removed)]
        return {"a": {"store": given.store, "step": a.step},
                "b": {"store": given.other or given.store, "step": b.step},
                "path": given.path, "same": not differ, "unchanged": same, "added": listed[0],
                "removed": listed[1], "changed": [pair.document() for pair in changed]}, ""


def _side(source: Source, other: Source, path: str, only_state: bool
          ) -> list[Entry] | PathNotFoundError:
    """Returns one step's tree at the path and below it. Where the other step has the item `state`
    alone, the path may leave its name out, and means that item here, too."""
    try:
        source, chosen = source.select(path, whole=True)
    except PathNotFoundError as error:
        if not other.reader.only_state or source.reader.only_state:
            return error
        try:
            source, chosen = source.select(f"state/{path}", whole=True)
        except PathNotFoundError:
            return error
    tree = source.tree
    numbers = chosen.leaves if chosen.number is None else [*_below(tree, chosen.number)]
    entries = []
    for number in numbers:
        components = tuple(tree.components(number))
        text = path_text(components[1:] if only_state else components)
        entries.append(Entry(source, number, components, text))
    return entries


def _below(tree: StepTree, number: int) -> Iterator[int]:
    stack = [number]
    while stack:
        number = stack.pop()
        if number >= 0:
            yield number
        stack += reversed(tree.children(number).values())


def _paired(a: list[Entry], b: list[Entry]) -> tuple[list[Pair], list[Entry], list[Entry]]:
    """By path; else by how the path is written. And what only a or b has; nodes where they are all
    there is."""
    left = {each.path: each for each in b}
    pairs = {}
    alone = []
    for each in a:
        if each.path in left:
            pairs[each.path] = Pair(each, left.pop(each.path))
        else:
            alone.append(each)
    by_text = {each.text: each for each in left.values()}
    removed = []
    for each in alone:
        if each.text in by_text:
            other = by_text.pop(each.text)
            del left[other.path]
            pairs[each.path] = Pair(each, other)
        elif _counts(each):
            removed.append(each)
    return ([pairs[each.path] for each in a if each.path in pairs], removed,
            [each for each in left.values() if _counts(each)])


def _counts(entry: Entry) -> bool:
    return not entry.is_node or not entry.source.tree.children(entry.number)


# ---- contents -----------------------------------------------------------------------------------


def _differing(pairs: list[Pair]) -> list[Pair]:
    """The pairs whose content differs, as the records tell."""
    if not pairs:
        return []
    trees = [entry.source.tree for entry in (pairs[0].a, pairs[0].b)]
    compared = _stepwell.compare_pairs(
        trees[0], trees[1], [(pair.a.number, pair.b.number) for pair in pairs])
    by_number = {change.before: change for change in compared.changed}
    for pair in pairs:
        pair.found = by_number.get(pair.a.number)
    return [pair for pair in pairs if pair.found is not None]


def _measure(pairs: list[Pair], given: argparse.Namespace) -> None:
    """Measures how far the pairs are apart, which needs their bytes; not with --records."""
    arrays = []
    for pair in pairs:
        if not (pair.a.is_value or given.records):
            arrays.append(pair)
        elif pair.a.is_value or not pair.changes:  # of arrays of two kinds only a read can tell
            pair.changes.append("data")
    total = sum(pair.a.nbytes for pair in arrays)
    done = 0
    for batch in in_batches(arrays, lambda pair: pair.a.nbytes, PART_BYTES):
        if len(batch) == 1 and batch[0].a.nbytes > PART_BYTES:
            batch[0].data = _compare_pieces(batch[0])
        else:
            _compare_batch(batch)
        done += sum(pair.a.nbytes for pair in batch)
        given.progress(done, total)
    for pair in arrays:
        if pair.data is not None and pair.data.changed_bytes:
            pair.changes.append("data")  # else only its kind differs


def _boxes(pair: Pair) -> list[Box] | None:
    """The boxes where the two arrays differ; None: anywhere."""
    return _stepwell.changed_boxes(pair.a.source.tree, pair.a.number, pair.b.source.tree,
                                   pair.b.number)


def _compare_batch(pairs: list[Pair]) -> None:
    """Reads all of b, and of a the boxes that differ: the rest of a is as in b."""
    if not pairs:
        return
    boxes = [_boxes(pair) for pair in pairs]
    others = _read(pairs[0].b.source, [Wanted(pair.b.number) for pair in pairs])
    parts = iter(_read(pairs[0].a.source, [
        wanted for pair, some in zip(pairs, boxes, strict=True)
        for wanted in ([Wanted(pair.a.number)] if some is None else
                       [Wanted(pair.a.number, *box) for box in some])]))
    for pair, some, other in zip(pairs, boxes, others, strict=True):
        one = next(parts) if some is None else other.copy()
        for start, stop in some or ():
            one[tuple(map(slice, start, stop))] = next(parts)
        pair.data = Comparison()
        pair.data.add(one, other)


def _read(source: Source, wanted: list[Wanted]) -> list[np.ndarray[Any, Any]]:
    raws, stats = source.read_boxes(wanted)
    source.account(stats)
    return [np.asarray(raw) for raw in raws]


def _compare_pieces(pair: Pair) -> Comparison:
    """The same of an array that is read piece by piece."""
    views = [ArrayView(entry.source, entry.number) for entry in (pair.a, pair.b)]
    boxes = _boxes(pair)
    data = Comparison()
    for piece in selection.pieces(views[1], selection.parse("...", views[1].shape)):
        other = selection.read(views[1], piece)
        if boxes is None:
            data.add(selection.read(views[0], piece), other)
            continue
        bounds = [(taken.numbers.start, taken.numbers.stop) for taken in piece]
        within = [common for box in boxes if (common := _common(box, bounds))]
        one = other.copy()
        parts = _read(pair.a.source, [Wanted(pair.a.number, *box) for box in within])
        for (start, stop), part in zip(within, parts, strict=True):
            one[tuple([slice(low - begin, high - begin) for low, high, (begin, _) in
                       zip(start, stop, bounds, strict=True)])] = part
        data.add(one, other)
    return data


def _common(box: Box, bounds: list[tuple[int, int]]) -> Box | None:
    start = [max(low, begin) for low, (begin, _) in zip(box[0], bounds, strict=True)]
    stop = [min(high, end) for high, (_, end) in zip(box[1], bounds, strict=True)]
    return (start, stop) if all(map(operator.lt, start, stop)) else None


# ---- text ---------------------------------------------------------------------------------------


def _head(pairs: list[Pair]) -> str:
    found = [pair.found for pair in pairs if pair.found is not None]
    chunks = sum(change.changed_chunks for change in found)
    count = sum(change.chunk_count for change in found)
    return (f"{counted(len(found), 'leaf')} with other content: {chunks:,} of "
            f"{counted(count, 'chunk')}, {format_bytes(sum(c.changed_bytes for c in found))}\n")


def _text(changed: list[Pair], removed: list[Entry], added: list[Entry], same: int) -> str:
    rows = [["-", printable(each.text), each.describe(), "removed"] for each in removed]
    rows += [["+", printable(each.text), each.describe(), "added"] for each in added]
    rows += [pair.row() for pair in changed]
    columns = _COLUMNS[:max(map(len, rows), default=0)]
    lines = _table([list(columns), *rows]) if rows else []
    nans = sum(pair.data.nan_mismatches for pair in changed if pair.data is not None)
    if nans:
        lines.append(f"{nans:,} {'element is' if nans == 1 else 'elements are'} NaN in one step "
                     "only")
    lines.append(f"{len(changed):,} changed, {len(added):,} added, {len(removed):,} removed, "
                 f"{same:,} the same")
    return "\n".join(lines) + "\n"


def _table(rows: list[list[str]]) -> list[str]:
    """Columns, the first four of them text."""
    widths = [max([len(row[i]) for row in rows if i < len(row)]) for i in range(len(rows[0]))]
    return ["  ".join([cell.ljust(width) if i < 4 else cell.rjust(width)
                       for i, (cell, width) in enumerate(zip(row, widths, strict=False))]).rstrip()
            for row in rows]
