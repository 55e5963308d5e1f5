# SPDX-License-Identifier: Apache-2.0
"""The handle of a save under way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ._runtime import service
from ._runtime.not_copied import NotCopied
from ._runtime.save_tracker import Tracked


class _Owner(Protocol):
    def _check_fork(self) -> None: ...



class SaveHandle(NotCopied):
    """A save under way. Dropping it is harmless: the save goes on, and an error is raised by the
    store's next call, `wait` or `close`."""

    def __init__(self, save: Tracked, store: _Owner) -> None:
        self._save = save
        self._store = store  # kept open by its handles

    @property
    def step(self) -> int:
        return self._save.handle.step

    @property
    def skipped(self) -> bool:
        """Whether `if_exists="skip"` met a step that was there."""
        return self._save.handle.skipped

    def done(self) -> bool:
        """Whether it has finished, well or not."""
        self._store._check_fork()
        return self._save.handle.done()

    def result(self, timeout: float | None = None) -> int:
        """Waits until the step is durable and visible; returns its number.

        `timeout` is in seconds; TimeoutError when it runs out (the save goes on). Raises the save's
        error each time it is called: OutcomeUnknownError when the step may be there nevertheless,
        any other when it is not.
        """
        self._store._check_fork()
        if not self._save.handle.wait(timeout):
            raise TimeoutError(f"the save of step {self.step} is not done after {timeout} s")
        error = self._save.handle.error()
        if error is not None:
            self._save.reported = True
            raise error
        return self.step

    def on_complete(self, callback: Callable[[SaveHandle], object]) -> None:
        """Calls `callback(handle)` once when done, at once if it is. It runs on a thread of
        Stepwell's own and may call the store; an exception from it is logged."""
        self._store._check_fork()
        service.call_when_done(self._save.handle, lambda: callback(self))

    def __repr__(self) -> str:
        state = "done" if self._save.handle.done() else "under way"
        return f"<save of step {self.step}, {state}>"
