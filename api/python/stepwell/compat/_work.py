# SPDX-License-Identifier: Apache-2.0
"""Work in the background, and work on a directory by all processes of a run."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from .._distributed.coordinator import current
from .._runtime import service
from .._runtime.threads import Thread

T = TypeVar("T")

_TIMEOUT_SECONDS = 120.0  # for other processes, as a store's

_numbers = itertools.count()  # of what this process has done with others


def _forget_numbers() -> None:
    global _numbers
    _numbers = itertools.count()


os.register_at_fork(after_in_child=_forget_numbers)


class Work(Generic[T]):
    """Work on a thread of its own, which the end of the interpreter waits for. Ctrl-C may come in
    any call: plain locks alone, and no threading.Event, which it can leave locked."""

    def __init__(self, work: Callable[[], T], *, timeout: float | None = None,
                 cancel: Callable[[], object] | None = None) -> None:
        """`cancel`: has `work` show nothing of what it has not shown yet."""
        self._cancel = cancel
        self._timeout = timeout
        self._value: T | None = None
        self._error: BaseException | None = None
        self.reported = False  # whether `result` raised the error
        self._callbacks: list[Callable[[T], object]] = []
        self._lock = threading.Lock()
        self._done = False
        self._thread = Thread("stepwell-compat", self._run, work, waited_for=True)

    def _run(self, work: Callable[[], T]) -> None:
        try:
            self._value = work()
        except BaseException as error:
            self._error = error
            service.logger.error("failed in the background: %s: %s", type(error).__name__, error)
        del work
        with self._lock:
            self._done = True
            callbacks = self._callbacks
        if self._error is None:
            for callback in callbacks:
                try:
                    callback(self._value)  # type: ignore[arg-type]
                except Exception:
                    service.logger.exception("stepwell: an on_complete callback raised")

    def done(self) -> bool:
        return self._done

    @property
    def error(self) -> BaseException | None:
        """The error, once it is done."""
        return self._error

    def wait(self) -> None:
        """Waits, and raises nothing."""
        if not self._done:
            self._thread.join()

    def cancel(self) -> None:
        """Has it show nothing, unless it has done so already; waits, and raises nothing."""
        if self._cancel is not None:
            self._cancel()
        self.wait()

    def result(self, timeout: float | None = None) -> T:
        """Waits, and raises what went wrong. `timeout` is in seconds; TimeoutError."""
        limit = self._timeout if timeout is None else timeout
        if not self._done and not self._thread.join(limit):
            raise TimeoutError(f"not done after {limit} s")
        if self._error is not None:
            self.reported = True
            raise self._error
        return self._value  # type: ignore[return-value]

    def on_complete(self, callback: Callable[[T], object]) -> None:
        """Calls `callback(result)` once when the work is done well."""
        with self._lock:
            if not self._done:
                self._callbacks.append(callback)
                return
        if self._error is None:
            callback(self._value)  # type: ignore[arg-type]


def start(work: Callable[[], T]) -> Work[T]:
    """Does `work` in the background. A run of several processes does it now, on this thread: all
    do it in one order."""
    if current() is None:
        return Work(work)
    value = work()
    return Work(lambda: value)


class Peers:
    """The processes of a run that do one thing together, in stages: each stage is done by all, or
    raises on all. They make their Peers in the same order. A process without others does each
    stage at once."""

    def __init__(self, what: str) -> None:
        """`what`: they do, for errors."""
        self._coordinator = current()
        self._what = what
        self._directory = f"stepwell/compat/{next(_numbers)}"
        self._stages = itertools.count()
        self.count = 1 if self._coordinator is None else self._coordinator.count
        self.leads = self._coordinator is None or self._coordinator.index == 0

    def all(self, work: Callable[[], object]) -> None:
        """Does `work` on all processes."""
        if self._coordinator is None:
            work()
            return
        # Here, because most programs have one process and need neither at their start.
        from .._distributed.lockstep import all_gather
        from .._distributed.messages import Value

        number = next(self._stages)

        def done() -> Value:
            work()
            return Value()

        all_gather(self._coordinator, f"{self._directory}/{number}", done, _TIMEOUT_SECONDS,
                   self._what)
        if self.leads and number > 0:  # every process that answered has read the last one
            self._coordinator.delete(f"{self._directory}/{number - 1}")

    def lead(self, work: Callable[[], object]) -> None:
        """Does `work` on process 0; the others wait for it."""
        self.all(lambda: work() if self.leads else None)

    def abort(self, error: BaseException) -> None:
        """Reports at the next stage that this process takes no part, and waits for the others."""

        def fail() -> None:
            raise error

        with contextlib.suppress(type(error)):
            self.all(fail)
