# SPDX-License-Identifier: Apache-2.0
"""Temporary directories that saves of single checkpoints use, each by one save at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
import threading
import time
import types

from ..errors import Error, LockedError

_POLL_SECONDS = 0.005


class _Claims:
    """The temporary directories that this process uses now."""

    def __init__(self) -> None:
        # A plain lock in `with`: Ctrl-C can come behind the acquisition of any other kind, within
        # its own code, and leave it locked.
        self.lock = threading.Lock()
        self.by_folder: dict[str, Claim] = {}


_claims = _Claims()


def _forget_after_fork() -> None:
    global _claims
    _claims = _Claims()  # the saves are the parent's


os.register_at_fork(after_in_child=_forget_after_fork)


class Claim:
    """The directory `folder`, made empty by `acquire` and held until `release`.

    Ctrl-C may come between any two lines, so `release` may be called at any time. Where a thread in
    the background is to release it, that thread calls `take` first, and the caller calls
    `hand_over` once it has started the thread, or `drop` for whatever comes in between.

    The lock on the directory goes with the process: what a process that died left there is removed.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._claims = _claims
        self._thread = threading.get_ident()
        # Of the save, until a thread in the background has the directory.
        self._frame: types.FrameType | None = sys._getframe(1)
        self._descriptor = -1
        self._taken = False
        self._dropped = False

    def acquire(self) -> None:
        """Waits while another save of this process holds the directory, so that saves of one
        checkpoint take place in the order of their calls. LockedError if another process holds it;
        Error in a signal handler that interrupted such a save on this thread."""
        while not self._enter():
            time.sleep(_POLL_SECONDS)
        self._lock()
        for entry in os.scandir(self._folder):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.remove(entry.path)

    def _enter(self) -> bool:
        with self._claims.lock:
            holder = self._claims.by_folder.setdefault(self._folder, self)
        frame = holder._frame
        if (holder is self or holder._taken or frame is None
                or holder._thread != self._thread):
            return holder is self
        if not _is_running(frame):
            holder.release()  # Ctrl-C came within its release
            return False
        raise Error(
            f"{self._folder!r}: a signal handler interrupted a save of this checkpoint on this "
            "thread, and the save resumes when the handler returns. Set a flag in the handler, or "
            "raise (sys.exit), which cancels that save; save afterwards")

    def hand_over(self) -> None:
        """A thread in the background holds the directory from now on."""
        self._frame = None

    def take(self) -> bool:
        """Whether the directory is the calling thread's now: the caller did not drop it."""
        with self._claims.lock:
            self._taken = not self._dropped
            return self._taken

    def drop(self) -> None:
        """Releases it, unless a thread in the background has taken it."""
        with self._claims.lock:
            self._dropped = not self._taken
        if self._dropped:
            self.release()

    def release(self) -> None:
        """Removes the directory, and lets the next save have it; idempotent."""
        try:
            if self._descriptor >= 0:
                shutil.rmtree(self._folder, ignore_errors=True)
        finally:
            descriptor = self._descriptor
            if descriptor >= 0:
                # A child that was forked meanwhile has the descriptor, too.
                fcntl.flock(descriptor, fcntl.LOCK_UN)
                self._descriptor = -1
                os.close(descriptor)
            with self._claims.lock:
                if self._claims.by_folder.get(self._folder) is self:
                    del self._claims.by_folder[self._folder]
            self._frame = None

    def _lock(self) -> None:
        """Locks the directory."""
        while self._descriptor < 0:
            os.makedirs(self._folder, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # another process removed it
                self._lock_once()

    def _lock_once(self) -> None:
        # The lock is taken once the descriptor is where `release` finds it.
        self._descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        locked = False
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked = os.path.samestat(os.fstat(self._descriptor), os.stat(self._folder))
        except BlockingIOError:
            raise LockedError(f"{self._folder!r}: another process saves this checkpoint; wait for "
                              "it, or save under another name") from None
        finally:
            if not locked:
                descriptor, self._descriptor = self._descriptor, -1
                os.close(descriptor)


def _is_running(frame: types.FrameType) -> bool:
    """Whether the frame is one of those that this thread runs now."""
    each: types.FrameType | None = sys._getframe()
    while each is not None:
        if each is frame:
            return True
        each = each.f_back
    return False
