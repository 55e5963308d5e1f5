# SPDX-License-Identifier: Apache-2.0
"""A save of a manager under way: the store's, then what follows it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ..._handle import SaveHandle
from .options import logger


class PendingSave:
    """Calls `then` once the step is durable, on a thread of the store. An error of either is
    raised once by each thread that waits."""

    def __init__(self, step: int, handle: SaveHandle, then: Callable[[], Any]) -> None:
        self.step = step
        self.error: BaseException | None = None
        self._handle = handle
        self._then = then
        self._done = threading.Event()
        self._raised: set[int] = set()
        handle.on_complete(self._finish)

    def _finish(self, handle: SaveHandle) -> None:
        try:
            handle.result()
            self._then()
        except BaseException as error:
            self.error = error
            logger.error("step %d was not saved: %s", self.step, error)
        finally:
            self._done.set()

    def done(self) -> bool:
        return self._done.is_set()

    def wait(self, timeout: float | None) -> None:
        """Waits, and raises what went wrong. TimeoutError after `timeout` seconds."""
        if not self._done.wait(timeout):
            raise TimeoutError(f"the save of step {self.step} is not done after {timeout} s")
        self.check()

    def check(self) -> None:
        """Raises what went wrong, if it is done."""
        thread = threading.get_ident()
        if self.error is not None and thread not in self._raised:
            self._raised.add(thread)
            raise self.error
