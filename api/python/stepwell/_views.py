# SPDX-License-Identifier: Apache-2.0
"""Looking into a step without loading it: trees, nodes, lazy arrays."""

from __future__ import annotations

import collections
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from . import _stepwell
from ._display import END as _END
from ._display import ROWS_MAX as _WHOLE_MAX
from ._display import commit_time, format_bytes, html_note, html_table, treescope_dict
from ._load.commit import CommittedStep, commit_of
from ._load.slicing import Index, read_slice
from ._load.source import Source
from ._pytree.items import write_files
from ._pytree.keys import key_of
from ._pytree.records import ARRAY, VALUE, PathLike
from ._pytree.stored_rows import Read, stored_rows
from ._pytree.tree import KEY, LITERAL, Component, Path, component_text, path_text
from ._runtime.arguments import check_path
from ._runtime.files import json_of
from ._runtime.service import NotCopied
from ._stepwell import (ChangedCount, Record, Row, Selection, StepTree, ValueType, Wanted,
                        decode_value)
from ._text import counted
from .errors import AmbiguousPathError, Error, InvalidArgumentError, PathNotFoundError

T = TypeVar("T")


class LeafStatistics(NamedTuple):
    """The elements of an array in a few numbers, taken while it was saved with
    `open(statistics=True)`.

    Elements that are not finite count in `nonfinite` and in nothing else. A complex number is one
    element, finite if both its parts are; `min`, `max` and `sum` are those of its parts, and `norm`
    is that of its magnitudes. Integers beyond 2^53 are rounded. Of floats of at most 32 bits `norm`
    is right to one in a million, and so is `sum`, in proportion to the sum of the magnitudes. Typed
    PRNG keys: of their key data.

    elements: how many there are; nonfinite: of these, how many are NaN or infinite.
    min, max: None if no element is finite. sum. norm: the L2 norm.
    changed: elements that differ in a bit from those of the newest step that was committed when
        the save began; None if that had no such leaf of the same dtype and shape.
    changed_exactly: False: `changed` counts all elements of chunks that have changed, of about 1
        MiB each. Chunks are compared element by element only with `open(delta=True)`.
    """

    elements: int
    nonfinite: int
    min: float | None
    max: float | None
    sum: float
    norm: float
    changed: int | None
    changed_exactly: bool


class LeafInfo(NamedTuple):
    """One stored leaf: `kind` is "array", "key" (typed PRNG keys; shape and dtype are those of
    their key data) or a Python type's name; `nbytes` is the size when loaded, in bytes;
    `statistics` is None for values, and for arrays of steps that were saved without."""

    kind: str
    shape: tuple[int, ...] | None
    dtype: np.dtype[Any] | None
    nbytes: int
    statistics: LeafStatistics | None = None

    def __str__(self) -> str:
        if self.shape is None:
            return self.kind
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


def info_of(tree: StepTree, number: int, record: Record | None = None) -> LeafInfo:
    record = record or tree.record(number)
    if record.kind == VALUE:
        return LeafInfo(tree.describe(number), None, None, record.logical_bytes)
    kind = "key" if record.value_type == ValueType.PRNG_KEY else "array"
    nbytes = math.prod(record.shape) * record.dtype.itemsize
    return LeafInfo(kind, record.shape, record.dtype, nbytes, statistics_of(record))


def statistics_of(record: Record) -> LeafStatistics | None:
    taken = record.statistics
    if taken is None:
        return None
    count = taken.changed_count
    return LeafStatistics(
        taken.elements, taken.nonfinite, taken.min if taken.has_range else None,
        taken.max if taken.has_range else None, taken.sum, taken.norm,
        taken.changed if count != ChangedCount.UNKNOWN else None, count == ChangedCount.EXACT)


