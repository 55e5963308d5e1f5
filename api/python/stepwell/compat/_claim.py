# SPDX-License-Identifier: Apache-2.0
"""Temporary directories that saves of single checkpoints use, each by one save at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import threading

from ..errors import LockedError


class _Claims:
    """The temporary directories that this process uses now."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.folders: set[str] = set()


_claims = _Claims()


def _forget_after_fork() -> None:
    global _claims
    _claims = _Claims()  # the saves are the parent's


os.register_at_fork(after_in_child=_forget_after_fork)


class Claim:
    """The directory `folder`, made empty, and held until `release`. Waits while another save of
    this process holds it, so that saves of one checkpoint take place in the order of their calls.
    LockedError if another process holds it.

    The lock on the directory goes with the process: what a process that died left there is removed.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._claims = _claims
        with self._claims.changed:
            self._claims.changed.wait_for(lambda: folder not in self._claims.folders)
            self._claims.folders.add(folder)
        self._descriptor = -1
        try:
            self._descriptor = _locked(folder)
            for entry in os.scandir(folder):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)
                else:
                    os.remove(entry.path)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Removes the directory, and lets the next save have it."""
        if self._descriptor >= 0:
            shutil.rmtree(self._folder, ignore_errors=True)
            # A child that was forked meanwhile has the descriptor, too.
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
        with self._claims.changed:
            self._claims.folders.discard(self._folder)
            self._claims.changed.notify_all()

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _locked(folder: str) -> int:
    """A descriptor of the directory with the lock on it."""
    while True:
        os.makedirs(folder, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # another process removed it
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(descriptor), os.stat(folder)):
                    return descriptor
            except BlockingIOError:
                os.close(descriptor)
                raise LockedError(f"{folder!r}: another process saves this checkpoint; wait for "
                                  "it, or save under another name") from None
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
