# SPDX-License-Identifier: Apache-2.0
"""A store that is open: its life, its steps, and what methods of Store in other modules need."""

from __future__ import annotations

import contextlib
import math
import os
import time
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Literal, NamedTuple, Protocol, Self, SupportsIndex, cast, overload

from . import _stepwell
from ._backend.backend import Backend, MakeCore, OneProcess
from ._deciding import Decider
from ._distributed.coordinator import coordinator_for
from ._handle import Closed, Pending, SaveHandle, Tracked
from ._load.handle import LoadHandle
from ._load.source import Source
from ._metrics import Direction, best_of, metrics_of_all
from ._pytree.chunks import Chunks
from ._root_metadata import metadata_of, set_metadata
from ._runtime import durable, monitoring, service
from ._runtime.arguments import Disks, step_index, step_number
from ._runtime.files import engine_path, json_of
from ._runtime.service import NotCopied
from ._runtime.stats import VerificationStats
from ._runtime.threads import Thread
from ._save_policy import SavePolicy
from ._text import brief, counted
from ._verifier import Verifier
from .errors import Error, ForkError, InvalidArgumentError, PermissionDeniedError, StepNotFoundError


# Folders in a store's directory that the engine does not know.
BRANCHES, DRAFTS = "branches", "drafts"


def check_no_link(path: str) -> None:
    """Error for a symbolic link: what is written there would land elsewhere."""
    if os.path.islink(path):
        raise Error(f"{path!r} is a symbolic link, which Stepwell does not follow: remove it, or "
                    "put a directory in its place")


def core_at(path: str, options: _stepwell.OpenOptions) -> _stepwell.Core:
    return _stepwell.Core(engine_path(path), options)


def _default_core(path: str, read_only: bool, group: _stepwell.StoreGroup | None
                  ) -> _stepwell.Core:
    options = _stepwell.OpenOptions()
    options.read_only, options.group = read_only, group
    return core_at(path, options)


def _backend(how: How) -> Backend:
    path, read_only, make_core, process_timeout, disks, alone = how
    coordinator = None if read_only or disks is None else coordinator_for(path)
    if coordinator is None:
        return alone(path, make_core(path, read_only, None))
    from ._distributed.group import SharedDisk
    from ._distributed.local_disks import LocalDisks
    from ._distributed.opening import Opening

    assert disks is not None
    opened = Opening(coordinator, path, process_timeout, make_core, disks)
    return LocalDisks(opened) if opened.local else SharedDisk(opened)


class How(NamedTuple):
    """The options with which a store is opened. `disks` of None: by this process alone, whatever
    others there are."""

    path: str
    read_only: bool
    make_core: MakeCore
    process_timeout: float
    disks: Disks | None
    alone: Callable[[str, _stepwell.Core], Backend] = OneProcess  # what one process does with it


class Follows(Protocol):
    """A thing that follows the store and ends before it."""

    def close(self) -> None: ...


