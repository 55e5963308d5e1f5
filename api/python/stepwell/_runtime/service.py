# SPDX-License-Identifier: Apache-2.0
"""The Python threads behind the stores, and what happens at fork and at interpreter exit.

The engine never takes the GIL. References that it lets go, its log lines and finished saves go into
a queue (api/python/events.h) that the thread "stepwell-service" empties; `on_complete` callbacks
run on the thread "stepwell-callbacks", so a slow one holds up nothing else. Both are stopped and
joined at exit, after the stores are closed: no thread is inside the module when the interpreter
goes down.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import os
import queue
import sys
import threading
import weakref
from collections.abc import Callable
from typing import NoReturn, Protocol, SupportsIndex

from .. import _stepwell
from .._stepwell import LogLevel
from .._text import with_article
from .threads import Thread, join_all

logger = logging.getLogger("stepwell")

_LEVELS = {LogLevel.DEBUG: logging.DEBUG, LogLevel.INFO: logging.INFO,
           LogLevel.WARNING: logging.WARNING, LogLevel.ERROR: logging.ERROR}

_level: LogLevel | None = LogLevel.DEBUG

# Changes in a forked child: what was opened before belongs to the parent.
generation = 0

# Set when Ctrl-C breaks the wait for copies from accelerators at the end of the interpreter. Those
# that are left are given up: no thread gets into the interpreter any more when it has ended, and a
# store's end waits for that of its threads.
copies_given_up = False


class Operation(Protocol):
    """An operation under way: `_stepwell.Handle`, or one of all processes of a group."""

    @property
    def step(self) -> int: ...

    @property
    def skipped(self) -> bool: ...

    @property
    def stats(self) -> _stepwell.SaveStats | None:
        """The times and bytes of this process's part; None unless it was saved."""

    def done(self) -> bool: ...

    def error(self) -> BaseException | None: ...

    def wait(self, timeout: float | None = None) -> bool: ...

    def notify(self, token: int) -> None:
        """Calls `completed(token)` when done."""


class NotCopied:
    """The base of objects that belong to an open store of this process. Refuses copy, deepcopy and
    pickle, which would copy what only looks like data."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            f"{with_article(type(self).__name__)} cannot be copied or pickled: it belongs to "
            "a store that this process has open. Pass the store's path, and open it there (mode "
            "'r' works beside a writer); or load() what is in it, which is data")


class Opened(Protocol):
    """A store that is open."""

    def _check_fork(self) -> None: ...

    def _close_quietly(self) -> None: ...


stores: weakref.WeakSet[Opened] = weakref.WeakSet()

_lock = threading.Lock()
_threads: list[Thread] = []
_stopping = False
_tokens = itertools.count(1)
_waiting: dict[int, Callable[[], object]] = {}
_callbacks: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()


def start() -> None:
    """Starts the threads unless they run; called at each open."""
    with _lock:
        if _stopping:
            return
        running = {thread.name for thread in _threads}
        for name, target in (("stepwell-service", _serve), ("stepwell-callbacks", _run_callbacks)):
            if name not in running:
                _threads.append(Thread(name, target))


def is_ending() -> bool:
    """Returns true when the interpreter ends and has closed the stores."""
    return _stopping


def call_when_done(handle: Operation, callback: Callable[[], object]) -> None:
    """Runs `callback` on the callback thread when `handle` is done."""
    call_at_once(handle, lambda: call_back(callback))


def call_at_once(handle: Operation, callback: Callable[[], object]) -> None:
    """Does call_when_done on the thread that learns of it: `callback` does not wait for others, and
    must not block or raise."""
    token = next(_tokens)
    _waiting[token] = callback
    handle.notify(token)


def call_back(callback: Callable[[], object]) -> None:
    """Runs `callback` on the callback thread."""
    _callbacks.put(callback)


def completed(token: int) -> None:
    """Marks the operation that a handle notifies of as done."""
    callback = _waiting.pop(token, None)
    if callback is not None:
        callback()


def sync_log_level() -> None:
    """Tells the engine which lines the logger wants, so that others cost nothing; called often."""
    global _level
    level = next((each for each, known in _LEVELS.items() if logger.isEnabledFor(known)), None)
    if level != _level:
        _level = level
        _stepwell.set_log_level(level)


def _drain(timeout_s: float) -> None:
    events = _stepwell.take_events(timeout_s)
    for line in events.logs:
        logger.log(_LEVELS[line.level], "%s", line.text)
    for token in events.completions:
        completed(token)


def _serve() -> None:
    while not _stopping:
        try:
            _drain(60.0)
        except Exception:  # a logging handler of the user's; the thread must live on
            logger.exception("stepwell: the service thread met an error")


def _run_callbacks() -> None:
    threading.current_thread().name = "stepwell-callbacks"  # which users' code sees
    while True:
        callback = _callbacks.get()
        if callback is None:
            return
        try:
            callback()
        except Exception:
            logger.exception("stepwell: an on_complete callback raised")


def report_lost(store_path: str, error: BaseException) -> None:
    """Says on stderr that a background error was never seen, and spoils the exit status."""
    _stepwell.fail_at_exit()
    # Where stderr is closed, the exit status still tells.
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(f"stepwell: error in the background of store {store_path!r}, raised nowhere: "
              f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)


def _at_exit() -> None:
    global _stopping, copies_given_up
    join_all()
    for store in list(stores):
        store._close_quietly()
    copies_given_up = bool(stores)  # Ctrl-C broke a wait
    for store in list(stores):
        store._close_quietly()
    copies_given_up = False
    join_all()  # of a store that was dropped in the meantime
    _stopping = True
    _stepwell.wake_events()
    with _lock:
        threads, _threads[:] = list(_threads), []
    for thread in threads:
        if thread.name == "stepwell-service":
            thread.join()
    _drain(0.0)  # what the closing stores said last
    _callbacks.put(None)
    for thread in threads:
        thread.join()


def _after_fork_in_child() -> None:
    global generation, _lock, _callbacks, _stopping, _level, copies_given_up
    generation += 1
    _level = LogLevel.DEBUG  # the child's queue is new
    _lock = threading.Lock()
    _callbacks = queue.SimpleQueue()
    _stopping = copies_given_up = False
    _threads.clear()
    _waiting.clear()
    stores.clear()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork_in_child)