class Tree(Mapping[str, LeafInfo]):
    """The contents of a step: path -> LeafInfo, in key order. Printing it gives a table; of more
    than 40 leaves the first and the last 20, and `table()` has all."""

    def __init__(self, tree: StepTree, step: int) -> None:
        self.step = step
        records = tree.records
        self._leaves = {tree.text(number): info_of(tree, number, records[number])
                        for number in tree.leaves(tree.top)}

    def __getitem__(self, path: str) -> LeafInfo:
        return self._leaves[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._leaves)

    def __len__(self) -> int:
        return len(self._leaves)

    @property
    def nbytes(self) -> int:
        """Size of all leaves when loaded, in bytes."""
        return sum(info.nbytes for info in self._leaves.values())

    def table(self) -> str:
        """A line for each leaf: path, type and shape, size."""
        return self._table(len(self))

    def __repr__(self) -> str:
        return self._table(_WHOLE_MAX)

    def _repr_html_(self) -> str:
        return html_table(self._head(), ("path", "type", "size"), self._rows())

    def _head(self) -> str:
        return f"step {self.step}: {counted(len(self), 'leaf')}, {format_bytes(self.nbytes)}"

    def _rows(self) -> list[tuple[str, str, str]]:
        return [(path or "(the state)", str(info), format_bytes(info.nbytes))
                for path, info in self._leaves.items()]

    def _table(self, whole_max: int) -> str:
        rows = self._rows()
        shown = rows if len(rows) <= whole_max else rows[:_END] + rows[-_END:]
        widths = [max((len(row[i]) for row in shown), default=0) for i in range(3)]
        return "\n".join([self._head(), *lines_of(rows, whole_max, lambda row: (
            f"  {row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]:>{widths[2]}}"))])


def lines_of(of: Sequence[T], whole_max: int, line: Callable[[T], str]) -> list[str]:
    """A line for each, or of more than `whole_max` for the first and the last."""
    if len(of) <= whole_max:
        return [line(each) for each in of]
    return [*map(line, of[:_END]), f"  … {len(of) - 2 * _END:,} more", *map(line, of[-_END:])]


class ArrayView(NotCopied):
    """A stored array. Slicing reads the chunks that hold what it takes and gives a NumPy array.

    Indices are ints, slices (any step), `...` and `None`; negative ones count from the end. Lists
    and masks need the array in memory: `np.asarray(view)[mask]`.
    """

    def __init__(self, source: Source, number: int) -> None:
        self._source = source
        self._number = number
        record = source.tree.records[number]
        self.shape: tuple[int, ...] = record.shape
        self.dtype: np.dtype[Any] = record.dtype
        self.chunk_shape: tuple[int, ...] = record.chunk_shape

    @property
    def path(self) -> str:
        return self._source.tree.text(self._number)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def sharding(self) -> dict[str, Any] | None:
        """The sharding that the array had, as Orbax spells it; None for NumPy arrays."""
        text = self._source.tree.records[self._number].sharding
        return json_of(text, f"the sharding of {self.path}") if text else None

    @property
    def shard_shape(self) -> tuple[int, ...]:
        """The shape of one of the shards that the array was saved in; its own where it was one."""
        return self._source.tree.records[self._number].shard_shape or self.shape

    def sharding_text(self) -> str:
        """The sharding that the array had, for people: over which mesh, and drawn which device (by
        its id) held which slice. `print(store[7]["params/kernel"].sharding_text())`"""
        text = self._source.tree.records[self._number].sharding
        return _stepwell.sharding_text(list(self.shape), text)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a 0-d array")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<stored {self.path or 'state'}: {self._source.tree.describe(self._number)}>"

    def __getitem__(self, index: Index | tuple[Index, ...]) -> Any:
        parts = index if isinstance(index, tuple) else (index,)
        return read_slice(self._source, self._number, parts)

    def _stepwell_rows(self, path: Path) -> list[Row]:
        return stored_rows(self._source.tree, self._number, path, _reader(self._source))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError("a stored array is always read into new memory")
        array: np.ndarray[Any, Any] = self._source.read(self._number)
        return array if dtype is None else array.astype(dtype, copy=False)

    def __bool__(self) -> bool:
        return bool(self.__array__())

    def __int__(self) -> int:
        return int(self.__array__())

    def __float__(self) -> float:
        return float(self.__array__())


def view_of(source: Source, number: int, step: Source) -> Any:
    """A record as users see it: NodeView, ArrayView or the Python value itself. `step`: the source
    that `source` was selected from."""
    tree = source.tree
    if tree.is_node(number):
        return NodeView(step, tree.components(number))
    record = tree.records[number]
    if record.kind == ARRAY:
        return ArrayView(source, number)
    return decode_value(record.value_type, source.read(number))