class OpenStore(NotCopied):
    """The ground of every method of a Store. A context manager that closes."""

    _closed = True  # until it is open: __del__ may run before

    def __init__(self, *how: Any, **named: Any) -> None:
        if named or len(how) != 1 or not isinstance(how[0], How):
            raise InvalidArgumentError(
                "a Store is what stepwell.open(path) returns: open it with that")
        self.path, self.read_only = how[0].path, how[0].read_only
        self._generation = service.generation
        self._pending = Pending()
        self._loads: weakref.WeakSet[LoadHandle] = weakref.WeakSet()
        self._followers: weakref.WeakSet[Follows] = weakref.WeakSet()
        self._last_load = _stepwell.LoadStats()
        service.start()
        service.sync_log_level()
        self._backend = _backend(how[0])
        self._decider = Decider(None, self.path)
        self._verifier: Verifier | None = None
        self._closed = False
        service.stores.add(self)
        if not self.read_only and self._backend.leads:
            self._settle()

    @classmethod
    def _open_alone(cls, path: str, read_only: bool = False) -> Self:
        """A store, opened by this process alone, with the defaults of `open`."""
        return cls(How(path, read_only, _default_core, 0.0, None))

    def _settle(self) -> None:
        """Removes what killed processes left under way above the engine."""
        for folder in ("", BRANCHES, DRAFTS):
            path = os.path.join(self.path, folder)
            if os.path.isdir(path) and not (folder and os.path.islink(path)):
                durable.sweep(path, ours=True)

    def __repr__(self) -> str:
        state = "closed" if self._closed else ("read-only" if self.read_only else "open")
        return f"<stepwell store {self.path!r}, {state}>"

    def _check_fork(self) -> None:
        if self._generation != service.generation:
            raise ForkError(
                f"{self.path!r} was opened by the parent process, before fork; only the parent may "
                "use it. Open the store again in this process (mode 'r' works beside a writer)")

    def _check(self) -> None:
        """Starts each call: refuses a closed or forked store, raises background errors."""
        self._check_open()
        if self._pending:
            self._raise_background()

    def _check_open(self) -> None:
        self._check_fork()
        if self._closed:
            raise Error(f"{self.path!r} is closed")

    def _raise_background(self) -> None:
        error = self._pending.take_error()
        if error is not None:
            raise error

    def wait(self) -> None:
        """Waits until every save so far is durable and visible. Raises the first background error
        that was not raised yet. Ctrl-C interrupts the wait, not the saves."""
        self._check()
        self._pending.wait()
        self._raise_background()

    def close(self) -> None:
        """Waits for the saves and gives the lock back; idempotent. Raises the first background
        error that was not raised yet; the store is closed then, too."""
        self._check_fork()
        if self._closed:
            return
        self._check_not_copying()
        for load in list(self._loads):
            load._join()
        self._pending.wait()
        for follower in list(self._followers):
            follower.close()
        error = self._pending.take_error()
        self._closed = True
        try:
            self._decider.stop()
            if self._verifier is not None:
                self._verifier.stop()
            service.stores.discard(self)
            if not self.read_only:
                with contextlib.suppress(Error):  # the handles have reported it
                    self._backend.writer.wait()
        finally:  # Ctrl-C, too, gives the lock back
            try:
                self._backend.close()
            except Error as closing:
                if error is None and not self._pending.is_known(closing):
                    error = closing
            self._backend = cast(Backend, Closed(self.path))
        if error is not None:
            raise error

    def _close_quietly(self) -> None:
        """For the end of the interpreter and for stores that are simply dropped."""
        if self._generation != service.generation:
            return
        try:
            self.close()
        except BaseException as error:
            service.report_lost(self.path, error)

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        if self._generation != service.generation:
            return
        if error is None:
            self.close()
            return
        try:
            self.close()
        except Error as closing:  # the caller's own exception goes first
            error.add_note(f"stepwell: closing {self.path!r} failed, too: {closing}")
            service.logger.error("closing %s failed: %s", self.path, closing)

    def __del__(self) -> None:
        if self._closed:
            return
        if self._generation == service.generation and self._backend.writer.is_copying():
            # A collection found it on the thread that makes its copies, for which close waits.
            Thread("stepwell-close", self._close_quietly, waited_for=True)
            return
        self._close_quietly()

    def verify_in_background(self, bytes_per_second: float | None) -> None:
        """Verifies the committed steps on a thread of the store, each once, the newest first, and
        then each new one, until the store is closed. Damage is logged once (logger "stepwell");
        nothing is tainted or deleted for it. `stats()["verification"]` says what was done. With
        mode "a" it is recorded of each step, as by `verify`, for `policy.LastVerified`.

        bytes_per_second: how fast it reads at most; of a step under way, from then on. None ends
            it, and a later call goes on.

        Of a store of several processes process 0 verifies, or with disks="local" each process its
        part, if it calls this.
        """
        self._check_open()
        if bytes_per_second is None:
            if self._verifier is not None:
                self._verifier.stop()
            return
        if isinstance(bytes_per_second, bool) or not isinstance(bytes_per_second, (int, float)) or (
                not 0 < bytes_per_second < math.inf):
            raise InvalidArgumentError("bytes_per_second must be a number above 0, or None, not "
                                       f"{brief(bytes_per_second)}")
        if not self._backend.leads and not self._backend.collective_reads:
            return
        if self._verifier is None:
            self._verifier = Verifier(self._backend, self.path, bytes_per_second)
        else:
            self._verifier.go_on(bytes_per_second)

    def _verification(self) -> VerificationStats:
        if self._verifier is not None:
            return self._verifier.stats()
        return VerificationStats(running=False, steps=0, bytes=0, damaged=[])

    # ---- steps ----

    @overload
    def steps(self, *, metrics: Literal[False] = False) -> list[int]: ...

    @overload
    def steps(self, *, metrics: Literal[True]) -> dict[int, Any]: ...

    def steps(self, *, metrics: bool = False) -> list[int] | dict[int, Any]:
        """Numbers of the committed steps, ascending. metrics=True: a dict from them to what
        `save(metrics=)` was given, None for none; with local disks that is collective."""
        self._check()
        if metrics:
            return metrics_of_all(self._backend)
        return self._backend.step_numbers()

    def best(self, metric: str, mode: Direction = "min") -> int | None:
        """The step with the best `metric`, a name in `save(metrics=)`. Tainted steps are passed
        over. None without any step, and where none has a finite number there. InvalidArgumentError
        for a metric that no step has.

        mode: "min" where lower is better (a loss), "max" where higher is (an accuracy).

        Of equal values the higher step is better, as in `policy.BestN`. With local disks this is
        collective.
        """
        metrics = self.steps(metrics=True)
        return best_of(metrics, metric, mode, set(self._backend.step_numbers(tainted=False)))

    @property
    def latest(self) -> int | None:
        """The highest committed step that is not tainted; None when there is none."""
        self._check()
        return max(self._backend.step_numbers(1, tainted=False), default=None)

    def tainted_steps(self) -> dict[int, str]:
        """The tainted steps (`Store.taint`), ascending, and why each is."""
        self._check()
        return {summary.step: summary.taint for summary in self._backend.steps() if summary.taint}

    def __iter__(self) -> Iterator[int]:
        """The numbers of the committed steps, ascending, as they are now."""
        return iter(self.steps())

    def __reversed__(self) -> Iterator[int]:
        return reversed(self.steps())

    def __len__(self) -> int:
        return len(self.steps())

    def __bool__(self) -> bool:
        return True  # a store without steps is a store

    def __contains__(self, step: SupportsIndex) -> bool:
        return step_index(step) in self.steps()

    def _step(self, step: SupportsIndex | None) -> int:
        if step is not None:
            return step_number(step)
        latest = self._latest_of_all()
        if latest is None:
            raise self._no_step()
        return latest

    def _latest_of_all(self) -> int | None:
        if self._backend.collective_reads:  # then it is the same on all
            self._pending.wait()
        self._check()
        return self._backend.newest()  # an error where it may be lost

    def _at(self, position: SupportsIndex) -> int:
        """The step that `store[position]` means: negative positions count from the newest."""
        number = step_index(position)
        if number >= 0:
            return number
        self._latest_of_all()  # an error where the newest may be lost
        steps = self._backend.step_numbers(tainted=False)
        if -number > len(steps):
            tainted = bool(self.tainted_steps())
            raise StepNotFoundError(
                f"{self.path!r} has {counted(len(steps), 'step')}"
                f"{' that are not tainted' if tainted else ''}, so none at [{number}]")
        return steps[number]

    def _source_at(self, position: SupportsIndex) -> Source:
        while True:
            number = self._at(position)
            try:
                return self._source(number)
            except StepNotFoundError:  # one of the newest may be deleted in the instant between
                if self._backend.collective_reads or self._at(position) == number:
                    raise

    def _source(self, step: SupportsIndex | None) -> Source:
        if step is None and self._backend.collective_reads:  # then it is the same on all
            self._pending.wait()
        self._check()
        if step is None:
            newest = self._backend.newest_source(self._check_open, self._account)
            if newest is None:
                raise self._no_step()
            return newest
        number = step_number(step)
        try:
            return self._backend.source(number, self._check_open, self._account)
        except StepNotFoundError as error:
            if number not in self._pending.steps():
                raise
            raise StepNotFoundError(f"{error}{self._under_way([number])}") from None

    def _no_step(self, instead: str = "load one by its number") -> StepNotFoundError:
        """`instead`: what to do where there are tainted steps only."""
        tainted = self.tainted_steps()
        if tainted:
            step, why = max(tainted.items())
            return StepNotFoundError(
                f"{self.path!r} has only tainted steps: step {step} is tainted, {why!r}; "
                f"{instead}, or untaint it")
        return StepNotFoundError(
            f"{self.path!r} has no step yet{self._under_way(self._pending.steps())}")

    def _under_way(self, steps: list[int]) -> str:
        """The end of a message that misses a step."""
        return (f"; step {steps[0]} is being saved: wait for its handle, or call store.wait()"
                if steps else "")

    def _check_writable(self) -> None:
        if self.read_only:
            raise PermissionDeniedError(
                f"{self.path!r} is open for reading only: {self._backend.how_to_change}")
        self._check_not_copying()

    def _check_not_copying(self) -> None:
        if self._backend.writer.is_copying():
            raise Error(
                f"{self.path!r}: a signal handler interrupted a save on this thread, and the save "
                "resumes when the handler returns. Set a flag in the handler, or raise (sys.exit), "
                "which cancels that save; save or close the store afterwards")

    def _account(self, stats: _stepwell.LoadStats) -> None:
        self._last_load = stats

    # ---- changes ----

    def _track(self, operation: service.Operation) -> SaveHandle:
        """Makes a save one of those that the store waits for and whose errors it raises."""
        save = Tracked(operation)
        self._pending.add(save)
        return SaveHandle(save, self)

    def _save(self, request: _stepwell.SaveRequest, trees: dict[str, Any], chunks: Chunks | None
              ) -> SaveHandle:
        service.sync_log_level()
        begun = time.monotonic()
        operation = self._backend.save(request, trees, chunks)
        self._decider.began(request.step)
        monitoring.record_save(operation, begun)
        return self._track(operation)

    def _begin(self, policy: SavePolicy | None, metadata: bytes | None) -> None:
        """Applies the arguments of `open` that the engine does not know. Closes the store if that
        fails."""
        try:
            self._decider = Decider(policy, self.path)
            if metadata is not None:
                set_metadata(self._backend, self.path, metadata)
        except BaseException:
            self.close()
            raise

    @property
    def metadata(self) -> Any:
        """The dict that `open(metadata=)` was given last, in whichever session; None for none. With
        local disks this is collective. Raises CorruptionError if the file METADATA is damaged."""
        self._check()
        return metadata_of(self._backend, self.path)

    def should_save(self, step: SupportsIndex) -> bool:
        """Returns true if the policy `open(save=)` wants this step saved; ask before each save. A
        step that exists, or is not above the newest one, is not wanted. Without a policy every
        other is.

        In a store of several processes this is collective if the policy depends on time or signals;
        process 0's clock decides.
        """
        self._check()
        number = step_number(step)
        self._check_writable()
        return self._decider.should_save(number, self._backend, self._pending)

    @property
    def preempted(self) -> bool:
        """True if a signal of `policy.SaveOnPreemption` came before the last call of `should_save`
        or `save`: the step that they were for is the last one to train."""
        return self._decider.preempted
