# SPDX-License-Identifier: Apache-2.0
"""One store of many processes: each writes a part, and a step commits on all or on none.

db/DESIGN.md, "Many processes", has the protocol of the log; this is the protocol of the processes.
The leader, process 0, writes part 0, the store at the root, whose log decides. The processes do
their operations (saves, imports, deletes, pins) in the same order, as programs under
`jax.distributed` do. Each has a number, and its messages lie below `<run>/<number>/` in the
coordination service. They run one by one on a thread of the store; what is read together
(lockstep.py) has numbers of its own, and runs on the thread that calls, as JAX's work does.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from .. import _stepwell
from .._backend.backend import HOW_TO_CHANGE, Change, CoreReads, SourceOf, StepOf
from .._backend.export_options import ExportReport, ExportRequest, run_export
from .._backend.orbax_source import OrbaxSource, check_new
from .._pytree.chunks import Chunks
from .._pytree.host_copies import HostCopies
from .._pytree.sharding import to_numpy
from .._runtime import service
from .._runtime.arguments import IfExists, Progress, if_exists_of
from .._runtime.gc_pause import paused
from .._runtime.service import Operation
from .._runtime.stats import StepSummary
from .._stepwell import GroupSave, ItemRows, SaveRequest
from ..errors import Error, OutcomeUnknownError, PeerError
from .coordinator import Alive, gather, wait_for
from .lockstep import Lockstep, all_gather
from .messages import (CheckpointVote, Decision, Failure, Proposal, Value, Vote, decode, encode,
                       pack_text, unpack_text)
from .opening import Opening
from .operation import Collective, GroupHandle
from .process_slice import difference, digest_of, mesh_difference, part_of, share_of, vote_of

T = TypeVar("T")


class Group(ABC):
    """This process's side of a store of many; SharedDisk and LocalDisks know how it is read."""

    how_to_change = HOW_TO_CHANGE
    collective = True
    waits_for_decisions = False  # whether a step is known only once it is decided here

    def __init__(self, opened: Opening) -> None:
        self._opened = opened
        self._root = opened.root
        self._coordinator = opened.coordinator
        self._run = opened.run
        self._timeout = opened.timeout
        self._numbers = itertools.count()
        self._left = opened.left
        self._alive = Alive(opened.coordinator, f"{opened.run}/alive", opened.timeout / 4)
        self._lockstep = Lockstep(opened.coordinator, opened.run, self._alive, opened.timeout)
        self._parts = list(range(opened.coordinator.count))
        self.leader = opened.leader
        self.writer = opened.cores[0]
        self.process_count = opened.coordinator.count

    # ---- operations -----------------------------------------------------------------------------

    def next_number(self) -> int:
        """The number of the next operation."""
        return next(self._numbers)

    def save(self, request: SaveRequest, trees: dict[str, Any], chunks: Chunks | None
             ) -> GroupHandle:
        """Saves this process's part, as Store.save does; the handle is of all parts. Process 0
        decides which steps are retired."""
        proposal = Proposal("save", request.step, items=list(trees),
                            if_exists=request.if_exists.name)
        op = Collective(self.next_number(), proposal, GroupHandle(request.step),
                        retire=request.retire)
        try:
            with paused():
                part = part_of(trees, self._coordinator.index, chunks, request.metadata_json)
                op.prepared = self.writer.save(self._own(op, request), part.rows, to_numpy,
                                               HostCopies)
                op.tree_text, op.meshes = part[1:]
                del part  # before collections go on: they would look at each row
        except BaseException as error:
            op.error = error
            self.submit(op)
            raise
        return self.submit(op)

    def _own(self, op: Collective, asked: SaveRequest) -> SaveRequest:
        """Saves this process's part. If the step exists, the leader decides about it, and about its
        contents."""
        texts = (asked.metadata_json, asked.metrics_json) if self.leader else ("", "")
        return SaveRequest(
            step=asked.step, metadata_json=texts[0], metrics_json=texts[1],
            if_exists=asked.if_exists if self.leader else _stepwell.IfExists.replace,
            group=GroupSave(save_id=self._save_id(op.number), parts=self._parts),
            is_copy=asked.is_copy, far_behind=asked.far_behind)

    def import_orbax(self, source: OrbaxSource, if_exists: IfExists, last: Operation | None
                     ) -> GroupHandle:
        """All raise when they cannot agree; what goes wrong later is the handle's error, on all of
        them."""
        existing = if_exists_of(if_exists)
        op = Collective(self.next_number(), Proposal("import", if_exists=if_exists), GroupHandle(0))
        plan: _stepwell.ImportPlan | None = None

        def look() -> CheckpointVote:
            nonlocal plan
            if isinstance(last, GroupHandle) and last.failed is not None:
                raise last.failed
            if not os.path.exists(source.path):
                return CheckpointVote(source.path)
            found, step = source.locate()
            if self.leader:
                check_new(self._root, self.steps(), step, if_exists)
                if if_exists == "skip" and any(step == each.step for each in self.steps()):
                    return vote_of(step, None, found)
            plan = source.plan(found)
            return vote_of(step, plan, found)

        self._alive.begin()  # until the operation is over: reading takes as long as it takes
        agreed = False
        try:
            share = share_of(all_gather(
                self._coordinator, f"{self._run}/{op.number}/look", look, self._timeout,
                "importing a checkpoint", self._alive.watch()), self._coordinator.index)
            agreed = True
            op.handle.step, op.handle.skipped = share.step, share.skip
            op.proposal = replace(op.proposal, step=share.step)
            if not share.skip:
                request = self._own(op, SaveRequest(step=share.step, if_exists=existing))
                op.prepared = (
                    self.writer.import_orbax(request, plan, share.part)
                    if plan is not None and share.part is not None else
                    self.writer.save(request, [ItemRows(name, []) for name in share.items],
                                     to_numpy))
        except BaseException as error:
            op.error = op.handle.failed = error
            if not agreed or not isinstance(error, Exception):
                self.submit(op)
                raise
        return self.submit(op)

    def submit(self, op: Collective) -> GroupHandle:
        """The rest of an operation, whose bytes may be under way here, on the store's thread."""
        self._opened.tasks.put(lambda: self._run_operation(op))
        return op.handle

    def _submit_and_wait(self, proposal: Proposal, step: int) -> Collective:
        op = Collective(self.next_number(), proposal, GroupHandle(step))
        self._opened.tasks.put(lambda: self._run_operation(op))
        op.handle.wait(None)
        error = op.handle.error()
        if error is not None:
            raise error
        return op

    def change(self, kind: Change, steps: list[int], items: list[str], why: str = "") -> None:
        self._submit_and_wait(Proposal(kind, steps=steps, items=items, why=why), steps[0])

    def rollback(self, to: int, why: str | None) -> list[int]:
        return list(self._submit_and_wait(Proposal("rollback", to, why=why), to).changed)

    def from_leader(self, work: Callable[[], T], what: str) -> T:
        return self._lockstep.from_leader(work, what)

    def gather(self, word: int, what: str) -> list[int]:
        return [int(each.value) for each in self._lockstep.all_gather(lambda: Value(word), what)]

    @property
    def leads(self) -> bool:
        return self._lockstep.index == 0

    def close(self) -> None:
        self._opened.close()

    def _run_operation(self, op: Collective) -> None:
        try:
            error = self._take(op)
        except Exception as failed:
            error = (failed if isinstance(failed, Error) or op.kind == "snapshot"
                     else _unknown(op, failed))
        if op.kind == "import":
            self._alive.end()
        op.handle.finish(error)

    def _take(self, op: Collective) -> BaseException | None:
        """One operation; why it failed, if it did."""
        error = op.error
        if op.prepared is not None:
            op.prepared.wait(None)
            error = op.prepared.error()
            op.handle.skipped = op.prepared.skipped
        contents = ""
        try:
            contents = self._contents(op)
        except Exception as cannot:
            error = cannot
        failure = None if error is None else Failure.of(error)
        vote = Vote(op.proposal, digest_of(op.tree_text), failure, op.handle.skipped, contents,
                    op.meshes)
        directory = f"{self._run}/{op.number}"
        try:
            decision = (self._lead if self.leader else self._follow)(op, directory, vote)
        except (OutcomeUnknownError, PeerError) as missing:
            if not self.leader:
                self._lose_steps(missing)
            return missing if error is None else error
        if error is not None:
            return error
        op.handle.skipped, op.changed = decision.skipped, decision.changed
        if op.prepared is not None and decision.failure is None and not decision.skipped:
            op.handle.stats = op.prepared.stats
        return None if decision.failure is None else decision.failure.error()

    # ---- what LocalDisks add --------------------------------------------------------------------

    @abstractmethod
    def steps(self) -> list[StepSummary]: ...

    def _contents(self, op: Collective) -> str:
        """Returns this process's contents of the step in a snapshot."""
        return ""

    def _lose_steps(self, error: Error) -> None:
        """Which steps there are is not known here any more."""

    def _broadcast_contents(self, op: Collective, directory: str) -> int:
        """On the leader, of a snapshot: all that is in the step; in how many values."""
        return 0

    def _receive_contents(self, op: Collective, directory: str, decision: Decision) -> None:
        """On the others, of a snapshot: all that is in the step."""

    def _with_news(self, decision: Decision, what: str) -> Decision:
        """On the leader: with how the list of steps has changed."""
        return decision

    def _follow_news(self, decision: Decision, what: str) -> None:
        """On the others."""

    # ---- the leader -----------------------------------------------------------------------------

    def _lead(self, op: Collective, directory: str, vote: Vote) -> Decision:
        what = str(op.proposal)
        own: Exception | None = None
        try:
            watch = self._alive.watch() if op.kind == "import" else None
            texts = gather(self._coordinator, directory, encode(vote), self._timeout, what, watch)
            op.votes = [decode(text, Vote, process, what) for process, text in enumerate(texts)]
            decision = self._verdict(op, directory)
        except PeerError as missing:
            decision = Decision(Failure(f"{what} was given up: {missing}",
                                        processes=missing.processes))
        # The others wait from here on: whatever happens, they receive a decision.
        try:
            if op.kind != "snapshot":
                decision = self.decide(op, decision)
            elif op.snapshot is not None and decision.failure is None:
                decision = replace(decision, contents=self._broadcast_contents(op, directory))
        except Exception as error:
            # The store's own errors say that nothing was done, but for OutcomeUnknownError; any
            # other may come from before or after. What may be committed here is not aborted there:
            # the others keep it undecided, and the next open finds it whole or aborts it.
            if decision.failure is None:
                own = (error if isinstance(error, Error) or op.kind == "snapshot"
                       else _unknown(op, error))
                decision = replace(decision, failure=Failure.of(own, [0]),
                                   unknown=isinstance(own, OutcomeUnknownError))
            else:
                _log(f"{what} is aborted, which part 0 could not note", error)
        self._publish(op, directory, decision, what)
        if own is not None:
            raise own
        return decision

    def _publish(self, op: Collective, directory: str, decision: Decision, what: str) -> None:
        """Passes on what is decided, which no failure here changes."""
        try:
            self._settle_left(decision)
        except Exception as error:
            _log(f"{what}: a part of another run could not follow; the next open does it", error)
        if op.kind != "snapshot":
            decision = self._with_news(decision, what)
        try:
            self._coordinator.put(f"{directory}/decision", encode(decision))
            if op.number > 0:  # every process that voted has read the last one
                self._coordinator.delete(f"{self._run}/{op.number - 1}")
        except Exception as error:
            _log(f"{what}: the other processes could not be told", error)

    def _verdict(self, op: Collective, directory: str) -> Decision:
        for process, vote in enumerate(op.votes):
            if vote.failure is not None:
                return Decision(replace(vote.failure, processes=[process]))
        first = op.votes[0]
        if first.skipped:
            return Decision(skipped=True)
        for process, vote in enumerate(op.votes):
            for key, value in vars(vote.proposal).items():
                expected = getattr(first.proposal, key)
                if value != expected:
                    return Decision(Failure(
                        f"the processes do not do the same: {key} is {value!r} in process "
                        f"{process} and {expected!r} in process 0", processes=[process]))
        differing = [i for i, vote in enumerate(op.votes) if vote.fingerprint != first.fingerprint]
        if differing:
            return Decision(Failure(self._explain(op, directory, differing[0]),
                                    processes=differing))
        return Decision(mesh_difference(op.handle.step, op.tree_text,
                                        [vote.meshes for vote in op.votes]))

    def _explain(self, op: Collective, directory: str, process: int) -> str:
        """Explains how the tree of `process` differs."""
        what = "telling its tree"
        self._coordinator.put(f"{directory}/explain", str(process))
        text = wait_for(self._coordinator, f"{directory}/tree_text", process, self._timeout, what)
        theirs = unpack_text(text, Value, process, what).value
        return (f"step {op.handle.step}: the processes save different trees: "
                + difference(op.tree_text, theirs, process))

    # ---- the others -----------------------------------------------------------------------------

    def _follow(self, op: Collective, directory: str, vote: Vote) -> Decision:
        what = f"deciding {op.proposal}"
        try:
            self._coordinator.put(f"{directory}/{self._coordinator.index}", encode(vote))
            timeout = 2 * self._timeout + 10  # the leader may wait for others first, and tell then
            text = self._wait_answering(op, directory, timeout)
            decision = None if text is None else decode(text, Decision, 0, what)
        except PeerError as lost:
            if op.kind == "snapshot":
                raise
            raise OutcomeUnknownError(f"{what}: whether it was committed is not known: {lost}",
                                      [0]) from lost
        if decision is None:
            kind = PeerError if op.kind == "snapshot" else OutcomeUnknownError
            raise kind(f"{what}: process 0 did not say within {timeout:g} s whether it was "
                       "committed; the next open finds out", [0])
        if op.kind == "snapshot":
            if decision.contents:
                self._receive_contents(op, directory, decision)
            return decision
        self._follow_news(decision, what)
        try:
            self.decide(op, decision)
            self._settle_left(decision)
        except Exception as error:
            # Part 0 has decided, so that it is so; the next open decides what is prepared here.
            _log(f"{what}: this process's part could not note it; the next open does", error)
            self._lose_steps(error if isinstance(error, Error) else Error(str(error)))
        return decision

    def _wait_answering(self, op: Collective, directory: str, timeout: float) -> str | None:
        """The decision. Meanwhile the leader may ask for this process's tree; while it imports, it
        may take as long as it is alive."""
        waited, slice_seconds = 0.0, 1.0
        watch = self._alive.watch() if op.kind == "import" else None
        while waited < timeout:
            text = self._coordinator.get(f"{directory}/decision", slice_seconds)
            if text is not None:
                return text
            waited = waited + slice_seconds if watch is None else watch.silent_seconds(0)
            if "explain" in self._coordinator.keys(directory):
                asked = self._coordinator.get(f"{directory}/explain", 1.0)
                if asked == str(self._coordinator.index):
                    self._coordinator.put(f"{directory}/tree_text", pack_text(Value(op.tree_text)))
                return self._coordinator.get(f"{directory}/decision", timeout)
        return None

    # ---- both -----------------------------------------------------------------------------------

    def _save_id(self, number: int) -> bytes:
        return hashlib.blake2b(f"{self._run}/{number}".encode(), digest_size=16).digest()

    def decide(self, op: Collective, decision: Decision) -> Decision:
        """Writes what was decided into this process's part. On the leader that makes it so; gives
        the decision with what was done: the steps that the commit has ended, those changed."""
        proposal = op.proposal
        if op.kind in ("save", "import"):
            prepared = op.prepared
            if decision.unknown:
                return decision  # it stays undecided
            if prepared is not None and prepared.error() is None and not prepared.skipped:
                commit = decision.failure is None and not decision.skipped
                decided = self.writer.decide(_stepwell.Decision(
                    step=op.handle.step, save_id=self._save_id(op.number), commit=commit,
                    dead=op.retire if self.leader else decision.dead,
                    decision_number=decision.decision_number,
                    wait=self.leader or self.waits_for_decisions))
                if self.leader:
                    return replace(decision, dead=decided.dead,
                                   decision_number=decided.decision_number)
        elif not self.leader:
            if op.kind == "delete" or (op.kind == "rollback" and proposal.why is None):
                # Other parts drop nothing by themselves.
                # Steps that the leader had and this part lacks are steps of one process.
                here = {summary.step for summary in self.writer.steps()}
                self._delete([step for step in decision.changed if step in here],
                             proposal.items, [])
        elif decision.failure is None:
            if op.kind == "delete":
                self._check_deletion(proposal)
                self._delete(proposal.steps, proposal.items, decision.changed)
            elif op.kind == "taint":
                self.writer.set_taint(proposal.steps, proposal.why or "")
            elif op.kind == "rollback":
                decision.changed.extend(
                    self.writer.roll_back(op.handle.step, proposal.why or ""))
            else:
                self.writer.set_pinned(proposal.steps, op.kind == "pin")
        return decision

    def _check_deletion(self, proposal: Proposal) -> None:
        """On the leader, where `change` could not check."""

    def _delete(self, steps: Sequence[int], items: Sequence[str], done: list[int]) -> None:
        """Steps at once, or items of each, one step after the other."""
        if not items and steps:
            self.writer.delete(steps)
            done.extend(steps)
        for step in steps if items else []:
            self.writer.delete_items(step, items)
            done.append(step)

    def _settle_left(self, decision: Decision) -> None:
        """Parts of earlier runs follow what was deleted."""
        for core in self._left if decision.dead else []:
            here = {summary.step for summary in core.steps()}
            core.delete([step for step in decision.dead if step in here])


class SharedDisk(CoreReads, Group):
    """Every process sees the files of all parts, and reads by itself."""

    collective_reads = False

    def __init__(self, opened: Opening) -> None:
        Group.__init__(self, opened)
        CoreReads.__init__(self, opened.cores[0 if opened.leader else -1])

    def change(self, kind: Change, steps: list[int], items: list[str], why: str = "") -> None:
        self._check_items(steps, items)
        super().change(kind, steps, items, why)

    def export(self, request: ExportRequest, step_of: StepOf, source_of: SourceOf,
               progress: Progress | None) -> ExportReport:
        """The first process that comes with the request makes it."""
        source = source_of(request.step)
        request = replace(request, step=source.step)
        made = self._lockstep.once(f"exporting {request!r}", Value, lambda: Value(
            vars(run_export(self._core, source, request, progress))))
        return ExportReport.from_fields(made.value)


def _unknown(op: Collective, error: BaseException) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"whether {op.proposal} was done is not known: {type(error).__name__}: {error}; "
        "close the store and open it again, by all processes, which settles it")


def _log(what: str, error: BaseException) -> None:
    service.logger.error("%s: %s: %s", what, type(error).__name__, error)
