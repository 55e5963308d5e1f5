# SPDX-License-Identifier: Apache-2.0
"""Which steps of a store are saved: what `Store.should_save` stands on."""

from __future__ import annotations

import math
import signal
import time

from ._backend.backend import Backend
from ._handle import Pending
from ._runtime import service
from ._runtime.preemption import Watch, jax_preempts_at
from ._save_policy import Moment, SavePolicy, is_alike, signals_of

_WANTS, _PREEMPTED = 1, 2


class Decider:
    """A store's save policy, and what it has to remember."""

    def __init__(self, policy: SavePolicy | None, path: str) -> None:
        self.preempted = False
        self._policy = policy
        self._path = path
        self._last: float | None = None  # when the last save began, on the monotonic clock
        self._unanswered = False  # a preemption, by a save
        self._signals = signals_of(policy)
        self._watch = Watch(self._signals)

    def should_save(self, step: int, backend: Backend, pending: Pending) -> bool:
        newest = max([*pending.steps(), -1 if (stored := backend.newest()) is None else stored])
        if self._policy is None:
            return step > newest
        if self._signals and jax_preempts_at(step):
            self._note("JAX's preemption service")
        self._look()
        moment = Moment(step, not pending.steps(), self._seconds(backend), self._unanswered)
        wants = self._policy._wants(moment)
        if backend.collective and not is_alike(self._policy):
            # Process 0 has the clock; a signal may have come to any.
            words = backend.gather(_WANTS * wants | _PREEMPTED * self._unanswered, "should_save")
            preempted = any(word & _PREEMPTED for word in words)
            if preempted and not self._unanswered:
                self._note("another process")
            wants = bool(words[0] & _WANTS) or preempted
        if self._unanswered and step <= newest:
            self._unanswered = False
        return wants and step > newest

    def began(self, step: int) -> None:
        """A save of `step` has begun."""
        self._last = time.monotonic()
        self._look()
        if self._unanswered:
            self._unanswered = False
            service.logger.warning("%s: step %d is saved because of a preemption", self._path, step)

    def stop(self) -> None:
        """The store closes."""
        self._watch.stop()
        if self._watch.ends_process():
            service.logger.warning(
                "%s: %s came while the store was open and has not ended the process: end it now",
                self._path, signal.Signals(self._watch.received).name)

    def _look(self) -> None:
        if self._watch.received and not self.preempted:
            self._note(signal.Signals(self._watch.received).name)

    def _note(self, source: str) -> None:
        if not self.preempted:
            service.logger.warning("%s: preempted by %s", self._path, source)
            self.preempted = self._unanswered = True

    def _seconds(self, backend: Backend) -> float:
        """Since the last save; of an earlier session's, by the wall clock."""
        if self._last is None:
            newest = backend.newest()
            if newest is None:
                return math.inf
            if backend.collective and not backend.leads:
                return 0.0  # process 0 decides
            saved = backend.writer.read_share(newest).time_ns
            self._last = time.monotonic() - max(0.0, (time.time_ns() - saved) / 1e9)
        return time.monotonic() - self._last
