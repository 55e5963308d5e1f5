# SPDX-License-Identifier: Apache-2.0
"""A load under way on a thread of its own."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Generator
from typing import Any

from .._runtime import service
from .._runtime.threads import Thread


class LoadHandle(service.NotCopied):
    """A load under way; made by `Store.load_async`. Dropping it is harmless: the load goes on, and
    its result is dropped."""

    def __init__(self, step: int, load: Callable[[], Any]) -> None:
        self._step = step
        self._future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._future.set_running_or_notify_cancel()
        self._thread = Thread("stepwell-load", self._run, load)

    def _run(self, load: Callable[[], Any]) -> None:
        try:
            loaded = load()
        except BaseException as error:
            self._future.set_exception(error)
        else:
            self._future.set_result(loaded)

    def _join(self) -> None:
        self._thread.join()

    @property
    def step(self) -> int:
        """The step that is being loaded."""
        return self._step

    def done(self) -> bool:
        """True once it has finished, well or not."""
        return self._future.done()

    def result(self, timeout: float | None = None) -> Any:
        """Waits for the load and returns what it loaded. `timeout` is in seconds; TimeoutError when
        it runs out (the load goes on). Raises what `Store.load` raises, each time it is called."""
        try:
            return self._future.result(timeout)
        except concurrent.futures.TimeoutError:
            if self._future.done():
                raise
            raise TimeoutError(
                f"the load of step {self.step} is not done after {timeout} s") from None

    def on_complete(self, callback: Callable[[LoadHandle], object]) -> None:
        """Calls `callback(handle)` once when done, at once if it is; on a thread of Stepwell's own.
        An exception from it is logged."""
        self._future.add_done_callback(lambda _: service.call_back(lambda: callback(self)))

    def as_future(self) -> concurrent.futures.Future[Any]:
        """The load as a future of concurrent.futures; it cannot be cancelled."""
        return self._future

    def __await__(self) -> Generator[Any, None, Any]:
        # A shield: cancelling the task that waits does not touch the load.
        import asyncio  # it takes long to import, and most programs do without it

        return asyncio.shield(asyncio.wrap_future(self._future)).__await__()

    def __repr__(self) -> str:
        return f"<load of step {self.step}, {'done' if self.done() else 'under way'}>"
