# SPDX-License-Identifier: Apache-2.0
"""An operation of all processes, as one of them knows it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from .. import _stepwell
from .._runtime import service
from .messages import Proposal, Vote
from .snapshot import Snapshot


class GroupHandle(Future[None]):
    """A `_stepwell.Handle` of an operation of all processes."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step
        self.skipped = False
        self.stats: _stepwell.SaveStats | None = None  # of this process's part, once decided
        self.failed: BaseException | None = None  # why this process cannot do its share

    def wait(self, timeout: float | None = None) -> bool:
        try:
            self.exception(timeout)
        except TimeoutError:
            return False
        return True

    def error(self) -> BaseException | None:
        return self.exception() if self.done() else None

    def notify(self, token: int) -> None:
        """Tells the service when done."""
        self.add_done_callback(lambda _: service.completed(token))

    def finish(self, error: BaseException | None) -> None:
        if error is None:
            self.set_result(None)
        else:
            self.set_exception(error)


@dataclass
class Collective:
    """An operation of all processes."""

    number: int
    proposal: Proposal
    handle: GroupHandle
    retire: Sequence[int] = ()  # of a save, on the leader: steps that end in its commit
    tree_text: list[str] = field(default_factory=list)  # of a save: process_slice.Part's
    meshes: list[tuple[int, str]] = field(default_factory=list)
    prepared: _stepwell.Handle | None = None  # of a save
    error: BaseException | None = None  # why this process cannot do it
    snapshot: Snapshot | None = None  # of a snapshot
    votes: list[Vote] = field(default_factory=list)  # on the leader: of all processes
    changed: Sequence[int] = ()  # once decided: the decision's

    @property
    def kind(self) -> str:
        return self.proposal.kind
