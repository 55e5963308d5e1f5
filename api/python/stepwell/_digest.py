# SPDX-License-Identifier: Apache-2.0
"""The digest of a step; a step verified, and compared with a tree."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, SupportsIndex

import numpy as np

from ._lifetime import OpenStore
from ._load.slicing import PART_BYTES, parts_of
from ._load.source import Source, in_batches
from ._pytree.digest import (TreeLeaf, bytes_of, digest_of, line_of, plain_path,
                             tree_leaves, value_name)
from ._pytree.records import ROOT, VALUE, PathLike, array_text
from ._pytree.tree import KEY, Path, path_text
from ._runtime.arguments import (NEWEST, NotGiven, check_path, problem_path, step_number,
                                 step_or_newest)
from ._runtime.stats import VerifyProblem, VerifyReport, named
from ._stepwell import LoadStats, Wanted
from ._text import counted

_NO_TREE: Final = NotGiven("<no tree>")  # None is one


class _Part(NamedTuple):
    """A part of a stored leaf; None: of a value, which has no parts."""

    number: int
    axes: list[range] | None
    nbytes: int

    @property
    def wanted(self) -> Wanted:
        if self.axes is None:
            return Wanted(self.number)
        return Wanted(self.number, [axis.start for axis in self.axes],
                      [axis.stop for axis in self.axes])


def digest(self: OpenStore, step: SupportsIndex | None = NEWEST, path: PathLike | None = None
           ) -> str:
    """The digest of a step, by default of the newest, or of the part of it at `path`: 64
    hexadecimal digits. It is what `stepwell.digest` gives for the tree that was saved, and for the
    tree that `load` gives, whatever the meshes, the chunks, the codec and the number of processes.

    path: a leaf, a node or a glob, as in `load`.

    Reads everything that it covers, in parts of 32 MiB. With local disks it is collective.

    Raises StepNotFoundError, PathNotFoundError, AmbiguousPathError, CorruptionError.
    """
    check_path(path)
    source = self._source(step_or_newest(step))
    return source.all_or_none(functools.partial(_digest, source, path))


def _digest(source: Source, path: PathLike | None) -> str:
    source, leaves = stored_leaves(source, path)
    hashes = {number: hashlib.sha256() for number, _ in leaves}
    for part, raw in _read(source, [number for number, _ in leaves]):
        hashes[part.number].update(raw if part.axes is None else bytes_of(raw).data)
    return digest_of([line_of(where, *_kind(source, number), hashes[number].hexdigest())
                      for number, where in leaves])


def stored_leaves(source: Source, path: PathLike | None) -> tuple[Source, list[tuple[int, Path]]]:
    """The numbers of the leaves at `path`, and where `load` has them in what it gives for that."""
    source, selection = source.select(path, whole=True)
    tree = source.tree
    if selection.number is None:
        return source, [(number, ((KEY, name),)) for name, number
                        in tree.by_text(selection.leaves).items()]
    top = selection.number
    above = [] if top == ROOT else tree.components(top)
    return source, [(number, tuple(tree.components(number)[len(above):]))
                    for number in tree.leaves(top)]


def _read(source: Source, numbers: list[int]) -> Iterator[tuple[_Part, Any]]:
    """The leaves in parts: of arrays in C order, leaf by leaf."""
    parts: list[_Part] = []
    for number in numbers:
        record = source.tree.records[number]
        if record.kind == VALUE:
            parts.append(_Part(number, None, record.logical_bytes))
            continue
        item = record.dtype.itemsize
        parts += [_Part(number, axes, item * math.prod([len(axis) for axis in axes]))
                  for axes in parts_of([range(extent) for extent in record.shape], item,
                                       record.chunk_shape)]
    batches = in_batches(parts, lambda part: part.nbytes, PART_BYTES)
    order = iter(batches)
    total = LoadStats()
    for raws, stats in source.read_batches([[part.wanted for part in batch] for batch in batches]):
        total += stats
        yield from zip(next(order, []), raws, strict=True)
    source.account(total)


def verify(self: OpenStore, step: SupportsIndex | None = None, *, against: Any = _NO_TREE
           ) -> VerifyReport:
    """Reads every chunk of a step (None: of all) and checks every checksum. Damage, and what could
    not be read, is in the report, not raised. Ctrl-C stops it. Where the parts of several processes
    lie on disks of several machines, each checks its own.

    A store open for writing records which steps were found whole, and which damaged, in one commit;
    `policy.LastVerified` goes by it. It is durable when this returns, or if saves are under way,
    after those. With mode "r" nothing is recorded. Of several processes process 0 records it.

    against: a tree. The step, then None for the newest, is also compared with it, bit for bit:
        every leaf that differs, or that one of them lacks, is a problem, which says how. Leaves are
        those of `load` without `like`; dtypes and shapes count, containers only by their keys
        (`stepwell.digest`). A step with damage is not compared. With local disks all processes
        call this together.

    Raises StepNotFoundError. UnsupportedLeafError names leaves of the tree that cannot be saved.
    """
    self._check()
    if against is _NO_TREE:
        return _verified(self, None if step is None else step_number(step))
    given = tree_leaves(against, "compare the step with")
    number = self._step(step)
    report = _verified(self, number)
    votes = [int(report.ok)]
    if self._backend.collective_reads:
        votes = self._backend.gather(votes[0], "verify")
    if not all(votes):
        return report
    source = self._source(number)
    return report._replace(problems=source.all_or_none(
        functools.partial(_differences, source, given)))


def _verified(store: OpenStore, step: int | None) -> VerifyReport:
    report = store._backend.verify(step)
    return named(VerifyReport, report)._replace(problems=[
        VerifyProblem(problem.step, problem_path(problem.item, problem.path), problem.file,
                      problem.offset_bytes, problem.message, problem.unchecked)
        for problem in report.problems])


def _differences(source: Source, tree: list[TreeLeaf]) -> list[VerifyProblem]:
    """The leaves in which a step differs from a tree, each as a problem."""
    given = {_key(leaf.path): leaf for leaf in tree}
    source, leaves = stored_leaves(source, None)
    problems: dict[str, str] = {}
    same: dict[int, tuple[str, TreeLeaf]] = {}
    for number, path in leaves:
        leaf = given.pop(_key(path), None)
        if leaf is None:
            problems[path_text(path)] = "is not in the tree"
        elif _kind(source, number) != (leaf.dtype, leaf.shape):
            problems[path_text(path)] = (f"is {source.tree.describe(number)} in the step, and "
                                         f"{_described(leaf)} in the tree")
        else:
            same[number] = path_text(path), leaf
    problems |= {path_text(leaf.path): "is in the tree, and not in the step"
                 for leaf in given.values()}
    problems |= _differing(source, same)
    return [VerifyProblem(source.step, path, "", 0, why) for path, why in sorted(problems.items())]


def _key(path: Path) -> str:
    return repr(plain_path(path))


def _kind(source: Source, number: int) -> tuple[str, tuple[int, ...] | None]:
    record = source.tree.records[number]
    if record.kind == VALUE:
        return value_name(record.value_type), None
    return np.dtype(record.dtype).name, tuple(record.shape)


def _described(leaf: TreeLeaf) -> str:
    return leaf.dtype if leaf.shape is None else array_text(np.dtype(leaf.dtype), leaf.shape)


def _differing(source: Source, leaves: dict[int, tuple[str, TreeLeaf]]) -> dict[str, str]:
    """Compares leaves of one dtype and shape with what is stored, bit for bit. Returns the paths of
    those that differ, and how."""
    counts: dict[int, int] = {}
    values: list[int] = []
    array = number = None
    for part, raw in _read(source, [*leaves]):
        leaf = leaves[part.number][1]
        if part.axes is None:
            values += [part.number] if raw != leaf.row.data else []
            continue
        if part.number != number:  # each leaf is brought to the host once, and one at a time
            array, number = leaf.array(), part.number
        assert array is not None
        taken = array[tuple([slice(axis.start, axis.stop) for axis in part.axes])]
        differ = (bytes_of(raw) != bytes_of(taken)).reshape(-1, raw.itemsize).any(axis=1)
        counts[number] = counts.get(number, 0) + int(np.count_nonzero(differ))
    found = {leaves[number][0]: "is another value in the tree" for number in values}
    return found | {
        leaves[number][0]: f"differs in {count:,} of "
                           f"{counted(math.prod(leaves[number][1].shape or ()), 'element')}"
        for number, count in counts.items() if count}
