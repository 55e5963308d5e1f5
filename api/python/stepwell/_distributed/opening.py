# SPDX-License-Identifier: Apache-2.0
"""Opening a store by all processes of a run: which part each has, and what became of every step.

Each stage is done by all or by none; a process that cannot go on refuses the open of all. Nothing
is made before it is known that it fits what is there.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
from collections.abc import Callable, Sequence
from typing import TypeVar

from .. import _stepwell
from .._backend.backend import MakeCore
from .._runtime.arguments import Disks
from .._runtime.stats import StepSummary
from .._runtime.threads import Thread
from .._stepwell import Decision, StoreGroup
from ..errors import Error, PeerError, StorageError
from .coordinator import Coordinator, broadcast, is_store, part_path, receive
from .lockstep import all_gather
from .messages import (PartReport, PartState, PathReport, RootReport, Value, Verdicts, pack_text,
                       unpack_text)
from .snapshot import StepList

M = TypeVar("M")
Tasks = queue.SimpleQueue[Callable[[], None] | None]

_opens = itertools.count()  # collective opens of this process


def _forget_opens() -> None:
    global _opens
    _opens = itertools.count()


os.register_at_fork(after_in_child=_forget_opens)


def _work(tasks: Tasks) -> None:
    while (task := tasks.get()) is not None:
        task()


def _group_steps(steps: list[_stepwell.StepRecord]) -> dict[tuple[int, bytes], list[int]]:
    """The steps of many processes, by number and save id, with their parts."""
    return {(record.step, record.group.save_id): record.group.parts
            for record in steps if record.group}


_Committed = dict[tuple[int, bytes], Sequence[int]]  # (step, save id) to its parts


def _check_complete(core: _stepwell.Core, root: str, process: int, committed: _Committed) -> None:
    """Checks that a part has its share of every committed step."""
    status = core.group_status()
    part = status.part
    here = {*_group_steps(status.prepared), *_group_steps(core.steps())}
    for (step, save_id), parts in committed.items():
        if part in parts and (step, save_id) not in here:
            raise Error(f"part {part} of step {step} is missing: {part_path(root, part)!r} of "
                        f"process {process} does not have it. Was the disk of that machine lost, "
                        "or an older copy put back? Bring it, or begin a new store elsewhere")


def _recover(core: _stepwell.Core, committed: _Committed, decision_number: int) -> None:
    """Decides what is undecided in a part, and deletes what part 0 has not."""
    status = core.group_status()
    if status.part == 0:
        return
    for step, save_id in _group_steps(status.prepared):
        core.decide(Decision(step=step, save_id=save_id, commit=(step, save_id) in committed,
                             decision_number=decision_number))
    gone = [step for step, save_id in _group_steps(core.steps())
            if (step, save_id) not in committed]
    if gone:
        core.delete(gone)


# ---- where the parts lie: on one file system, or on a disk of each machine ----------------------


def inspect_path(root: str, process: int, disks: Disks) -> PathReport:
    """Reports the state that `process` finds at its path; for check_paths."""
    parts: list[str] = []
    if disks == "local" and os.path.isdir(root):
        parts = sorted(name for name in os.listdir(root)
                       if name.startswith("process_") and is_store(os.path.join(root, name)))
    return PathReport(root, os.path.basename(root), disks, is_store(root), parts)


def check_paths(reports: list[PathReport]) -> None:
    """Checks that all processes open one store whose root, if there is one, is process 0's."""
    first = reports[0]
    for process, report in enumerate(reports):
        if report.name != first.name:
            raise PeerError(
                f"process {process} opens {report.path!r}, process 0 {first.path!r}: all "
                "processes open the same stores in the same order", [process])
        if report.disks != first.disks:
            raise PeerError(
                f"process {process} opens {report.path!r} with disks={report.disks!r}, process 0 "
                f"with disks={first.disks!r}", [process])
    if first.disks != "local" or first.is_store:
        return
    for process, report in enumerate(reports):
        if report.is_store or report.parts:
            what = "a store" if report.is_store else f"{report.parts[0]} of a store"
            raise Error(
                f"process 0 has no store at {first.path!r}, and process {process} finds {what} "
                f"in {report.path!r}: is process 0's path or machine another than when it was "
                "made, or its disk lost? The store begins where process 0 was; begin a new one at "
                "a path that is free on all machines")


