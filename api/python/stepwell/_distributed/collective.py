# SPDX-License-Identifier: Apache-2.0
"""Something that all processes of a store do together, and its outcome."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .. import _stepwell
from .._runtime import service
from .snapshot import Snapshot


class GroupHandle:
    """As `_stepwell.Handle`: one save of all processes, or something else that they do together."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.skipped = False
        self.failed: BaseException | None = None  # why this process cannot do its share
        self._done = threading.Event()
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], object]] = []

    def done(self) -> bool:
        return self._done.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        return self._done.wait(timeout)

    def error(self) -> BaseException | None:
        return self._error

    def notify(self, token: int) -> None:
        """Tells the service when done."""
        with self._lock:
            if not self._done.is_set():
                self._callbacks.append(lambda: service.completed(token))
                return
        service.completed(token)

    def finish(self, error: BaseException | None) -> None:
        with self._lock:
            self._error = error
            self._done.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()


@dataclass
class Collective:
    """Something that all processes do together."""

    number: int
    kind: str  # "save", "import", "delete", "pin", "unpin", "snapshot"
    handle: GroupHandle
    about: dict[str, Any] = field(default_factory=dict)  # must be the same everywhere
    outline: list[str] = field(default_factory=list)  # of a save: what the digest is of
    prepared: _stepwell.Handle | None = None  # of a save
    error: BaseException | None = None  # why this process cannot do it
    snapshot: Snapshot | None = None  # of a snapshot
    words: list[dict[str, Any]] = field(default_factory=list)  # on the leader: everybody's
