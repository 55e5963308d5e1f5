# SPDX-License-Identifier: Apache-2.0
"""Keeps a pushed run up to date with a store, in the background."""

from __future__ import annotations

import contextlib
import functools
import os
import stat
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, SupportsIndex

from .._follow import Follower, newest_commit
from .._lifetime import OpenStore
from .._load.commit import Commit
from .._runtime import service
from .._runtime.arguments import count_of, seconds_of
from .._runtime.threads import Thread
from ..errors import Error, StepNotFoundError
from . import run
from .object_store import open_object_store
from .push import push
from .push_record import Pushed, PushRecord
from .pushed import PushReport
from .run_delete import delete_steps
from .transfer import with_context

_PAUSE_SECONDS, _PAUSE_MAX_SECONDS = 1.0, 60.0  # after a push that failed; twice as long each time
_JOIN_SECONDS = 5.0  # that `close` waits for a request to a place that does not answer


def _abandoned(step: int, mine: dict[int, Pushed], here: dict[int, Pushed]) -> bool:
    """Returns true if the store went back behind a step that it lacks: the next step below is
    newer, and none above is older than that one. If that one was only saved anew, there are older
    ones above, and the store's retention, which is not that of the place, has dropped the step."""
    below = here.get(max((each for each in here if each < step), default=-1))
    return below is not None and below.time_ns > mine[step].time_ns and all(
        now.time_ns > below.time_ns for each, now in here.items() if each > step)


class PushFollower:
    """Keeps a pushed run up to date with a store, on a thread of its own; what
    `Store.push_following` returns. A context manager that closes. Thread-safe."""

    def __init__(self, store: OpenStore, dest: Any, place: dict[str, Any], url: str,
                 options: dict[str, Any], keep: int | None,
                 on_push: Callable[[PushReport], object] | None) -> None:
        self._store, self._dest, self._place, self._url = store, dest, place, url
        self._options, self._keep, self._on_push = options, keep, on_push  # options: of `push`
        self._changed = threading.Condition()
        self._pushed: int | None = None  # the step that was pushed last
        self._record: PushRecord | None = None  # None: not read yet
        self._foreign: int | None = None  # a higher step there, of others, that the log names
        self._last: Commit | None = None  # the newest step when the last push that ended began
        self._pushes = 0  # that ended well
        self._error: Error | None = None
        self._closing = self._ended = False
        self._follower = Follower(store, None, None)
        store._followers.add(self)
        self._thread = Thread("stepwell-push", self._run)

    @property
    def pushed(self) -> int | None:
        """The step that was pushed last; None: none yet."""
        return self._pushed

    @property
    def error(self) -> Error | None:
        """Why the last push failed; None: it did not, or there was none yet."""
        return self._error

    @property
    def ended(self) -> bool:
        """True once nothing more is pushed: it was closed, or the store cannot be followed any
        more, as `error` says."""
        return self._ended

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        """Waits until the place has what is the newest step now, as it is now, or a newer one; at
        most `timeout` seconds. Returns whether it has. A push that fails ends no wait: it is tried
        again."""
        seconds = None if timeout is None else seconds_of("timeout", timeout)
        self._store._pending.wait()
        newest = newest_commit(self._store)
        with self._changed:
            # The push under way may be of an older step. The one behind it looks for the newest.
            enough = self._pushes + 2

            def arrived() -> bool:
                return newest is None or self._last == newest or self._pushes >= enough

            self._changed.wait_for(lambda: self._ended or arrived(), seconds)
            return arrived()

    def close(self) -> None:
        """Ends it; idempotent. A push under way is cut off, and the next one goes on with what it
        has sent. Call `wait` first for a step that is to arrive."""
        with self._changed:
            if self._closing:
                return
            self._closing = True
            self._changed.notify_all()
        self._follower.close()
        if not self._thread.join(_JOIN_SECONDS):
            service.logger.warning("%s: a request to %s is under way, which ends by itself",
                                   self._store.path, self._url)

    def __enter__(self) -> PushFollower:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- on its thread ----

    def _run(self) -> None:
        try:
            for _ in self._follower:
                pause = _PAUSE_SECONDS
                while not self._push():
                    with self._changed:
                        if self._changed.wait_for(lambda: self._closing, pause):
                            return
                    pause = min(2 * pause, _PAUSE_MAX_SECONDS)
        except Error as error:  # of the store, so that there is nothing to follow any more
            self._failed(error)
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _push(self) -> bool:
        """Pushes the newest step. Returns false if that is to be tried again."""
        try:
            newest = newest_commit(self._store)
            if newest is None:
                return True
            report = self._push_step(newest.step)
            with self._changed:
                self._pushed = newest.step
            self._retire(newest.step)
        except StepNotFoundError:
            return True  # it has gone, and the follower gives another one
        except Error as error:
            self._failed(error)
            return self._closing
        with self._changed:
            self._last, self._error = newest, None
            self._pushes += 1
            self._changed.notify_all()
        if self._on_push is not None:
            service.call_back(functools.partial(self._on_push, report))
        return True

    def _go_on(self, done: int, total: int) -> None:
        if self._closing:
            raise Error("the PushFollower was closed")

    def _push_step(self, step: int) -> PushReport:
        bucket = self._bucket()
        pushed = self._steps().get(step)
        if pushed is None:
            raise StepNotFoundError(f"step {step} has gone")
        with with_context(f"push of step {step} to {bucket.url}"):
            is_run = run.is_run(bucket)
            record = self._record = self._record or PushRecord(
                bucket, self._store._backend.writer.id())
            if is_run:  # before the step: one that nothing says is ours would stay for ever
                record.write({**record.steps, step: pushed})
        report = push(self._store, step, self._dest, if_exists="replace", layout="stepwell",
                      progress=self._go_on, **self._place, **self._options)
        with with_context(f"push of step {step} to {bucket.url}"):
            record.write({**record.steps, step: pushed})
        return report

    def _bucket(self) -> run.RunStore:
        with with_context("following a run"):
            place = open_object_store(self._dest, self._place["prefix"],
                                      self._place["storage_options"])
            return run.writable(place, stat.S_IMODE(os.stat(self._store.path).st_mode) & 0o777)

    def _steps(self) -> dict[int, Pushed]:
        """The steps as the store has them."""
        self._store._check_open()
        core = self._store._backend.files("a push")
        return {each.step: Pushed(each.time_ns, each.taint) for each in core.steps()}

    def _retire(self, newest: int) -> None:
        """Deletes what `keep` does not keep, and of the steps that were pushed from this store
        those that it has gone back behind; and pushes again what was saved anew since, tainted or
        untainted."""
        bucket = self._bucket()
        with with_context(f"listing {bucket.url}"):
            there = set(run.listing(bucket).steps)
        assert self._record is not None
        mine, here = self._record.steps, self._steps()
        gone = {step for step in mine if step > newest}
        lacking = mine.keys() & there - here.keys()
        gone.update(step for step in lacking if _abandoned(step, mine, here))
        again = [step for step in sorted(mine.keys() & there & here.keys() - gone - {newest})
                 if here[step] != mine[step]]
        foreign = max((step for step in there if step > newest and step not in mine), default=None)
        if foreign not in (None, self._foreign):
            service.logger.warning("%s: %s has higher steps, such as %d, which this store did not "
                                   "push. Followers of the place see those: give each run a "
                                   "place of its own, or delete them (delete_pushed)",
                                   self._store.path, bucket.url, foreign)
        self._foreign = foreign
        if self._keep is not None:
            gone.update(sorted(step for step in there if step < newest)[:-self._keep + 1 or None])
        if gone & there:
            with with_context(f"deleting from {bucket.url}"):
                delete_steps(bucket, gone & there)
        for step in again:
            if step not in gone:
                with contextlib.suppress(StepNotFoundError):
                    self._push_step(step)
        left = there - gone | {newest}
        with with_context(f"push to {bucket.url}"):
            self._record.write({step: each for step, each in self._record.steps.items()
                                if step in left})

    def _failed(self, error: Error) -> None:
        if not self._closing and type(error) is not type(self._error):
            service.logger.warning("%s: %s; it is tried again", self._store.path, error)
        with self._changed:
            self._error = error
            self._changed.notify_all()