def sees_root(path: str, process: int, root: RootReport, disks: Disks,
              make_core: MakeCore) -> bool:
    """Returns true if another process than 0 sees, at `path`, the root that process 0 opened."""
    if is_store(path):
        core = make_core(path, True, None)
        is_root = core.id().hex() == root.id
        core.close()
        if is_root:
            return True
        raise Error(f"process {process} finds another store at {path!r} than process 0 opened at "
                    f"{root.path!r}: is the path right, and is process 0 on the machine where "
                    "it was when the store was made?")
    if disks == "shared":
        raise Error(f"process {process} does not see the store that process 0 opened at "
                    f"{root.path!r}: it must be on a file system that all processes share, or, "
                    "where each machine has a disk of its own, be opened with disks=\"local\"")
    return False


def check_part(path: str, process: int, root: RootReport) -> None:
    """Before the part of a process on a disk of its own is opened, or made: it is not lost."""
    own = part_path(path, process)
    if is_store(own):
        return
    if process in root.members:
        raise Error(f"part {process} of {root.path!r} is missing: process {process} has no "
                    f"{own!r}, and steps of the store have data there. Is the path right, is its "
                    "disk mounted, does the process run on the machine where it ran? If the disk "
                    "is lost, begin a new store elsewhere")
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)
        descriptor = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)  # the part's own names are synced by the engine
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StorageError(error.errno, f"process {process}: {path}: {error.strerror}") from error


# ---- by all processes ---------------------------------------------------------------------------


