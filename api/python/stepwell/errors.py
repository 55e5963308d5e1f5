# SPDX-License-Identifier: Apache-2.0
"""Everything that Stepwell raises.

All errors are `Error`; each is also the built-in exception that a caller would expect, so both
`except stepwell.StepNotFoundError` and `except FileNotFoundError` work. `OSError`s carry `errno`
where the operating system gave one.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Literal, NamedTuple

from ._text import listed

MismatchKind = Literal["missing", "unexpected", "shape", "dtype", "sharding", "structure"]


class Error(Exception):
    """Base of all of Stepwell's errors; itself raised for a closed or frozen store."""


class InvalidArgumentError(Error, ValueError):
    """An argument is invalid: a negative step, an unknown mode, a malformed path."""


class StoreNotFoundError(Error, FileNotFoundError):
    """There is no store at this path (`open` with mode "r")."""


class CheckpointNotFoundError(Error, FileNotFoundError):
    """There is no file or directory to import from at this path."""


class StepExistsError(Error, FileExistsError):
    """The step already exists and `if_exists` is "error"."""


class StepNotFoundError(Error, FileNotFoundError):
    """No such step; the message names the nearest ones. Or it was deleted while it was being read,
    by a reader (mode "r") that may not write into the store's directory and so cannot pin it."""


class StepPinnedError(Error):
    """The step is pinned: `unpin` it before it is deleted or replaced."""


class PathNotFoundError(Error, KeyError):
    """The step has nothing at this path; the message names the nearest paths."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class AmbiguousPathError(PathNotFoundError):
    """The path can be read in several ways; the message lists them."""


class Mismatch(NamedTuple):
    """One leaf that does not fit: where, what is wrong in words, and of which kind that is.

    kind: "missing" (`like` has it, the step does not), "unexpected" (the other way round), "shape",
        "dtype", "sharding", or "structure" (a leaf of another kind, or a container).
    nearest: for "missing", the path of a stored leaf that may be meant.
    """

    path: str
    message: str
    kind: MismatchKind = "structure"
    nearest: str | None = None


class MismatchError(Error, ValueError):
    """The stored step does not fit `like`. `mismatches` has one entry for each leaf; the message
    has the first 20. `missing`, `unexpected`, `shape` and `dtype` are the entries of one kind."""

    def __init__(self, message: str, mismatches: Sequence[Mismatch] = (), hint: str = "") -> None:
        lines = [f"{m.path or '(the leaf itself)'}: {m.message}" for m in mismatches]
        super().__init__(message + listed(lines, "mismatches") + (f"\n{hint}" if hint else ""))
        self.mismatches = tuple(mismatches)

    def _of(self, kind: MismatchKind) -> tuple[Mismatch, ...]:
        return tuple(mismatch for mismatch in self.mismatches if mismatch.kind == kind)

    @property
    def missing(self) -> tuple[Mismatch, ...]:
        return self._of("missing")

    @property
    def unexpected(self) -> tuple[Mismatch, ...]:
        return self._of("unexpected")

    @property
    def shape(self) -> tuple[Mismatch, ...]:
        return self._of("shape")

    @property
    def dtype(self) -> tuple[Mismatch, ...]:
        return self._of("dtype")


class UnsupportedLeafError(Error, TypeError):
    """Leaves that cannot be saved; `paths` has all of them, the message the first 20. Raised before
    any I/O."""

    def __init__(self, message: str, paths: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.paths = tuple(paths)


class CorruptionError(Error, OSError):
    """Stored data is damaged or missing; the message names the file and the offset."""


class NoSpaceError(Error, OSError):
    """The file system is full. Only this save failed; earlier steps are intact. Deleting works on a
    full disk: `delete` steps, or open the store with `keep=`; `reclaim` frees their space at once.
    """

    def __str__(self) -> str:
        if self.errno not in (errno.ENOSPC, errno.EDQUOT):  # memory, or a disk of another process
            return super().__str__()
        return (f"{super().__str__()}. To free space, delete steps with store.delete(steps) or "
                "`stepwell rm` (this works on a full disk), then call store.reclaim(). "
                "open(keep=) limits what later saves keep")


class PermissionDeniedError(Error, PermissionError):
    """The file system does not allow it, or the store is open for reading only."""


class StorageError(Error, OSError):
    """A disk or the operating system failed (EIO, EMFILE, ENOMEM, ...); see `errno`. This does not
    mean that stored data is damaged."""


class LockedError(Error):
    """Another process has this store open for writing; the message has its pid. The commands
    `stepwell rm`, `stepwell pin` and `stepwell reclaim` send their request to that process."""


class PeerError(Error):
    """Other processes of the run did not answer in time (`processes` has their numbers, when
    known), or do not agree with this one."""

    def __init__(self, message: str, processes: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.processes = tuple(processes)


class OutcomeUnknownError(Error):
    """It is not known whether a save, delete or pin was done: its last write or flush failed, or
    process 0 did not answer (`processes` has its number). After any other error it was not done.
    Close the store and open it again: that settles it. Then look at `steps()`, or save the step
    again with `if_exists="skip"` (keeps it if it was saved) or `"replace"`."""

    def __init__(self, message: str, processes: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.processes = tuple(processes)


class ForkError(Error):
    """The store was opened before `fork`; only the parent process may use it."""


class FormatError(Error):
    """Not a store, or one whose format this version cannot read."""