def push_following(self: OpenStore, dest: Any, *, prefix: str = "",
                   storage_options: Mapping[str, Any] | None = None, verify: bool = False,
                   keep: SupportsIndex | None = None,
                   work_dir: str | os.PathLike[str] | None = None,
                   on_push: Callable[[PushReport], object] | None = None) -> PushFollower:
    """Keeps a run at another place up to date with this store, in the background: the newest step
    is pushed as `push(layout="stepwell")` pushes it, so that only what the steps there lack is
    sent, and then again whenever there is a newer one. Steps that come while a push is under way
    are passed over, but for the newest.

        with stepwell.open("run1") as store, store.push_following("s3://bucket/run1") as follower:
            ...                     # train, and save
            follower.wait(60)       # for the last step

    A place that is slow, full or cannot be reached never delays or fails a save: the push is tried
    again, after a second and up to a minute, and `PushFollower.error` and the log say what is
    wrong. It ends with `PushFollower.close`, and when the store is closed. When the store goes
    back, because the newest steps were deleted or tainted, those that were pushed from it are
    deleted there, too, also those of an earlier session: the place has a record of them. A step
    that was saved anew, tainted or untainted since is pushed again with the next push.

    dest, prefix, storage_options, verify, work_dir: as in `push`; the place is empty, or a run.
    keep: how many steps the place keeps; the lower ones are deleted there after each push, also
        those of other stores. None: all.
    on_push: called with the PushReport of each push that ended well, on the thread of callbacks, as
        `SaveHandle.on_complete` calls.

    `stepwell push --follow RUN DEST` does it in a process of its own, beside the training. Of
    several processes that train together one calls this; not with local disks.

    Raises InvalidArgumentError, and Error where no library knows the place. What is wrong at the
    place, `PushFollower.error` says.
    """
    kept = None if keep is None else count_of("keep", keep)
    self._check()
    self._backend.files("a push")
    with with_context("following a run"):
        url = open_object_store(dest, prefix, storage_options).url
    place = {"prefix": prefix, "storage_options": storage_options}
    options = {"verify": verify, "work_dir": work_dir}
    return PushFollower(self, dest, place, url, options, kept, on_push)