class Opening:
    """A store that all processes of a run have opened, as this one has it."""

    def __init__(self, coordinator: Coordinator, root: str, timeout: float, make_core: MakeCore,
                 disks: Disks) -> None:
        self.coordinator = coordinator
        self.root = root
        self.timeout = timeout
        self._disks = disks
        self._make_core = make_core
        self.index = coordinator.index
        self.leader = coordinator.index == 0
        self.tasks: Tasks = queue.SimpleQueue()  # of the thread "stepwell-group", one by one
        self.cores: list[_stepwell.Core] = []  # this process's part first
        self.left: list[_stepwell.Core] = []  # parts of processes that are not in this run
        self.local = False  # whether there is a process that does not see the root's files
        self.steps = StepList([])  # where `local`
        try:
            self._open(f"stepwell/open/{next(_opens)}")
        except BaseException:
            self.tasks.put(None)
            self.close_cores()
            raise

    def close(self) -> None:
        """Ends the thread, after what was begun, and this process's part."""
        self.tasks.put(None)
        self.thread.join()
        self.close_cores()

    def close_cores(self) -> None:
        for core in reversed(self.cores):
            core.close()
        self.cores.clear()
        self.left.clear()

    def _open(self, opening: str) -> None:
        """By all processes or by none."""
        what = f"opening {self.root!r}"

        def stage(name: str, work: Callable[[], M]) -> list[M]:
            return all_gather(self.coordinator, f"{opening}/{name}", work, self.timeout, what)

        def look() -> PathReport:
            # Before anything is opened: a process that cannot have it refuses the open of all.
            self.thread = Thread("stepwell-group", _work, self.tasks)
            return inspect_path(self.root, self.index, self._disks)

        check_paths(stage("look", look))
        root = stage("root", self._open_root)[0]
        reports = stage("parts", lambda: self._open_parts(root))
        self.local = not all(report.sees_root for report in reports)
        verdicts = stage("verdicts", lambda: self._judge(reports, f"{opening}/steps"))[0]
        stage("ready", lambda: self._recover(verdicts, f"{opening}/steps"))
        if self.leader:
            self.coordinator.delete(f"{opening}/steps")
        self.run: str = verdicts.run

    def _open_core(self, part: int, read_only: bool, group: StoreGroup | None) -> _stepwell.Core:
        core = self._make_core(part_path(self.root, part), read_only, group)
        self.cores.append(core)
        return core

    def _open_root(self) -> RootReport:
        if not self.leader:
            return RootReport()
        root = self._open_core(0, False, StoreGroup(group_id=bytes(16), part=0))
        return RootReport(root.id().hex(), self.root, sorted(
            {part for parts in _group_steps(root.steps()).values() for part in parts}))

    def _open_parts(self, root: RootReport) -> PartReport:
        """Opens what this process writes; gives what is known there of steps of many processes."""
        own, count = self.coordinator.index, self.coordinator.count
        group_id = bytes.fromhex(root.id)
        sees = self.leader or sees_root(self.root, own, root, self._disks, self._make_core)
        if not self.leader:
            if self._disks == "local":
                check_part(self.root, own, root)
            self._open_core(own, False, StoreGroup(group_id=group_id, part=own))
        # A run with more processes left these parts. Their steps are deleted here.
        for part in itertools.count(own + count, count):
            if not is_store(part_path(self.root, part)):
                break
            group = StoreGroup(group_id=group_id, part=part)
            self.left.append(self._open_core(part, False, group))
        return PartReport([PartState(status.part, status.decision_number) for status
                           in map(_stepwell.Core.group_status, self.cores)], sees)

    def _recover(self, verdicts: Verdicts, steps: str) -> Value:
        committed = {(step, bytes.fromhex(save_id)): verdicts.sets[parts]
                     for step, save_id, parts in verdicts.committed}
        for core in self.cores:
            if self._disks == "local":
                _check_complete(core, self.root, self.index, committed)
            _recover(core, committed, verdicts.decision_number)
        if self.local and not self.leader:
            what = "which steps"
            text = receive(self.coordinator, steps, verdicts.summaries, 0, self.timeout, what)
            self.steps = StepList(map(StepSummary._make, unpack_text(text, Value, 0, what).value))
        elif not self.leader:
            self._open_core(0, True, None)
        return Value()

    def _judge(self, reports: list[PartReport], steps: str) -> Verdicts:
        """On the leader: what became of every step of many processes. Part 0's log decides, as long
        as it is not older than what other parts were told by it."""
        if not self.leader:
            return Verdicts()
        root = self.cores[0]
        status = root.group_status()
        number = status.decision_number
        newest = max([part for report in reports for part in report.parts if part.part != 0],
                     key=lambda part: part.decision_number, default=None)
        if newest is not None and newest.decision_number > number:
            raise Error(
                f"{self.root!r} is older than its part {part_path(self.root, newest.part)!r}, "
                f"which was told of change {newest.decision_number} while the root's newest is "
                f"{number}: was an older copy of the root put back? Bring the newer one, or delete "
                "the parts")
        for step, save_id in _group_steps(status.prepared):  # no process was told of a commit
            root.decide(Decision(step=step, save_id=save_id, commit=False, decision_number=0))
        number = root.group_status().decision_number
        sets: dict[tuple[int, ...], int] = {}
        committed = [(step, save_id.hex(), sets.setdefault(tuple(parts), len(sets)))
                     for (step, save_id), parts in _group_steps(root.steps()).items()]
        count = 0
        if self.local:
            summaries = StepSummary.all_of(root)
            self.steps = StepList(summaries)
            count = broadcast(self.coordinator, steps, pack_text(Value(summaries)))
        return Verdicts(f"stepwell/run/{os.urandom(8).hex()}", number, count, committed, list(sets))
