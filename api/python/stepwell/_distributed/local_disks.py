# SPDX-License-Identifier: Apache-2.0
"""A store whose parts lie on the disks of several machines: no process can read a step by itself.

Process 0 has the root. With each decision it broadcasts how the list of steps has changed, and with
each snapshot what is in a step. Every process reads its own part, and XLA carries the bytes to the
process that wants them. Snapshots and reads are therefore operations of all processes, in the same
order; each process chooses for itself what it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NoReturn, TypeVar, cast

from .. import _stepwell
from .._backend.backend import SourceOf, StepOf
from .._backend.changes import StepDifference
from .._backend.export_options import ExportReport, ExportRequest
from .._load.source import Account, Source
from .._retention import Fields, fields_of
from .._runtime.arguments import Progress, check_items
from .._runtime.gc_pause import paused
from .._runtime.stats import StepSummary
from .._stepwell import LoadStats, Wanted
from ..errors import Error, OutcomeUnknownError
from .coordinator import broadcast, receive
from .group import Group, _log
from .local_disks_changed import LocalDisksComparison
from .local_disks_export import LocalDisksExport
from .messages import Decision, Proposal, StepContents, StepVote, pack_text, unpack_text
from .opening import Opening
from .operation import Collective
from .snapshot import Reader, Snapshot

T = TypeVar("T")


class _Source(Source):
    """A step that all processes read together."""

    collective = True

    def __init__(self, reader: Reader, check: Callable[[], None], account: Account) -> None:
        super().__init__(cast(_stepwell.Reader, reader), check, account, reader.tree())
        self._table = reader.table

    def _together(self, load: Callable[[], T]) -> T:
        return self._table.all_or_none(load)

    def read_boxes(self, wanted: list[Wanted]) -> tuple[list[Any], LoadStats]:
        self.check()
        return self._table.read_boxes(wanted)

    def read_batches(self, batches: list[list[Wanted]]) -> Iterator[tuple[list[Any], LoadStats]]:
        return self._table.read_batches(batches)


class LocalDisks(Group):
    """Some process does not see the files of the root."""

    collective_reads = True
    waits_for_decisions = True  # a step that is known is one that this part has

    def __init__(self, opened: Opening) -> None:
        super().__init__(opened)
        self._steps = opened.steps
        self.verify = self.writer.verify_share
        self.stats, self.recovery = self.writer.stats, self.writer.recovery
        self.frees_bytes = self.writer.frees_bytes

    # ---- reading --------------------------------------------------------------------------------

    def steps(self) -> list[StepSummary]:
        return self._steps.all()

    def step_numbers(self, last: int | None = None, tainted: bool = True) -> list[int]:
        numbers = [summary.step for summary in self.steps() if tainted or not summary.taint]
        return numbers if last is None else numbers[-last:]

    def retention(self) -> Fields:
        return self.from_leader(lambda: fields_of(self.writer.retention()),
                                "the report on retention")

    def newest(self) -> int | None:
        return max(self.step_numbers(1, tainted=False), default=None)

    def source(self, step: int, check: Callable[[], None], account: Account) -> Source:
        op = self._submit_and_wait(Proposal("snapshot", step), step)
        assert op.snapshot is not None
        return _Source(Reader(op.snapshot, self._lockstep), check, account)

    def newest_source(self, check: Callable[[], None], account: Account) -> Source | None:
        newest = self.newest()
        return None if newest is None else self.source(newest, check, account)

    def verify_at_pace(self, step: int, pace: Callable[[int], bool]
                       ) -> _stepwell.VerifyReport | None:
        return self.writer.verify_at_pace(step, False, pace)

    def whole(self, what: str) -> NoReturn:
        raise Error(f"{what} needs all parts of a step on one file system; those of "
                    f"{self._root!r} lie on disks of several machines. Export the step to a file "
                    "system that all processes see")

    def files(self, what: str) -> NoReturn:
        self.whole(what)

    def watch(self, what: str) -> NoReturn:
        self.whole(what)

    def compare(self, before: Source, after: Source, leaves_before: list[int],
                leaves_after: list[int], elements: bool) -> StepDifference:
        comparison = LocalDisksComparison(self._lockstep, before, after, elements)
        return comparison.run(leaves_before, leaves_after)

    def export(self, request: ExportRequest, step_of: StepOf, source_of: SourceOf,
               progress: Progress | None) -> ExportReport:
        return LocalDisksExport(self._lockstep, request).run(step_of, source_of, progress)

    # ---- operations -----------------------------------------------------------------------------

    def _contents(self, op: Collective) -> str:
        if op.kind != "snapshot":
            return ""
        with paused():
            op.snapshot = Snapshot(op.handle.step, [self.writer, *self._left])
            return pack_text(op.snapshot.vote())

    def _broadcast_contents(self, op: Collective, directory: str) -> int:
        assert op.snapshot is not None
        contents = op.snapshot.merge([
            unpack_text(vote.contents, StepVote, process, str(op.proposal))
            for process, vote in enumerate(op.votes)])
        return broadcast(self._coordinator, f"{directory}/contents", pack_text(contents))

    def _receive_contents(self, op: Collective, directory: str, decision: Decision) -> None:
        what = str(op.proposal)
        text = receive(self._coordinator, f"{directory}/contents", decision.contents, 0,
                       self._timeout, what)
        if op.snapshot is not None:
            op.snapshot.receive(unpack_text(text, StepContents, 0, what))

    def _lose_steps(self, error: Error) -> None:
        self._steps.error = error

    def _with_news(self, decision: Decision, what: str) -> Decision:
        try:
            if not decision.unknown or decision.failure is None:
                return replace(decision, news=self._steps.advance(StepSummary.all_of(self.writer)))
            self._lose_steps(decision.failure.error())
        except Exception as error:
            _log(f"{what}: the list of steps cannot be broadcast", error)
            self._lose_steps(Error(f"{what}: {error}"))
        return decision

    def _follow_news(self, decision: Decision, what: str) -> None:
        if decision.news is not None:
            self._steps.follow(decision.news)
        else:
            self._lose_steps(OutcomeUnknownError(f"{what}: process 0 could not say", [0]))

    def _check_deletion(self, proposal: Proposal) -> None:
        for step in proposal.steps if proposal.items else []:
            check_items(step, proposal.items,
                        [item.name for item in self.writer.read_share(step).items])
