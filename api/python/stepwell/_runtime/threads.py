# SPDX-License-Identifier: Apache-2.0
"""Threads that the main thread starts while Ctrl-C may come at any line.

threading.Thread.start() waits for the new thread under a lock; an exception in there leaves the
lock held, the thread never runs, and the interpreter waits for it at its end. One call of C starts
these, so each was started or was not.
"""

from __future__ import annotations

import _thread
import errno
import os
import time
from collections.abc import Callable

from ..errors import StorageError

_POLL_SECONDS, _POLL_MAX_SECONDS = 0.0002, 0.01  # of a wait with a limit

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
        self._ended = _thread.allocate_lock()
        self._ended.acquire()
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
        if self._waited_for:
            _running.add(self)
        target, args = self._target, self._args
        self._target, self._args = None, ()
        try:
            if target is not None:
                target(*args)
        finally:
            del target, args
            _running.discard(self)
            self._ended.release()

    def join(self, timeout: float | None = None) -> bool:
        """Waits for its end, at most `timeout` seconds; whether it has ended."""
        if timeout is None:
            with self._ended:  # Ctrl-C cannot come between the two
                return True
        end = time.monotonic() + timeout
        pause = _POLL_SECONDS
        while self._ended.locked():
            left = end - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(left, pause))
            pause = min(2 * pause, _POLL_MAX_SECONDS)
        return True

    def is_alive(self) -> bool:
        return self._ended.locked()


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
