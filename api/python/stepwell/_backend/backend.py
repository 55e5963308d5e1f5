# SPDX-License-Identifier: Apache-2.0
"""Which processes have a store open: what a Store asks of them, and the answer for one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol, SupportsIndex, TypeVar

from .. import _stepwell
from .._load.source import Account, Source
from .._pytree.chunks import Chunks, set_chunk_shapes
from .._pytree.host_copies import HostCopies
from .._pytree.sharding import to_numpy
from .._pytree.tree import flatten_items
from .._retention import Fields, fields_of
from .._runtime.arguments import IfExists, Progress, check_items, if_exists_of
from .._runtime.gc_pause import paused
from .._runtime.service import Operation
from .._runtime.stats import StepSummary
from .._stepwell import SaveRequest
from ..errors import InvalidArgumentError
from .changes import StepDifference, compare
from .export_options import ExportReport, ExportRequest, run_export
from .orbax_source import OrbaxSource, check_new

T = TypeVar("T")
Change = Literal["delete", "pin", "unpin", "taint"]
MakeCore = Callable[[str, bool, "_stepwell.StoreGroup | None"], _stepwell.Core]
StepOf = Callable[[SupportsIndex | None], int]
SourceOf = Callable[[SupportsIndex | None], Source]


HOW_TO_CHANGE = "open it with mode=\"a\" to change it"  # a store of this machine


class Watch(Protocol):
    """Waits for changes of a store."""

    @property
    def why_not(self) -> str:
        """Why changes are not told; "": they are."""

    def wait(self, timeout_s: float) -> bool:
        """Returns true if something has changed or `wake` was called; it may end early."""

    def wake(self) -> None: ...


class Backend(Protocol):
    """This process alone; many on a shared disk; or many on local disks."""

    writer: _stepwell.Core  # what this process writes
    process_count: int
    collective: bool  # all processes save and change together, in the same order
    collective_reads: bool  # and read
    how_to_change: str  # for messages: what to do where it is open for reading only

    def save(self, request: SaveRequest, trees: dict[str, Any], chunks: Chunks | None
             ) -> Operation:
        """The request's metrics and what it retires are process 0's."""

    def import_orbax(self, source: OrbaxSource, if_exists: IfExists, last: Operation | None
                     ) -> Operation:
        """`last`: the import before this one; where that failed, no process of several begins."""

    def change(self, kind: Change, steps: list[int], items: list[str], why: str = "") -> None:
        """Deletes steps, or items of them; pins or unpins steps, or taints them, with the reason,
        or untaints them, without one. Waits for it."""

    def rollback(self, to: int, why: str | None) -> list[int]:
        """Deletes the steps above `to`, or taints them with the reason, and returns them."""

    def from_leader(self, work: Callable[[], T], what: str) -> T:
        """Runs `work` on process 0 alone and gives its result, which is JSON, to all."""

    @property
    def leads(self) -> bool:
        """True on process 0."""

    def gather(self, word: int, what: str) -> list[int]:
        """The words of all processes, which call this together."""

    def steps(self) -> list[StepSummary]: ...

    def step_numbers(self, last: int | None = None, tainted: bool = True) -> list[int]:
        """Returns the `last` highest steps, or all, ascending; with or without tainted ones."""

    def newest(self) -> int | None:
        """The highest step that is not tainted. CorruptionError where it may be lost."""

    def source(self, step: int, check: Callable[[], None], account: Account) -> Source: ...

    def newest_source(self, check: Callable[[], None], account: Account) -> Source | None:
        """Returns the source of the newest step; None without any."""

    def compare(self, before: Source, after: Source, leaves_before: list[int],
                leaves_after: list[int], elements: bool) -> StepDifference:
        """Compares leaves of two steps, numbered as in their trees. `elements`: counts those that
        changed."""

    def whole(self, what: str) -> _stepwell.Core:
        """A core with all parts of every step. Error, about `what`, where there is none."""

    def files(self, what: str) -> _stepwell.Core:
        """The same, with its files on a disk of this machine, for what copies or links them."""

    def watch(self, what: str) -> Watch:
        """Waits for commits. Error, about `what`, where they cannot be waited for."""

    def export(self, request: ExportRequest, step_of: StepOf, source_of: SourceOf,
               progress: Progress | None) -> ExportReport: ...

    def verify(self, step: int | None) -> _stepwell.VerifyReport: ...

    def verify_at_pace(self, step: int, pace: Callable[[int], bool]
                       ) -> _stepwell.VerifyReport | None:
        """Verifies a step; of a store on local disks this process's part of it. Calls
        `pace(done_bytes)` now and then, which may wait. None: `pace` gave false, which ends it."""

    def stats(self) -> _stepwell.StoreStats: ...

    def recovery(self) -> _stepwell.RecoveryReport: ...

    def retention(self) -> Fields: ...

    def frees_bytes(self, steps: list[int]) -> dict[int, int | None]:
        """For no steps those of all."""

    def close(self) -> None: ...


class CoreReads:
    """Reads that a core which has all parts of every step answers by itself."""

    compare = staticmethod(compare)

    def __init__(self, core: _stepwell.Core) -> None:
        self._core = core
        self.newest, self.verify = core.newest, core.verify
        self.stats, self.recovery = core.stats, core.recovery
        self.step_numbers, self.frees_bytes = core.step_numbers, core.frees_bytes

    def retention(self) -> Fields:
        return fields_of(self._core.retention())

    def steps(self) -> list[StepSummary]:
        return StepSummary.all_of(self._core)

    def source(self, step: int, check: Callable[[], None], account: Account) -> Source:
        return Source(self._core.read(step), check, account)

    def newest_source(self, check: Callable[[], None], account: Account) -> Source | None:
        reader = self._core.read_newest()
        return None if reader is None else Source(reader, check, account)

    def verify_at_pace(self, step: int, pace: Callable[[int], bool]
                       ) -> _stepwell.VerifyReport | None:
        return self._core.verify_at_pace(step, True, pace)

    def whole(self, what: str) -> _stepwell.Core:
        return self._core

    def files(self, what: str) -> _stepwell.Core:
        return self.whole(what)

    def watch(self, what: str) -> Watch:
        return self.whole(what).watch_commits()

    def _check_items(self, steps: list[int], items: list[str]) -> None:
        for step in steps if items else []:
            check_items(step, items, [item.name for item in self._core.read(step).items])


class OneProcess(CoreReads):
    how_to_change = HOW_TO_CHANGE
    process_count = 1
    collective = collective_reads = False
    leads = True

    def __init__(self, path: str, core: _stepwell.Core) -> None:
        super().__init__(core)
        self.writer = core
        self._path = path

    def save(self, request: SaveRequest, trees: dict[str, Any], chunks: Chunks | None
             ) -> Operation:
        with paused():
            rows = flatten_items(trees)
            set_chunk_shapes(chunks, rows)
            handle = self._core.save(request, rows, to_numpy, HostCopies)
            del rows  # before collections go on: they would look at each
        return handle

    def import_orbax(self, source: OrbaxSource, if_exists: IfExists, last: Operation | None
                     ) -> Operation:
        found, step = source.locate()
        check_new(self._path, self.steps(), step, if_exists)
        return self._core.import_orbax(
            SaveRequest(step=step, if_exists=if_exists_of(if_exists)), source.plan(found),
            _stepwell.ImportShare())

    def change(self, kind: Change, steps: list[int], items: list[str], why: str = "") -> None:
        self._check_items(steps, items)
        if kind == "taint":
            self._core.set_taint(steps, why)
        elif kind != "delete":
            self._core.set_pinned(steps, kind == "pin")
        elif not items:
            self._core.delete(steps)
        for step in steps if items else []:
            self._core.delete_items(step, items)

    def rollback(self, to: int, why: str | None) -> list[int]:
        return self._core.roll_back(to, why or "")

    def from_leader(self, work: Callable[[], T], what: str) -> T:
        return work()

    def gather(self, word: int, what: str) -> list[int]:
        return [word]

    def export(self, request: ExportRequest, step_of: StepOf, source_of: SourceOf,
               progress: Progress | None) -> ExportReport:
        return run_export(self._core, source_of(request.step), request, progress)

    def close(self) -> None:
        self._core.close()
