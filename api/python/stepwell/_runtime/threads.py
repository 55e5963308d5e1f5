# SPDX-License-Identifier: Apache-2.0
"""Threads that the main thread starts while Ctrl-C may come at any line.

threading.Thread.start() waits for the new thread under a lock; an exception in there leaves the
lock held, the thread never runs, and the interpreter waits for it at its end. One call of C starts
these, so each was started or was not.
"""

from __future__ import annotations

import _thread
import contextlib
import errno
import os
from collections.abc import Callable

from ..errors import StorageError

# Those that the interpreter's end waits for.
_running: set[Thread] = set()


class Thread:
    """A running thread that calls `target(*args)`, which raises nothing. `waited_for`: the end of
    the interpreter waits for it. StorageError says why it cannot be started."""

    def __init__(self, name: str, target: Callable[..., object], *args: object,
                 waited_for: bool = False) -> None:
        self.name = name
        self._target: Callable[..., object] | None = target
        self._args = args
        self._waited_for = waited_for
        self._is_over = False
        self._ended = _locked()
        self._waiting: list[_thread.LockType] = []  # of each wait with a limit, until its end
        try:
            if waited_for:
                _running.add(self)
            _thread.start_new_thread(self._run, ())
        except (RuntimeError, MemoryError) as error:
            _running.discard(self)
            raise _not_started(name, error) from None
        except BaseException:  # Ctrl-C; if it came behind the start, `_run` says that it runs
            _running.discard(self)
            raise

    def _run(self) -> None:
        try:
            if self._waited_for:
                _running.add(self)
            target, args = self._target, self._args
            self._target, self._args = None, ()
            if target is not None:
                target(*args)
            del target, args
        finally:
            _running.discard(self)
            self._is_over = True  # first: a wait that begins now is not in the list below
            self._ended.release()
            for waiting in list(self._waiting):
                waiting.release()

    def join(self, timeout: float | None = None) -> bool:
        """Waits for its end, at most `timeout` seconds; whether it has ended."""
        if timeout is None:
            with self._ended:  # Ctrl-C cannot come between the two
                return True
        waiting = _locked()  # its own: Ctrl-C may come behind its acquisition
        self._waiting.append(waiting)
        try:
            return self._is_over or waiting.acquire(
                timeout=max(0.0, min(timeout, _thread.TIMEOUT_MAX)))
        finally:
            with contextlib.suppress(ValueError):
                self._waiting.remove(waiting)

    def is_alive(self) -> bool:
        return not self._is_over


def _locked() -> _thread.LockType:
    lock = _thread.allocate_lock()
    lock.acquire()
    return lock


def _not_started(name: str, error: BaseException) -> StorageError:
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    set_to = "not set" if limit == resource.RLIM_INFINITY else limit
    failed = StorageError(
        f"the thread {name} cannot be started: {error}; a limit on threads or on memory is "
        f"reached: RLIMIT_NPROC is {set_to}; raise it (ulimit -u, ulimit -v, docker "
        "--pids-limit), or let the process have fewer threads")
    failed.errno = errno.EAGAIN
    return failed


def join_all() -> None:
    """Waits for those that are waited for, and for those that these start."""
    while _running:
        for thread in list(_running):
            thread.join()


os.register_at_fork(after_in_child=_running.clear)
