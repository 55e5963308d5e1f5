# SPDX-License-Identifier: Apache-2.0
"""Patches: safetensors files that bring a holder of one step to another one.

A patch has, of each tensor that changed, NAME.indices (flat, in C order, ascending) and NAME.values
(the new elements, not differences), or NAME, the whole tensor, where that is smaller or where the
tensor is new. It has nothing of tensors that did not change. The metadata are strings:

    format          "stepwell-patch"
    version         "1"
    since, to       the steps
    base_digest     `stepwell.digest` of the flat dict of all tensors at `since`
    result_digest   the same at `to`: of what applying the patch gives
    tensors         JSON: of each tensor that has indices and values, {"dtype": …, "shape": …}
    removed         JSON: names of tensors that are not there any more

Applying it twice gives what applying it once does. api/examples/apply_patch.py applies one.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, SupportsIndex

import numpy as np

from .. import _stepwell
from .._backend.export_options import ExportedLeaf, OnUnsupported, tensors_of
from .._backend.safetensors_file import Spool, whole_file
from .._backend.tensors import FileTensor, Tensors, safetensors_word
from .._lifetime import OpenStore
from .._mapping import Box, common, places_of
from .._pytree.digest import digest_of, line_of
from .._pytree.records import PathLike
from .._pytree.tree import KEY
from .._renaming import Rename, rules_of
from .._runtime.arguments import step_number
from .._runtime.files import local_path
from .._runtime.stats import named
from ..errors import InvalidArgumentError

FORMAT, VERSION = "stepwell-patch", "1"
INDICES, VALUES = ".indices", ".values"
_INT32_MAX = 2**31 - 1


@dataclass(frozen=True)
class PatchReport:
    """Describes a patch that `Store.export_patch` made.

    path: the file. since, to: the steps.
    sparse, dense: how many tensors are in it as indices and values, and as a whole.
    unchanged: how many tensors both steps have alike. removed: names of those that went.
    elements: how many elements the tensors with indices have of them.
    size_bytes: of the file. tensor_bytes: of all tensors at `to`.
    base_digest, result_digest: see the module; "" without digests.
    skipped, widened: leaves that `on_unsupported` left out or gave another type.
    """

    path: str
    since: int
    to: int
    sparse: int
    dense: int
    unchanged: int
    removed: tuple[str, ...]
    elements: int
    size_bytes: int
    tensor_bytes: int
    base_digest: str
    result_digest: str
    skipped: tuple[ExportedLeaf, ...]
    widened: tuple[ExportedLeaf, ...]


def index_dtype(count: int) -> np.dtype[Any]:
    """The type of indices into a tensor of `count` elements: int32 where that holds them all."""
    return np.dtype(np.int32 if count - 1 <= _INT32_MAX else np.int64)


def export_patch(self: OpenStore, since: SupportsIndex, to: SupportsIndex,
                 path: str | os.PathLike[str], *, item: PathLike | None = None,
                 rename: Rename | None = None, dtype: Any = None,
                 on_unsupported: OnUnsupported = "error", digests: bool = True,
                 replace: bool = False) -> PatchReport:
    """Writes what changed from step `since` to step `to` as a safetensors file, for programs that
    hold the tensors of `since` and shall have those of `to`, such as inference servers.

    Per tensor that changed the file has NAME.indices (flat indices in C order, int32, or int64 in
    tensors that need it) and NAME.values (the new elements), or NAME, the whole tensor, where that
    is not larger. `__metadata__` names the steps, and has the digests of all tensors before and
    after, as `stepwell.digest` gives them for a dict from names to arrays: so a consumer can tell a
    wrong base, and see that it is right afterwards. Values are absolute: a patch that is applied
    twice has done no harm. `stepwell/_interop/patch.py` begins with the format, and
    api/examples/apply_patch.py is a consumer.

    since, to: any two steps; `to` may be the earlier one.
    path: the file. It appears whole and durable, or not at all.
    item: the item, subtree or leaf that the tensors are of, such as "params"; None: the step.
    rename, dtype, on_unsupported: as in `export(to="safetensors")`, which makes the file that such
        a program begins with, given the same arguments.
    digests: False leaves both digests out. Then nothing is read but the chunks that changed; else
        all tensors are read, those that changed in both steps.
    replace: whether a file that is there gives way, at one instant.

    Takes bounded memory. Raises StepNotFoundError, PathNotFoundError, InvalidArgumentError,
    StepExistsError if the file is there, NoSpaceError, StorageError, CorruptionError.
    """
    self._check()
    numbers = step_number(since), step_number(to)
    for name, flag in (("digests", digests), ("replace", replace)):
        if not isinstance(flag, bool):
            raise InvalidArgumentError(f"{name} must be True or False, not {flag!r}")
    core = self._backend.whole("a patch")
    rules = rules_of(rename)
    target = local_path(path)
    sources = [self._source(number) for number in numbers]  # both are there
    before, after = [tensors_of(source, item, rules, dtype, on_unsupported) for source in sources]
    with (whole_file(target, os.fsdecode(core.path), replace) as (folder, file),
          contextlib.closing(Spool(folder)) as spool):
        writer = _Writer(before, after, spool, digests)
        writer.run()
        size = spool.finish(file, writer.metadata(*numbers))
    before.stats += after.stats
    self._account(before.stats)
    return PatchReport(
        target, *numbers, len(writer.sparse), writer.dense, writer.unchanged, writer.removed,
        writer.elements, size, sum(each.nbytes for each in after.by_name.values()),
        *writer.digests(), tuple(named(ExportedLeaf, leaf) for leaf in after.report.skipped),
        tuple(named(ExportedLeaf, leaf) for leaf in after.report.widened))


class _Task(NamedTuple):
    """A tensor of either step.

    pieces: boxes in C order, those of a piece at a time. Of tensors that are comparable both are
        read together, else these are of `after`, and `before_boxes` are read first.
    comparable: both steps have it, with one type and shape.
    same: the records tell that it did not change: then one of both is read for both.
    """

    name: str
    before: FileTensor | None
    after: FileTensor | None
    before_boxes: list[Box]
    pieces: list[list[Box]]
    comparable: bool
    same: bool

    def boxes_before(self) -> list[Box]:
        both = self.comparable and not self.same
        return [*self.before_boxes, *(self.boxes_after() if both else [])]

    def boxes_after(self) -> list[Box]:
        return [box for boxes in self.pieces for box in boxes]


class _Writer:
    """Compares two steps tensor by tensor, and puts what changed into a spool."""

    def __init__(self, before: Tensors, after: Tensors, spool: Spool, digests: bool) -> None:
        self._before, self._after, self._spool, self._digests = before, after, spool, digests
        self.sparse: dict[str, FileTensor] = {}
        self.dense = self.unchanged = self.elements = 0
        self.removed = tuple([name for name in before.by_name if name not in after.by_name])
        self._lines: tuple[list[str], list[str]] = ([], [])  # of both digests
        self._changed_boxes = functools.cache(self._ask_changed_boxes)

    def run(self) -> None:
        tasks = [self._task(name) for name in (*self._after.by_name, *self.removed)]
        befores = self._before.read(
            (task.name, box) for task in tasks for box in task.boxes_before())
        afters = self._after.read(
            (task.name, box) for task in tasks for box in task.boxes_after())
        for task in tasks:
            self._write(task, befores, afters)
        self._check_names()

    def digests(self) -> tuple[str, str]:
        if not self._digests:
            return "", ""
        return digest_of(self._lines[0]), digest_of(self._lines[1])

    def metadata(self, since: int, to: int) -> list[tuple[str, str]]:
        tensors = {name: {"dtype": safetensors_word(file.dtype), "shape": list(file.shape)}
                   for name, file in self.sparse.items()}
        base, result = self.digests()
        digests = [("base_digest", base), ("result_digest", result)] if self._digests else []
        return [("format", FORMAT), ("version", VERSION), ("since", str(since)), ("to", str(to)),
                *digests, ("tensors", json.dumps(tensors)),
                ("removed", json.dumps(list(self.removed)))]

    def _task(self, name: str) -> _Task:
        before, after = self._before.by_name.get(name), self._after.by_name.get(name)
        comparable = before is not None and after is not None and (
            (before.dtype, before.shape) == (after.dtype, after.shape))
        changed = self._changed(before, after) if comparable else None
        alone: list[Box] = []
        pieces: list[list[Box]] = []
        if self._digests:
            alone = [] if before is None or comparable else list(before.boxes())
            pieces = [] if after is None else [[box] for box in after.boxes()]
        elif comparable:
            assert after is not None
            pieces = [parts for box in after.boxes() if (parts := [box] if changed is None else [
                part for each in changed if (part := common(box, each)) is not None])]
        return _Task(name, before, after, alone, pieces, comparable, changed == [])

    def _changed(self, before: FileTensor | None, after: FileTensor | None) -> list[Box] | None:
        """The boxes in which two tensors of one type and shape may differ; None: in any."""
        assert before is not None and after is not None
        one, other = before.tensor, after.tensor
        if before.element or after.element or one.dtype != other.dtype or (
                [part._replace(leaf=0) for part in one.parts]
                != [part._replace(leaf=0) for part in other.parts]):
            return [] if before.element and before.element == after.element else None
        boxes: list[Box] = []
        for mine, theirs in zip(one.parts, other.parts, strict=True):
            found = self._changed_boxes(mine.leaf, theirs.leaf)
            if found is None:
                return None
            boxes += [box for start, stop in found
                      if (box := theirs.box_of(start, stop)) is not None]
        return boxes

    def _ask_changed_boxes(self, before: int, after: int) -> Any:
        one, other = self._before.source.tree, self._after.source.tree
        if one.records[before].shape != other.records[after].shape:
            return None
        return _stepwell.changed_boxes(one, before, other, after)

    def _write(self, task: _Task, befores: Iterator[np.ndarray[Any, Any]],
               afters: Iterator[np.ndarray[Any, Any]]) -> None:
        result = hashlib.sha256()
        base = result if task.same else hashlib.sha256()
        sparse = None
        if task.comparable and not task.same:
            assert task.after is not None
            sparse = _Sparse(self._spool, task.after)
        for _ in task.before_boxes:
            base.update(_bits(next(befores)).data)
        for boxes in task.pieces:
            pairs = []
            for box in boxes:
                new = _bits(next(afters))
                old = _bits(next(befores)) if sparse is not None else new
                pairs.append((box, old, new))
                if self._digests:
                    result.update(new.data)
                    if sparse is not None:
                        base.update(old.data)
            if sparse is not None:
                sparse.add(pairs)
        for lines, found, tensor in zip(self._lines, (base, result),
                                        (task.before, task.after), strict=True):
            if tensor is not None and self._digests:
                lines.append(line_of(((KEY, task.name),), tensor.dtype.name, tensor.shape,
                                     found.hexdigest()))
        if task.after is not None:
            self._put(task.name, task.after, sparse, task.same)

    def _put(self, name: str, file: FileTensor, sparse: _Sparse | None, same: bool) -> None:
        if same or (sparse is not None and not sparse.is_dense and not sparse.count):
            self.unchanged += 1
        elif sparse is not None and not sparse.is_dense:
            sparse.keep(name)
            self.sparse[name] = file
            self.elements += sparse.count
        else:
            lane = self._spool.lane(file.dtype, "dense")
            for array in self._after.read((name, box) for box in file.boxes()):
                lane.write(array)
            lane.keep(name, file.dtype, file.shape)
            self.dense += 1

    def _check_names(self) -> None:
        names = [entry.name for entry in self._spool.entries]
        twice = next((name for name in names if names.count(name) > 1), None) if (
            len(set(names)) < len(names)) else None
        if twice is not None:
            raise InvalidArgumentError(
                f"the patch would have {twice!r} twice: of the tensor of that name, and of one "
                f"without {INDICES} or {VALUES}; rename one of them")


class _Sparse:
    """Changed elements of a tensor, as long as they are smaller than the tensor."""

    def __init__(self, spool: Spool, file: FileTensor) -> None:
        self._file = file
        size = file.nbytes // file.dtype.itemsize
        self._index_dtype = index_dtype(size)
        self._indices = spool.lane(self._index_dtype, "indices")
        self._values = spool.lane(file.dtype, "values")
        self.count = 0
        self.is_dense = False

    def add(self, pieces: list[tuple[Box, Any, Any]]) -> None:
        """Boxes with their elements in both steps, as bits; ascending from call to call."""
        if self.is_dense:
            return
        found = [(places_of(self._file.shape, box, inside), new[inside])
                 for box, old, new in pieces if (inside := np.flatnonzero(old != new)).size]
        if not found:
            return
        places = np.concatenate([each for each, _ in found])
        values = np.concatenate([each for _, each in found])
        if len(found) > 1:
            order = np.argsort(places)
            places, values = places[order], values[order]
        self.count += len(places)
        width = self._index_dtype.itemsize + self._file.dtype.itemsize
        if self.count * width >= self._file.nbytes:
            self._indices.take_back()
            self._values.take_back()
            self.is_dense = True
            return
        self._indices.write(places.astype(self._index_dtype))
        self._values.write(values)

    def keep(self, name: str) -> None:
        self._indices.keep(name + INDICES, self._index_dtype, (self.count,))
        self._values.keep(name + VALUES, self._file.dtype, (self.count,))


def _bits(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The elements, flat, as integers of the same width: so that NaNs and zeros compare."""
    return array.reshape(-1).view(f"u{array.dtype.itemsize}")