def _reader(source: Source) -> Read:
    def read(wanted: list[Wanted]) -> list[Any]:
        raws, stats = source.read_boxes(wanted)
        source.account(stats)
        return raws

    return read


def _found(source: Source, selection: Selection, step: Source,
           above: list[Component] | None = None) -> Any:
    """Returns the value that a path names; for a glob a dict by path, from the node `above` on."""
    if selection.number is not None:
        return view_of(source, selection.number, step)
    start = source.tree.at(above) if above is not None else None
    return {text: view_of(source, leaf, step)
            for text, leaf in source.tree.by_text(selection.leaves, start).items()}


class NodeView(NotCopied, Mapping[PathLike | int, Any]):
    """A container inside a step. Iterating gives the names below, those that mean something else as
    a path as tuples; `[path]` an ArrayView, a NodeView, a Python value, or for a glob a dict of
    them by path (paths relative to this node)."""

    def __init__(self, source: Source, components: list[Component]) -> None:
        self._step = source
        self._components = components  # its path, the item first; none: the step itself
        self._at: tuple[Source, int] | None = None  # once its children were read

    def _whole(self) -> tuple[Source, int]:
        """A source that has all below this node, and its number there."""
        if self._at is None:
            source, selection = self._step.select(None, whole=True, above=self._components)
            assert selection.number is not None
            self._at = source, selection.number
        return self._at

    def _children(self) -> dict[Any, int]:
        source, number = self._whole()
        return source.tree.children(number)

    def __iter__(self) -> Iterator[PathLike | int]:
        children = self._children()
        spelled = collections.Counter(str(name) for _, name in children)
        for kind, name in children:
            if kind == LITERAL:
                yield (key_of(name),)
                continue
            is_plain = isinstance(name, int) or (component_text((KEY, name)) == name != ""
                                                 and spelled[name] == 1)
            yield name if is_plain else (name,)

    def __contains__(self, path: object) -> bool:
        try:
            self[cast(PathLike, path)]
        except AmbiguousPathError:
            return True
        except (PathNotFoundError, InvalidArgumentError):
            return False
        return True

    def __len__(self) -> int:
        return len(self._children())

    def __getitem__(self, path: PathLike | int) -> Any:
        exact: PathLike = (path,) if isinstance(path, int) else path
        step = self._step
        if self._at is None:
            source, selection = step.select(exact, whole=False, above=self._components)
        else:
            step, number = self._at
            source, selection = step, step.tree.resolve(exact, number)
        return _found(source, selection, step, self._components)

    def _stepwell_rows(self, path: Path) -> list[Row]:
        source, number = self._whole()
        return stored_rows(source.tree, number, path, _reader(source))

    def __treescope_repr__(self, path: str | None, subtree_renderer: Any) -> Any:
        return treescope_dict(type(self), self, path, subtree_renderer)

    def __repr__(self) -> str:
        try:
            source, number = self._whole()
            tree = source.tree
        except Error as error:  # as of a StepView
            return f"<a part of step {self._step.step}: {error}>"
        head = f"<{tree.text(number) or 'state'} of step {source.step}: {tree.describe(number)}>"
        return "\n".join([head, *lines_of(
            tree.leaves(number), _WHOLE_MAX,
            lambda leaf: f"  {path_text(tree.components(leaf, number))}  {tree.describe(leaf)}")])


