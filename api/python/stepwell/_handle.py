# SPDX-License-Identifier: Apache-2.0
"""Saves under way: their handles, and those of a store with unread outcomes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any, NamedTuple

from ._runtime import service
from ._runtime.service import NotCopied
from ._runtime.stats import named
from .errors import Error

_RAISED_MAX = 1000  # texts of errors that are not raised again


class Tracked:
    """The state that a handle and its store share. The store does not know the handle, which knows
    it: a store that is simply dropped goes at once, not with the next garbage collection."""

    def __init__(self, handle: service.Operation) -> None:
        self.handle = handle
        self.reported = False


class Pending:
    """Saves under way, and errors of theirs that were raised.

    It has no lock: a signal handler that closes the store may interrupt it anywhere. `list.remove`
    is atomic, and the caller that removes a save reports its error."""

    def __init__(self) -> None:
        self._saves: list[Tracked] = []
        self._raised: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._saves)

    def add(self, save: Tracked) -> None:
        self._saves.append(save)

    def steps(self) -> list[int]:
        """The steps of the saves that are under way."""
        return [save.handle.step for save in list(self._saves) if not save.handle.done()]

    def wait(self) -> None:
        for save in list(self._saves):
            save.handle.wait(None)

    def take_error(self) -> BaseException | None:
        """The first unreported error of a finished save. Later errors with the same text (a frozen
        store) count as reported with it."""
        first: BaseException | None = None
        for save in list(self._saves):
            if not save.handle.done():
                continue
            try:
                self._saves.remove(save)
            except ValueError:
                continue
            error = save.handle.error()
            if error is None or save.reported:
                continue
            save.reported = True
            if first is None and str(error) not in self._raised:
                first = error
                if len(self._raised) >= _RAISED_MAX:
                    self._raised.clear()
                self._raised.add(str(error))
        return first

    def is_known(self, error: Error) -> bool:
        """Returns true if an error of close only repeats one that was raised before."""
        text = str(error)
        return any(text in known or known in text for known in self._raised)


class Closed:
    """Replaces the engine of a closed store. Its threads and memory are freed then, also while
    references to the Store or to its handles remain."""

    def __init__(self, path: str) -> None:
        self._path = path

    def close(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        raise Error(f"{self._path!r} is closed")


class _SaveFuture(Future[int]):
    """A save as a future. An error that it was asked for counts as reported."""

    def __init__(self, save: Tracked) -> None:
        super().__init__()
        self._save = save
        self.set_running_or_notify_cancel()

    def settle(self) -> None:
        error = self._save.handle.error()
        if error is None:
            self.set_result(self._save.handle.step)
        else:
            self.set_exception(error)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        error = super().exception(timeout)
        self._save.reported |= error is not None
        return error

    def result(self, timeout: float | None = None) -> int:
        error = self.exception(timeout)
        if error is not None:
            raise error
        return super().result()


class SaveStats(NamedTuple):
    """Says how much a save wrote, and how long it took; sizes in bytes, times in seconds.

    logical_bytes: the state's, as in memory.
    stored_bytes: of the step's chunks, encoded.
    referenced_bytes: of these, chunks that did not change, which earlier steps wrote.
    owned_bytes: of these, chunks that this save wrote.
    chunks: how many the step has.
    snapshot_s: how long the save held its caller, which waits for the snapshot.
    durable_s: from the call of `save` until the step was durable.

    Of a save of several processes: this process's part of it, until that was durable.
    """

    logical_bytes: int
    stored_bytes: int
    referenced_bytes: int
    owned_bytes: int
    chunks: int
    snapshot_s: float
    durable_s: float


class SaveHandle(NotCopied):
    """A save under way. Dropping it is harmless: the save goes on, and an error is raised by the
    store's next call, `wait` or `close`. In a coroutine, `await handle` is `handle.result()`."""

    def __init__(self, save: Tracked, store: service.Opened) -> None:
        self._save = save
        self._store = store  # kept open by its handles

    @property
    def step(self) -> int:
        return self._save.handle.step

    @property
    def skipped(self) -> bool:
        """True if `if_exists="skip"` met a step that was there."""
        return self._save.handle.skipped

    @property
    def stats(self) -> SaveStats | None:
        """The sizes and times of the save. None before it is done, and of one that failed or was
        skipped."""
        self._store._check_fork()
        stats = self._save.handle.stats
        return None if stats is None else named(SaveStats, stats)

    def done(self) -> bool:
        """True once it has finished, well or not."""
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

    def as_future(self) -> Future[int]:
        """The save as a new `concurrent.futures.Future`, for `concurrent.futures.wait` and its
        kin. It cannot be cancelled. Functions given to its add_done_callback must not block;
        `on_complete` takes those that do."""
        self._store._check_fork()
        future = _SaveFuture(self._save)
        service.call_at_once(self._save.handle, future.settle)
        return future

    def __await__(self) -> Generator[Any, None, int]:
        """In any asyncio loop, waits as `result` does and returns the step's number. Cancelling the
        task that waits does not touch the save."""
        if not self.done():
            import asyncio  # most programs do without it, and it takes long to import

            loop = asyncio.get_running_loop()
            finished = loop.create_future()

            def wake() -> None:
                if not finished.done():  # else the task was cancelled
                    finished.set_result(None)

            def wake_loop() -> None:
                with contextlib.suppress(RuntimeError):  # the loop is closed by now
                    loop.call_soon_threadsafe(wake)

            service.call_at_once(self._save.handle, wake_loop)
            yield from finished
        return self.result()

    def __repr__(self) -> str:
        state = "done" if self._save.handle.done() else "under way"
        return f"<save of step {self.step}, {state}>"
