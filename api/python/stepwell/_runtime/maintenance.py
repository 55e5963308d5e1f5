# SPDX-License-Identifier: Apache-2.0
"""Methods of `Store` that look after what is on the disk."""

from __future__ import annotations

from typing import cast

from .._lifetime import OpenStore
from ..errors import CorruptionError
from .stats import ReclaimReport, RepairReport


def reclaim(self: OpenStore) -> ReclaimReport:
    """Gives back all the space of dead steps that can be given back now, and waits for it. The
    store does so by itself in the background; call this to have it done. Ctrl-C ends the wait,
    not the work."""
    self._check()
    self._check_writable()
    return ReclaimReport(*self._backend.writer.reclaim())


def repair(self: OpenStore, *, accept: bool = False) -> RepairReport:
    """Writes damaged records of steps anew, from their second copies or the index.

    Where a record of the log is lost for good, what it did is not known: a step from before may
    have been replaced, deleted or pinned by it. Such a step is not loaded, nothing is deleted by
    rules, and no space is given back, until `accept=True` takes what is there as it is.
    """
    self._check()
    self._check_writable()
    return RepairReport(*self._backend.writer.repair(accept))


def check_nothing_lost(store: OpenStore) -> None:
    """Of a store without steps: raises CorruptionError when it may have had some."""
    problems = cast(list[str], store._backend.recovery()["problems"])
    if problems:
        raise CorruptionError(f"{store.path!r} has no step, and may have lost some: {problems[0]}; "
                              "`stepwell repair` says more")