class StepView(NotCopied):
    """One committed step as it was when it was opened; it stays readable while this object lives,
    even when the step is deleted or replaced meanwhile."""

    def __init__(self, source: Source) -> None:
        self._source = source

    @property
    def step(self) -> int:
        """The step's number, which knows which commit it is, as those of `Store.follow`."""
        return CommittedStep(commit_of(self._source))

    @property
    def metadata(self) -> Any:
        """The value that `save(metadata=)` was given (JSON); None for none."""
        text = self._source.reader.metadata_json
        return json_of(text, f"the metadata of step {self._source.step}") if text else None

    @property
    def metrics(self) -> Any:
        """The value that `save(metrics=)` was given (JSON); None for none."""
        text = self._source.reader.metrics_json
        return json_of(text, f"the metrics of step {self._source.step}") if text else None

    def write_files(self, item: str, folder: str | os.PathLike[str]) -> None:
        """Writes an item of kind *files* (`stepwell.Files`) into `folder`, which must be empty or
        absent. Raises PathNotFoundError, InvalidArgumentError for an item of another kind."""
        contents = {}
        if item not in self.items:
            raise PathNotFoundError(f"step {self.step} has no item {item!r}; it has "
                                    f"{', '.join(map(repr, self.items))}")
        source, selection = self._source.select(None, whole=True, above=[(KEY, item)])
        assert selection.number is not None
        for leaf in source.tree.leaves(selection.number):
            record = source.tree.records[leaf]
            path = str(source.tree.components(leaf)[-1][1])
            raw = source.read(leaf)
            contents[path] = decode_value(record.value_type, raw) if record.kind == VALUE else raw
        write_files(contents, folder, f"item {item!r} of step {self.step}")

    @property
    def items(self) -> list[str]:
        """Names of the items, sorted."""
        return sorted(item.name for item in self._source.reader.items)

    @property
    def time(self) -> datetime:
        """When the step was committed (UTC)."""
        return commit_time(self._source.reader.time_ns)

    @property
    def duration_s(self) -> float | None:
        """Seconds from the call of `save` until all data was written and the commit began; its
        flushes follow. None where the store does not know, as of steps of older versions."""
        nanoseconds: int = self._source.reader.save_ns
        return nanoseconds / 1e9 if nanoseconds > 0 else None

    @property
    def pinned(self) -> bool:
        """True if the step was pinned (`Store.pin`) when it was opened."""
        return self._source.reader.pinned

    @property
    def taint(self) -> str | None:
        """Why the step was tainted (`Store.taint`) when it was opened; None: it was not."""
        return self._source.reader.taint or None

    @property
    def nbytes(self) -> int:
        """Size of the step's arrays and values when loaded, in bytes."""
        return self._source.reader.logical_bytes

    @property
    def stored_bytes(self) -> int:
        """Size of the step's chunks on disk, in bytes."""
        return self._source.reader.stored_bytes

    @property
    def owned_bytes(self) -> int:
        """Size of the chunks that this step wrote itself, in bytes. The others did not change; the
        step refers to those of earlier steps."""
        return self._source.reader.owned_bytes

    @property
    def tree(self) -> Tree:
        return Tree(self._source.tree, self.step)

    def __getitem__(self, path: PathLike) -> Any:
        """ArrayView, NodeView or Python value at `path`; for a glob a dict of them by path. Raises
        PathNotFoundError and AmbiguousPathError."""
        source, selection = self._source.select(path, whole=False)
        return _found(source, selection, self._source)

    def __contains__(self, path: object) -> bool:
        try:
            self._source.select(check_path(path), whole=False)
        except KeyError:
            return False
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(self.tree)

    def __len__(self) -> int:
        return len(self.tree)

    def __repr__(self) -> str:
        try:
            return f"<{self._head()}>\n{self.tree!r}"
        except Error as error:  # the store was closed, or a record is damaged
            return f"<step {self._source.step}: {error}>"

    def __treescope_repr__(self, path: str | None, subtree_renderer: Any) -> Any:
        tree = self._source.tree
        if not tree.is_node(tree.top):
            return NotImplemented
        below = NodeView(self._source, tree.components(tree.top))
        return treescope_dict(type(self), below, path, subtree_renderer)

    def _repr_html_(self) -> str:
        try:
            given = [(name, json.dumps(value, ensure_ascii=False)) for name, value in (
                ("metadata", self.metadata), ("metrics", self.metrics)) if value is not None]
            about = html_table(self._head(), ("", ""), given) if given else html_note(self._head())
            return about + self.tree._repr_html_()
        except Error as error:  # the store was closed, or a record is damaged
            return html_note(f"step {self._source.step}: {error}")

    def _head(self) -> str:
        when = self.time.strftime("%Y-%m-%d %H:%M:%S UTC")
        marks = ", pinned" if self.pinned else ""
        if self.taint is not None:
            marks += f", tainted ({self.taint})"
        return f"step {self.step}, committed {when}{marks}, items {', '.join(self.items)}"
