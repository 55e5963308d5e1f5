# SPDX-License-Identifier: Apache-2.0
"""Following a run: the newest step, again and again."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import SupportsIndex

from ._lifetime import OpenStore
from ._load.commit import Commit, CommittedStep, commit_of, means
from ._runtime import service
from ._runtime.arguments import seconds_of, step_number
from .errors import Error, StepNotFoundError

_LOOK_SECONDS = 0.1  # from one look at the store to the next where the kernel tells of no change
_LOOK_TOLD_SECONDS = 5.0  # where it does, for changes that it may not know of


def newest_commit(store: OpenStore) -> Commit | None:
    """The newest step; None in a store without any. Any thread may ask."""
    store._check_open()
    newest = store._backend.newest_source(store._check_open, store._account)
    return None if newest is None else commit_of(newest)


class Commits:
    """Waits for commits to a store. One thread waits at a time."""

    def __init__(self, store: OpenStore) -> None:
        self._path = store.path
        self._watch = store._backend.watch("following a run")
        self._warned = False

    def wait(self, seconds: float = math.inf) -> None:
        """Until something was committed since the call before, or `seconds` are over; it may also
        end for nothing, so look at the store."""
        why_not = self._watch.why_not
        if why_not and not self._warned:
            self._warned = True
            service.logger.warning("%s: following it by looking every %.0f ms: %s", self._path,
                                   _LOOK_SECONDS * 1e3, why_not)
        self._watch.wait(min(seconds, _LOOK_SECONDS if why_not else _LOOK_TOLD_SECONDS))

    def wake(self) -> None:
        """Ends the wait under way, or the next one; from any thread."""
        self._watch.wake()


class Follower(Iterator[int]):
    """An iterator over the newest step of a store; what `Store.follow` returns. One thread uses it
    at a time."""

    def __init__(self, store: OpenStore, start: SupportsIndex | None, timeout: float | None
                 ) -> None:
        self._store = store
        self._timeout = math.inf if timeout is None else timeout
        self._ended = False
        self._commits = Commits(store)
        store._followers.add(self)
        newest = None if start is None else newest_commit(store)
        is_start = start is not None and newest is not None and means(start, newest)
        self._given = newest if is_start else None

    def __next__(self) -> int:
        end = time.monotonic() + self._timeout
        try:
            while not self._ended:
                newest = newest_commit(self._store)
                if newest is not None and newest != self._given:
                    self._given = newest
                    return CommittedStep(newest)
                left = end - time.monotonic()
                if left > 0:
                    self._commits.wait(left)
                else:
                    self._ended = True
        except Error:
            if not self._store._closed:
                raise
        self._ended = True
        raise StopIteration

    def close(self) -> None:
        """Ends the iteration, from any thread: a wait under way, and all that would come."""
        self._ended = True
        self._commits.wake()

    @property
    def step(self) -> int | None:
        """The step that was given last, or `start` while that is the newest; None before."""
        return None if self._given is None else CommittedStep(self._given)

    @property
    def deleted(self) -> bool:
        """True if `step`, as it was when it was given, is not in the store any more: it was deleted
        or replaced. False before the first."""
        if self._given is None:
            return False
        store = self._store
        store._check()
        try:
            source = store._backend.source(self._given.step, store._check_open, store._account)
        except StepNotFoundError:
            return True
        return commit_of(source) != self._given


def follow(self: OpenStore, start: SupportsIndex | None = None,
           timeout: float | timedelta | None = None) -> Follower:
    """An iterator over the numbers of the newest steps: for evaluators, and for workers that use
    what a trainer saves. It gives the newest step, and then, each time that it is asked, waits
    until the newest step is another one:

        with stepwell.open("run1", mode="r") as store:
            for step in store.follow(timeout=600):
                evaluate(store.load(step, "params"))

    Another one is a higher step, the same step saved anew, or a lower step, after the higher ones
    were deleted. Steps that come and go while the caller works are left out. It works in other
    processes as well as in the one that saves; there, from any thread. Nothing is lost when the
    process that saves ends: the iterator waits for the next one.

    start: a step that the caller has. It is not given first, if it is the newest one now.
    timeout: seconds without a new step, or a timedelta, after which the iteration ends. None: it
        waits for ever.

    A wait costs next to nothing, since the kernel tells of each commit (inotify). Where it cannot,
    such as on a network file system, the iterator looks at the store every 100 ms, and logs a
    warning that says why. Ctrl-C ends a wait; `close`, from any thread, ends the iteration.

    A step may be deleted while it is used: see `Follower.deleted`, and `pin`. The numbers know
    which commit they are, so that `update(tree, since=step)` tells a step from another one that was
    saved under its number. Raises CorruptionError where the newest step may be lost.
    """
    seconds = None if timeout is None else seconds_of("timeout", timeout)
    self._check()
    if start is not None:
        step_number(start)  # or what is wrong with it
    return Follower(self, start, seconds)
