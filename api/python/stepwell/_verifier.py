# SPDX-License-Identifier: Apache-2.0
"""A thread that verifies the steps of an open store."""

from __future__ import annotations

import threading
import time

from ._backend.backend import Backend
from ._runtime import service
from ._runtime.stats import StepSummary, VerificationStats
from ._runtime.threads import Thread
from ._text import counted
from .errors import Error, StepNotFoundError, StorageError

_LOOK_S = 1.0  # between two looks for new steps


class Verifier:
    """Verifies each committed step once, the highest first, at a bounded rate. It has the backend,
    not the store: a store that is dropped ends it."""

    def __init__(self, backend: Backend, path: str, bytes_per_second: float) -> None:
        self.bytes_per_second = bytes_per_second
        self._backend = backend
        self._path = path
        self._ended = threading.Event()
        self._paced = threading.Event()  # ends a pause between two reads
        self._free_at = 0.0  # on the monotonic clock: when more may be read
        self._look_at = 0.0  # on the same clock: when to look for new steps
        self._todo: list[StepSummary] = []  # that are not verified, as of the last look; ascending
        self._verified: dict[int, int] = {}  # steps, and which commit of each
        self._lock = threading.Lock()
        self._stats = VerificationStats(running=True, steps=0, bytes=0, damaged=[])
        self._begin()

    def _begin(self) -> None:
        self._thread = Thread("stepwell-verify", self._run)

    def go_on(self, bytes_per_second: float) -> None:
        """Takes another rate, and begins again if it was stopped."""
        self.bytes_per_second = bytes_per_second
        self._free_at = 0.0
        self._paced.set()  # a pause under way was for the old rate
        if self._ended.is_set():
            self._thread.join()
            self._ended.clear()
            self._begin()

    def stop(self) -> None:
        """Returns when the thread has ended."""
        self._ended.set()
        self._paced.set()
        self._thread.join()

    def stats(self) -> VerificationStats:
        with self._lock:
            return VerificationStats(running=not self._ended.is_set(), steps=self._stats["steps"],
                                     bytes=self._stats["bytes"],
                                     damaged=sorted(self._stats["damaged"]))

    def _run(self) -> None:
        failed = ""
        while not self._ended.is_set():
            try:
                step = self._next()
                if step is not None:
                    self._verify(step)
                    continue
            except Error as error:  # such as a list of steps that is not to be had now
                if str(error) != failed and not self._ended.is_set():
                    service.logger.warning("%s: verifying in the background: %s", self._path, error)
                failed = str(error)
            self._ended.wait(_LOOK_S)

    def _next(self) -> StepSummary | None:
        """A look at all steps is not free: there is one a second at most, or when none is left."""
        if not self._todo or time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + _LOOK_S
            steps = self._backend.steps()
            commits = {each.step: each.commit for each in steps}
            self._verified = {step: commit for step, commit in self._verified.items()
                              if commits.get(step) == commit}
            self._todo = [each for each in steps if each.step not in self._verified]
        return self._todo.pop() if self._todo else None

    def _verify(self, step: StepSummary) -> None:
        read = 0

        def pace(done_bytes: int) -> bool:
            nonlocal read
            now = time.monotonic()
            self._free_at = max(self._free_at, now) + (done_bytes - read) / self.bytes_per_second
            with self._lock:
                self._stats["bytes"] += done_bytes - read
            read = done_bytes
            self._paced.wait(max(0.0, self._free_at - now))
            self._paced.clear()
            return not self._ended.is_set()

        try:
            report = self._backend.verify_at_pace(step.step, pace)
        except StepNotFoundError:  # it was deleted meanwhile
            return
        if report is None:  # stopped: it is not verified yet
            return
        problems = [each for each in report.problems if each.step == step.step]
        unread = [each for each in problems if each.unchecked]
        if unread and len(unread) == len(problems):  # it is read again at a later look
            raise StorageError(f"step {step.step} could not be read: {unread[0].message}")
        self._verified[step.step] = step.commit
        with self._lock:
            self._stats["steps"] += 1
            damaged = set(self._stats["damaged"]) - {step.step}
            if any(not each.unchecked for each in problems):
                damaged.add(step.step)
            self._stats["damaged"] = [*damaged]
        if problems:
            service.logger.error(
                "%s: step %d: verifying in the background found %s, the first: %s", self._path,
                step.step, counted(len(problems), "problem"), problems[0].message)
