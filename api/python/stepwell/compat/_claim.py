# SPDX-License-Identifier: Apache-2.0
"""Saves of one single checkpoint take place one after the other, in the order of their calls."""

from __future__ import annotations

import os
import sys
import threading
import time
import types

from .._runtime.durable import TEMPORARY, Folder, remove_tree
from ..errors import Error, StepExistsError

_POLL_SECONDS = 0.005


class _Claims:
    """The paths that this process saves now."""

    def __init__(self) -> None:
        # A plain lock in `with`: Ctrl-C can come behind the acquisition of any other kind, within
        # its own code, and leave it locked.
        self.lock = threading.Lock()
        self.by_path: dict[str, Claim] = {}


_claims = _Claims()


def _forget_after_fork() -> None:
    global _claims
    _claims = _Claims()  # the saves are the parent's


os.register_at_fork(after_in_child=_forget_after_fork)


class Claim:
    """The path `path`, for one save, from `acquire` until `release`.

    Ctrl-C may come between any two lines, so `release` may be called at any time. Where a thread in
    the background is to release it, that thread calls `take` first, and the caller calls
    `hand_over` once it has started the thread, or `drop` for whatever comes in between.
    """

    def __init__(self, path: str, *, replace: bool) -> None:
        """`replace`: what is at the path gives way."""
        self.path = path
        self.folder: Folder | None = None  # from `acquire` on
        self._replace = replace
        self._claims = _claims
        self._thread = threading.get_ident()
        # The frame of the save, until a thread in the background has the path.
        self._frame: types.FrameType | None = sys._getframe(1)
        self._taken = False
        self._dropped = False

    def acquire(self) -> None:
        """Waits while another save of this process has the path. LockedError if another process
        has it, StepExistsError; Error in a signal handler that interrupted such a save on this
        thread."""
        while not self._enter():
            time.sleep(_POLL_SECONDS)
        try:
            self.folder = Folder(self.path, replace=self._replace)
        except StepExistsError:
            if not self._replace and os.path.lexists(self.path):
                raise
            # The temporary directory of a save of Orbax that died: Orbax removes it as well.
            remove_tree(self.path + TEMPORARY)
            self.folder = Folder(self.path, replace=self._replace)

    def _enter(self) -> bool:
        with self._claims.lock:
            holder = self._claims.by_path.setdefault(self.path, self)
        frame = holder._frame
        if (holder is self or holder._taken or frame is None
                or holder._thread != self._thread):
            return holder is self
        if not _is_running(frame):
            holder.release()  # Ctrl-C came within its release
            return False
        raise Error(
            f"{self.path!r}: a signal handler interrupted a save of this checkpoint on this "
            "thread, and the save resumes when the handler returns. Set a flag in the handler, or "
            "raise (sys.exit), which cancels that save; save afterwards")

    def hand_over(self) -> None:
        """A thread in the background has the path from now on."""
        self._frame = None

    def take(self) -> bool:
        """Returns true if the path is the calling thread's now: the caller did not drop it."""
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
        """Removes what was not committed, and lets the next save have the path; idempotent."""
        try:
            if self.folder is not None:
                self.folder.close()
        finally:
            with self._claims.lock:
                if self._claims.by_path.get(self.path) is self:
                    del self._claims.by_path[self.path]
            self._frame = None


def _is_running(frame: types.FrameType) -> bool:
    """Returns true if the frame is one of those that this thread runs now."""
    each: types.FrameType | None = sys._getframe()
    while each is not None:
        if each is frame:
            return True
        each = each.f_back
    return False
