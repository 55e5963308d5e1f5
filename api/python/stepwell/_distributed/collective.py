# SPDX-License-Identifier: Apache-2.0
"""An operation of all processes of a store, and its outcome."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field

from .. import _stepwell
from .._runtime import service
from .messages import Proposal, Vote
from .snapshot import Snapshot


class GroupHandle:
    """As `_stepwell.Handle`, of an operation of all processes."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.skipped = False
        self.failed: BaseException | None = None  # why this process cannot do its share
        self._future: Future[None] = Future()

    def done(self) -> bool:
        return self._future.done()

    def wait(self, timeout: float | None = None) -> bool:
        try:
            self._future.exception(timeout)
        except TimeoutError:
            return False
        return True

    def error(self) -> BaseException | None:
        return self._future.exception() if self._future.done() else None

    def notify(self, token: int) -> None:
        """Tells the service when done."""
        self._future.add_done_callback(lambda _: service.completed(token))

    def finish(self, error: BaseException | None) -> None:
        if error is None:
            self._future.set_result(None)
        else:
            self._future.set_exception(error)


@dataclass
class Collective:
    """An operation of all processes."""

    number: int
    proposal: Proposal
    handle: GroupHandle
    outline: list[str] = field(default_factory=list)  # of a save: what the fingerprint is of
    prepared: _stepwell.Handle | None = None  # of a save
    error: BaseException | None = None  # why this process cannot do it
    snapshot: Snapshot | None = None  # of a snapshot
    votes: list[Vote] = field(default_factory=list)  # on the leader: of all processes

    @property
    def kind(self) -> str:
        return self.proposal.kind
