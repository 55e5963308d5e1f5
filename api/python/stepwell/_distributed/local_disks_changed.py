# SPDX-License-Identifier: Apache-2.0
"""Two steps compared whose parts lie on disks of several machines.

Process 0 compares the records, which the others send it. What only bytes can tell all processes
read together, for process 0, which then says to all what differs.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, cast

import numpy as np

from .. import _stepwell
from .._backend.changes import LeafDifference, StepDifference, leaf_differences
from .._load.source import Source, in_batches
from .._pytree.records import VALUE
from .._stepwell import AskedBox, LoadStats, StepChanges, StepTree, Wanted
from ..errors import CorruptionError
from .local_disks_export import cut_records
from .local_disks_table import Share
from .lockstep import Lockstep
from .messages import ExportShare
from .snapshot import Reader

_BATCH_BYTES = 32 << 20  # of one step


def _shares(source: Source) -> list[Share]:
    """The shares that are here; part 0's is the first on process 0."""
    return cast(Reader, source.reader).shares


class LocalDisksComparison:
    """One comparison, on one process."""

    def __init__(self, lockstep: Lockstep, before: Source, after: Source, elements: bool) -> None:
        self._lockstep = lockstep
        self._steps = before, after
        self._elements = elements
        self._what = f"comparing steps {before.step} and {after.step}"

    def run(self, leaves_before: list[int], leaves_after: list[int]) -> StepDifference:
        """Leaves of the steps' trees, by number; the same on all processes."""
        records = [self._records_of_all(source) for source in self._steps]
        counted: list[_Counted] = []

        def compare() -> None:
            one, other = (_stepwell.merged_tree(_shares(source)[0].reader, others)
                          for source, others in zip(self._steps, records, strict=True))
            if [one.keys(), other.keys()] != [source.tree.keys() for source in self._steps]:
                raise CorruptionError(f"{self._what}: the parts do not have the same leaves")
            counted.append(_Counted(_stepwell.compare_steps(
                one, leaves_before, other, leaves_after, self._elements, may_read=False), other))

        self._lockstep.from_leader(compare, self._what)
        total = self._steps[0].all_or_none(lambda: self._read(counted))
        removed, added, changed, unchanged = self._lockstep.from_leader(
            lambda: counted[0].fields(), self._what)
        return StepDifference(removed, added, [LeafDifference(*leaf) for leaf in changed],
                              unchanged, total)

    def _records_of_all(self, source: Source) -> dict[int, bytes]:
        """The records of all parts but 0; on process 0 alone."""
        data: dict[int, bytes] = {}

        def records() -> ExportShare:
            data.update({share.part: share.reader.records(b"")
                         for share in _shares(source) if share.part != 0})
            sizes = [sum(map(len, data.values()))] + [0] * (self._lockstep.count - 1)
            return ExportShare(sizes, [(part, len(each)) for part, each in data.items()])

        have = self._lockstep.all_gather_slow(records, self._what)
        came = self._lockstep.send([b"".join(data.values())] + [b""] * (len(have) - 1),
                                   [each.sizes for each in have])
        return cut_records(have, came) if self._lockstep.index == 0 else {}

    def _read(self, counted: list[_Counted]) -> LoadStats:
        """Reads what is asked, on all processes together."""
        asked = counted[0].asked if counted else []
        batches = in_batches(asked, lambda each: each.nbytes, _BATCH_BYTES) if asked else []
        total = LoadStats()
        order = iter(batches)
        reads = [source.read_batches([[each.wanted[side] for each in batch] for batch in batches])
                 for side, source in enumerate(self._steps)]
        for (ones, stats), (others, more) in zip(*reads, strict=True):
            total += stats + more
            for each, one, other in zip(next(order, []), ones, others, strict=True):
                counted[0].add(each, one, other)
        return total


class _Asked(NamedTuple):
    """A box of a leaf, or a value, that is read in both steps."""

    place: int  # of the leaf among those that may differ
    wanted: tuple[Wanted, Wanted]  # before and after
    nbytes: int


class _Counted:
    """Compares the records, and then the bytes that they leave open. On process 0."""

    def __init__(self, found: StepChanges, tree: StepTree) -> None:
        self._found = found
        self._leaves = leaf_differences(found)
        self._open = {asked.change for asked in found.asked}  # without a known difference
        self._open -= {place for place, leaf in enumerate(self._leaves) if leaf.changed_chunks}
        self.asked = [self._asked(asked, tree) for asked in found.asked]

    def _asked(self, asked: AskedBox, tree: StepTree) -> _Asked:
        leaf = self._leaves[asked.change]
        record = tree.record(leaf.after)
        if record.kind == VALUE:
            return _Asked(asked.change, (Wanted(leaf.before), Wanted(leaf.after)),
                          record.logical_bytes)
        extents = [stop - start for start, stop in zip(asked.start, asked.stop, strict=True)]
        return _Asked(asked.change, (Wanted(leaf.before, asked.start, asked.stop),
                                     Wanted(leaf.after, asked.start, asked.stop)),
                      record.dtype.itemsize * math.prod(extents))

    def add(self, asked: _Asked, one: Any, other: Any) -> None:
        leaf = self._leaves[asked.place]
        if isinstance(one, bytes):
            if one != other:
                self._open.discard(asked.place)
                self._leaves[asked.place] = leaf._replace(changed_chunks=leaf.chunk_count,
                                                          changed_bytes=asked.nbytes)
            return
        bits = [np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(array.size, -1)
                for array in (one, other)]
        different = int(np.count_nonzero((bits[0] != bits[1]).any(axis=1)))
        if different:
            self._open.discard(asked.place)
            leaf = leaf._replace(changed_chunks=leaf.changed_chunks + 1,
                                 changed_bytes=leaf.changed_bytes + asked.nbytes)
        if leaf.changed_elements is not None:
            leaf = leaf._replace(changed_elements=leaf.changed_elements + different)
        self._leaves[asked.place] = leaf

    def fields(self) -> list[Any]:
        """For StepDifference, but for what was read."""
        changed = [leaf for place, leaf in enumerate(self._leaves) if place not in self._open]
        return [self._found.removed, self._found.added, changed,
                self._found.unchanged + len(self._open)]
