# SPDX-License-Identifier: Apache-2.0
"""One store of many processes: each writes a part, and a step is committed for all or for none.

db/DESIGN.md, "Many processes", has the protocol of the log; this is who says what to whom. The
leader, process 0, writes part 0, the store at the root, whose log decides. What the processes do
together (opening, saving, deleting) they do in the same order, as programs under `jax.distributed`
do; each such thing has a number, and its words lie below `<run>/<number>/` in the coordination
service. All but opening happens on one thread a store, in that order; what is read together
(local_disks.py) has numbers of its own, and happens on the thread that calls, as JAX's work does.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import queue
from collections.abc import Callable, Sequence
from typing import Any

from .. import _stepwell
from .._pytree.chunks import Chunks
from .._pytree.sharding import to_numpy
from .._runtime import service
from .._runtime.arguments import check_items, if_exists_number
from .._runtime.gc_pause import Paused
from .._runtime.service import start_thread
from ..errors import Error, OutcomeUnknownError, PeerError
from . import local_disks
from .collective import Collective, GroupHandle
from .coordinator import (
    Alive,
    Coordinator,
    broadcast,
    gather,
    is_store,
    part_path,
    receive,
    wait_for,
)
from .import_partition import Share, share_of
from .lockstep import Lockstep, gather_results
from .part_layout import Disks, MakeCore, check_looks, check_part, look_around, sees_root
from .part_recovery import check_complete, settle, state_of
from .peer_errors import raised, told
from .process_slice import part_of
from .single_flight import SingleFlight
from .snapshot import Snapshot, StepList
from .tree_fingerprint import difference, digest_of
from .wire import packed_text, unpacked_text

_opens = itertools.count()  # collective opens of this process


def _forget_opens() -> None:
    global _opens
    _opens = itertools.count()


os.register_at_fork(after_in_child=_forget_opens)


# ---- opening ------------------------------------------------------------------------------------


class Group:
    """This process's side of a store of many."""

    def __init__(self, coordinator: Coordinator, root: str, timeout: float, make_core: MakeCore,
                 disks: Disks) -> None:
        self._coordinator = coordinator
        self._root = root
        self._disks = disks
        self._timeout = timeout
        self._make_core = make_core
        self._numbers = itertools.count()
        self._collectives: queue.SimpleQueue[Collective | None] = queue.SimpleQueue()
        self._cores: list[_stepwell.Core] = []  # all that are open here
        self._left: list[_stepwell.Core] = []  # parts of processes that are not in this run
        self.index = coordinator.index
        self.leader = coordinator.index == 0
        self.parts = list(range(coordinator.count))
        self.together = coordinator.count > 1  # else this process alone looks after all parts
        self.apart = False  # whether there is a process that does not see the root's files
        self.steps = StepList([])  # where `apart`
        try:
            self._open(f"stepwell/open/{next(_opens)}")
        except BaseException:
            self._collectives.put(None)
            self._close_cores()
            raise

    def _open(self, opening: str) -> None:
        """By all processes or by none."""
        what = f"opening {self._root!r}"

        def together(about: str, work: Callable[[], dict[str, Any]]) -> list[dict[str, Any]]:
            return gather_results(self._coordinator, f"{opening}/{about}", work, self._timeout,
                                  what)

        def look() -> dict[str, Any]:
            # Before anything is opened: a process that cannot have it refuses the open of all.
            self._thread = start_thread("stepwell-group", self._work)
            return look_around(self._root, self.index, self._disks)

        check_looks(together("look", look))
        root = together("root", self._open_root)[0]
        reports = together("parts", lambda: self._open_parts(root))
        self.apart = not all(report["sees"] for report in reports)
        verdicts = together("verdicts", lambda: self._judge(reports, f"{opening}/steps"))[0]
        together("ready", lambda: self._settle(verdicts, f"{opening}/steps"))
        if self.leader:
            self._coordinator.delete(f"{opening}/steps")
        self._run = verdicts["run"]
        self._alive = Alive(self._coordinator, f"{self._run}/alive", self._timeout / 4)
        self.once = SingleFlight(self._coordinator, f"{self._run}/once", self._alive,
                                 self._timeout)
        self.lockstep = Lockstep(self._coordinator, self._run, self._alive, self._timeout)
        self.writer = self._cores[0]  # this process's part
        self.core: _stepwell.Core | local_disks.Core = (  # what is asked for steps
            local_disks.Core(self.writer, self.steps, self.snapshot, self.lockstep) if self.apart
            else self._cores[-1 if not self.leader else 0])

    def _open_core(self, part: int, read_only: bool, group: tuple[bytes, int] | None
                   ) -> _stepwell.Core:
        core = self._make_core(part_path(self._root, part), read_only, group)
        self._cores.append(core)
        return core

    def _open_root(self) -> dict[str, Any]:
        if not self.leader:
            return {}
        root = self._open_core(0, False, (bytes(16), 0))
        return {"id": root.id().hex(),
                "path": self._root,
                "members": sorted({part for _, _, parts in root.group_steps() for part in parts})}

    def _open_parts(self, root: dict[str, Any]) -> dict[str, Any]:
        """Opens what this process writes; gives what is known there of steps of many processes."""
        own, count = self._coordinator.index, self._coordinator.count
        group_id = bytes.fromhex(root["id"])
        sees = self.leader or sees_root(self._root, own, root, self._disks, self._make_core)
        if not self.leader:
            if self._disks == "local":
                check_part(self._root, own, root)
            self._open_core(own, False, (group_id, own))
        # Of a run with more processes: somebody must go on deleting there.
        for part in itertools.count(own + count, count):
            if not is_store(part_path(self._root, part)):
                break
            self._left.append(self._open_core(part, False, (group_id, part)))
        return {"parts": [state_of(core) for core in self._cores], "sees": sees}

    def _settle(self, verdicts: dict[str, Any], steps: str) -> dict[str, Any]:
        committed = {(step, bytes.fromhex(save_id)): verdicts["sets"][parts]
                     for step, save_id, parts in verdicts["committed"]}
        for core in self._cores:
            if self._disks == "local":
                check_complete(core, self._root, self.index, committed)
            settle(core, committed, verdicts["mark"])
        if self.apart and not self.leader:
            self.steps = StepList(unpacked_text(receive(
                self._coordinator, steps, verdicts["steps"], 0, self._timeout, "which steps")))
        elif not self.leader:
            self._open_core(0, True, None)
        return {}

    def _judge(self, reports: list[dict[str, Any]], steps: str) -> dict[str, Any]:
        """On the leader: what became of every step of many processes. Part 0's log decides, as long
        as it is not older than what other parts were told by it (rule 28)."""
        if not self.leader:
            return {}
        root = self._cores[0]
        _, _, mark, prepared = root.group_status()
        parts = [part for report in reports for part in report["parts"] if part["part"] != 0]
        newest = max(parts, key=lambda part: part["mark"], default={"mark": 0})
        if newest["mark"] > mark:
            raise Error(
                f"{self._root!r} is older than its part {part_path(self._root, newest['part'])!r}, "
                f"which was told of change {newest['mark']} while the root's newest is {mark}: was "
                "an older copy of the root put back? Bring the newer one, or delete the parts")
        for step, save_id in prepared:  # nobody was told that they are committed
            root.decide(step, save_id, False, [], 0, True)
        _, _, mark, _ = root.group_status()
        sets: dict[tuple[int, ...], int] = {}
        committed = [[step, save_id.hex(), sets.setdefault(tuple(parts), len(sets))]
                     for step, save_id, parts in root.group_steps()]
        count = 0
        if self.apart:
            summaries = root.steps()
            self.steps = StepList(summaries)
            count = broadcast(self._coordinator, steps, packed_text(summaries))
        return {"run": f"stepwell/run/{os.urandom(8).hex()}", "mark": mark, "steps": count,
                "committed": committed, "sets": list(sets)}

    # ---- collectives -----------------------------------------------------------------------------

    def next_number(self) -> int:
        """The number of the next thing that all processes do."""
        return next(self._numbers)

    def save(self, step: int, trees: dict[str, Any], metadata: str, metrics: str, existing: int,
             chunks: Chunks | None) -> GroupHandle:
        """As Store.save, of this process's part; the handle is of all parts."""
        number = self.next_number()
        about = {"step": step, "items": list(trees), "if_exists": existing}
        try:
            with Paused():
                part = part_of(trees, self._coordinator.index, chunks)
                if not self.leader:  # the leader decides about the step that is there
                    metadata, metrics, existing = "", "", if_exists_number("replace")
                prepared = self.writer.save(step, part.rows, metadata, metrics, existing, to_numpy,
                                            part.wishes, (self._save_id(number), self.parts))
                outline = part.outline
                del part  # before collections go on: they would look at each row
        except BaseException as error:
            self.submit(Collective(number, "save", GroupHandle(step), about, error=error))
            raise
        return self.submit(Collective(number, "save", GroupHandle(step), about, outline, prepared))

    def import_as(self, existing: int, look: Callable[[], dict[str, Any]],
                  prepare: Callable[[Share, int, tuple[bytes, list[int]]], _stepwell.Handle]
                  ) -> GroupHandle:
        """A checkpoint as a step, by all processes: `look` gives what this one says of it, and
        `prepare`, with what follows from that, saves its share. All raise when they cannot agree;
        what goes wrong later is the handle's error, on all of them."""
        number = self.next_number()
        op = Collective(number, "import", GroupHandle(0), {"if_exists": existing})
        self._alive.begin()  # until the op is over: reading takes as long as it takes
        agreed = False
        try:
            share = share_of(gather_results(self._coordinator, f"{self._run}/{number}/look", look,
                                            self._timeout, "importing a checkpoint",
                                            self._alive.watch()), self.index)
            agreed = True
            op.handle.step = op.about["step"] = share.step
            op.handle.skipped = share.skip
            if not share.skip:
                if not self.leader:  # the leader decides about the step that is there
                    existing = if_exists_number("replace")
                op.prepared = prepare(share, existing, (self._save_id(number), self.parts))
        except BaseException as error:
            op.error = op.handle.failed = error
            if not agreed or not isinstance(error, Exception):
                self.submit(op)
                raise
        return self.submit(op)

    def submit(self, op: Collective) -> GroupHandle:
        """The rest of a save whose bytes are under way here, or that this process cannot do."""
        self._collectives.put(op)
        return op.handle

    def change(self, kind: str, steps: list[int], items: Sequence[str] = ()) -> None:
        """"delete" (items of steps or steps), "pin", "unpin", by all processes; waits for it."""
        op = Collective(self.next_number(), kind, GroupHandle(steps[0]),
                     {"steps": steps, "items": list(items)})
        self._collectives.put(op)
        op.handle.wait(None)
        error = op.handle.error()
        if error is not None:
            raise error

    def snapshot(self, step: int) -> Snapshot:
        """What is in a step, by all processes; see snapshot.py."""
        op = Collective(self.next_number(), "snapshot", GroupHandle(step), {"step": step})
        self._collectives.put(op)
        op.handle.wait(None)
        error = op.handle.error()
        if error is not None:
            raise error
        assert op.snapshot is not None
        return op.snapshot

    def close(self) -> None:
        """Ends the thread, after what was begun, and this process's part."""
        self._collectives.put(None)
        self._thread.join()
        self._close_cores()

    def _close_cores(self) -> None:
        for core in reversed(self._cores):
            core.close()
        self._cores.clear()
        self._left.clear()

    def _work(self) -> None:
        while True:
            op = self._collectives.get()
            if op is None:
                return
            try:
                error = self._take(op)
            except Error as failed:
                error = failed
            except Exception as unexpected:
                error = unexpected if op.kind == "snapshot" else _unknown(op, unexpected)
            if op.kind == "import":
                self._alive.end()
            op.handle.finish(error)

    def _take(self, op: Collective) -> BaseException | None:
        """One op; why it failed, if it did."""
        error = op.error
        if op.prepared is not None:
            op.prepared.wait(None)
            error = op.prepared.error()
            op.handle.skipped = op.prepared.skipped
        if op.kind == "snapshot":
            try:
                with Paused():
                    op.snapshot = Snapshot(op.handle.step, [self.writer, *self._left])
            except Exception as cannot:
                error = cannot
        word = {"about": {"kind": op.kind, **op.about, "digest": digest_of(op.outline)},
                "error": None if error is None else told(error), "skipped": op.handle.skipped,
                "look": None if op.snapshot is None else op.snapshot.vote()}
        directory = f"{self._run}/{op.number}"
        try:
            if self.leader:
                decision = self._lead(op, directory, word)
            else:
                decision = self._follow(op, directory, word)
        except (OutcomeUnknownError, PeerError) as missing:
            if self.apart and not self.leader:
                self.steps.error = missing
            return missing if error is None else error
        if error is not None:
            return error
        op.handle.skipped = bool(decision.get("skipped"))
        return None if decision["error"] is None else raised(decision)

    # ---- the leader -----------------------------------------------------------------------------

    def _lead(self, op: Collective, directory: str, word: dict[str, Any]) -> dict[str, Any]:
        what = f"{op.kind} {op.about.get('step', op.about.get('steps'))}"
        decision: dict[str, Any]
        own: Exception | None = None
        try:
            watch = self._alive.watch() if op.kind == "import" else None
            texts = gather(self._coordinator, directory, json.dumps(word), self._timeout, what,
                           watch)
            op.words = [json.loads(text) for text in texts]
            decision = self._verdict(op, directory, op.words)
        except PeerError as missing:
            decision = {"error": f"{what} was given up: {missing}",
                        "processes": list(missing.processes)}
        # From here on the others wait: whatever happens they are told.
        decision.update(commit=decision["error"] is None, unknown=False, dead=[], mark=0,
                        changed=[])
        try:
            if op.kind != "snapshot":
                self.decide(op, decision)
            elif op.snapshot is not None and decision["commit"]:
                about = packed_text(op.snapshot.merge([word["look"] for word in op.words]))
                decision["look"] = broadcast(self._coordinator, f"{directory}/look", about)
        except Exception as error:
            # The store's own errors say that nothing was done, but for OutcomeUnknownError; any
            # other may come from before or after. What may be committed here is not aborted there:
            # the others keep it undecided, and the next open finds it whole or aborts it.
            if decision["commit"]:
                own = (error if isinstance(error, Error) or op.kind == "snapshot"
                       else _unknown(op, error))
                decision.update(commit=False, unknown=isinstance(own, OutcomeUnknownError),
                                processes=[0], **told(own))
            else:
                _say(f"{what} is aborted, which part 0 could not note", error)
        self._tell(op, directory, decision, what)
        if own is not None:
            raise own
        return decision

    def _tell(self, op: Collective, directory: str, decision: dict[str, Any], what: str) -> None:
        """Passes on what is decided, which no failure here changes."""
        try:
            self._settle_left(decision)
        except Exception as error:
            _say(f"{what}: a part of another run could not follow; the next open does it", error)
        if self.apart and op.kind != "snapshot":
            self._advance(decision, what)
        try:
            self._coordinator.put(f"{directory}/decision", json.dumps(decision))
            if op.number > 0:  # everybody has read that, who has answered this
                self._coordinator.delete(f"{self._run}/{op.number - 1}")
        except Exception as error:
            _say(f"{what}: the other processes could not be told", error)

    def _advance(self, decision: dict[str, Any], what: str) -> None:
        """Adds how the list of steps has changed; nothing where that is not known."""
        try:
            if not decision["unknown"]:
                decision["steps"] = self.steps.advance(self.writer.steps())
                return
            lost = raised(decision)
        except Exception as error:
            _say(f"{what}: the list of steps cannot be told", error)
            lost = Error(f"{what}: {error}")
        self.steps.error = lost

    def _verdict(self, op: Collective, directory: str, words: list[dict[str, Any]]
                 ) -> dict[str, Any]:
        for process, word in enumerate(words):
            if word["error"] is not None:
                return {**word["error"], "processes": [process]}
        if words[0]["skipped"]:
            return {"error": None, "skipped": True}
        first = words[0]["about"]
        for process, word in enumerate(words):
            for key, value in word["about"].items():
                if key != "digest" and value != first.get(key):
                    return {"error": f"the processes do not do the same: {key} is {value!r} in "
                                     f"process {process} and {first.get(key)!r} in process 0",
                            "processes": [process]}
        differing = [process for process, word in enumerate(words)
                     if word["about"]["digest"] != first["digest"]]
        if differing:
            return {"error": self._explain(op, directory, differing[0]), "processes": differing}
        return {"error": None}

    def _explain(self, op: Collective, directory: str, process: int) -> str:
        """How the tree of `process` differs."""
        self._coordinator.put(f"{directory}/explain", str(process))
        theirs = wait_for(self._coordinator, f"{directory}/outline", process, self._timeout,
                          "telling its tree")
        return (f"step {op.handle.step}: the processes save different trees: "
                + difference(op.outline, unpacked_text(theirs), process))

    # ---- the others -----------------------------------------------------------------------------

    def _follow(self, op: Collective, directory: str, word: dict[str, Any]) -> dict[str, Any]:
        coordinator = self._coordinator
        what = f"deciding {op.kind} {op.about.get('step', op.about.get('steps'))}"
        try:
            coordinator.put(f"{directory}/{coordinator.index}", json.dumps(word))
            timeout = 2 * self._timeout + 10  # the leader may wait for others first, and tell then
            text = self._wait_answering(op, directory, timeout)
        except PeerError as lost:
            if op.kind == "snapshot":
                raise
            raise OutcomeUnknownError(f"{what}: whether it was committed is not known: {lost}",
                                      [0]) from lost
        if text is None:
            kind = PeerError if op.kind == "snapshot" else OutcomeUnknownError
            raise kind(f"{what}: process 0 did not say within {timeout:g} s whether it was "
                       "committed; the next open finds out", [0])
        decision: dict[str, Any] = json.loads(text)
        if op.kind == "snapshot":
            if op.snapshot is not None and "look" in decision:
                op.snapshot.receive(unpacked_text(receive(
                    coordinator, f"{directory}/look", decision["look"], 0, self._timeout, what)))
            return decision
        if "steps" in decision:
            self.steps.follow(decision["steps"])
        elif self.apart:
            self.steps.error = OutcomeUnknownError(f"{what}: process 0 could not say", [0])
        try:
            self.decide(op, decision)
            self._settle_left(decision)
        except Exception as error:
            # Part 0 has decided, so that it is so; the next open decides what is prepared here.
            _say(f"{what}: this process's part could not note it; the next open does", error)
            if self.apart:
                self.steps.error = error if isinstance(error, Error) else Error(str(error))
        return decision

    def _wait_answering(self, op: Collective, directory: str, timeout: float) -> str | None:
        """The decision. Meanwhile the leader may ask for this process's tree; while it imports, it
        may take as long as it is heard of."""
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
                    self._coordinator.put(f"{directory}/outline", packed_text(op.outline))
                return self._coordinator.get(f"{directory}/decision", timeout)
        return None

    # ---- both -----------------------------------------------------------------------------------

    def _save_id(self, number: int) -> bytes:
        return hashlib.blake2b(f"{self._run}/{number}".encode(), digest_size=16).digest()

    def decide(self, op: Collective, decision: dict[str, Any]) -> None:
        """Writes what was decided into this process's part. On the leader that makes it so, and
        what was done is added to `decision`: the steps that died of it, those that were changed."""
        if op.kind in ("save", "import"):
            prepared = op.prepared
            if decision["unknown"]:
                return  # it stays undecided
            if prepared is not None and prepared.error() is None and not prepared.skipped:
                commit = decision["commit"] and not decision.get("skipped", False)
                # Where all read together, a step that is known is one that this part has.
                wait = self.leader or self.apart
                dead, mark = self.writer.decide(op.handle.step, self._save_id(op.number),
                                                commit, decision["dead"], decision["mark"],
                                                wait)
                if self.leader:
                    decision.update(dead=dead, mark=mark)
        elif not self.leader:
            if op.kind == "delete":  # other parts drop nothing by themselves
                # What the leader had and this part has not: steps of one process.
                here = {summary[0] for summary in self.writer.steps()}
                self._delete([step for step in decision["changed"] if step in here],
                             op.about["items"], [])
        elif decision["commit"]:
            steps, items = op.about["steps"], op.about["items"]
            if op.kind == "delete":
                for step in steps if items and self.apart else []:
                    check_items(step, items,
                                [name for name, *_ in self.writer.read_share(step).items()])
                self._delete(steps, items, decision["changed"])
            else:
                self.writer.set_pinned(steps, op.kind == "pin")

    def _delete(self, steps: list[int], items: list[str], done: list[int]) -> None:
        """Steps at once, or items of each, one step after the other."""
        if not items and steps:
            self.writer.delete(steps)
            done.extend(steps)
        for step in steps if items else []:
            self.writer.delete_items(step, items)
            done.append(step)

    def _settle_left(self, decision: dict[str, Any]) -> None:
        """Parts of earlier runs follow what was deleted."""
        dead = decision.get("dead", [])
        for core in self._left if dead else []:
            here = {summary[0] for summary in core.steps()}
            core.delete([step for step in dead if step in here])


def _unknown(op: Collective, error: BaseException) -> OutcomeUnknownError:
    steps = op.about.get("step", op.about.get("steps"))
    return OutcomeUnknownError(
        f"whether {op.kind} {steps} was done is not known: {type(error).__name__}: {error}; "
        "close the store and open it again, by all processes, which decides")


def _say(what: str, error: BaseException) -> None:
    service.logger.error("%s: %s: %s", what, type(error).__name__, error)
