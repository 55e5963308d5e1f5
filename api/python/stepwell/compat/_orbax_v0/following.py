# SPDX-License-Identifier: Apache-2.0
"""Following the steps of a run: the two functions of `checkpoint_utils` that pin a step instead of
copying it."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

from orbax.checkpoint import checkpoint_utils, path

from ..._interop.orbax_view import pin_view
from ..._runtime.files import engine_path
from ..._stepwell import Watch
from ...errors import Error, PermissionDeniedError, StepNotFoundError, StoreNotFoundError
from .._stores import reading, shown_at


class _Changes:
    """Waits until something changes in a directory, which need not be there yet."""

    def __init__(self, directory: Any) -> None:
        self._directory = directory
        self._watch: Watch | None = None

    def wait(self, seconds: float) -> None:
        """For at most `seconds`, which is how long it takes where the kernel tells of no change."""
        if self._watch is None or self._watch.why_not:
            with contextlib.suppress(Error):  # the directory is not there
                self._watch = Watch(engine_path(self._directory))
                if not self._watch.why_not:
                    return  # the changes before it are not told
        if self._watch is None:
            time.sleep(seconds)
        else:
            self._watch.wait(seconds)


@contextlib.contextmanager
def wait_for_new_checkpoint(checkpoint_dir: Any, *, until_step: int | None = None,
                            seconds_to_sleep: float = 1, timeout: float | None = None,
                            timeout_fn: Callable[[], bool] | None = None,
                            step_prefix: str | None = None,
                            step_format_fixed_length: int | None = None,
                            step_name_format: Any = None, snapshot_dir: Any = None,
                            set_immutable: bool | None = None,
                            ignore_snapshot_errors: bool | None = True) -> Iterator[int]:
    """Waits for a step of at least `until_step` (None: for any). The step, or -1 after `timeout`
    seconds (if `timeout_fn` is given: once that returns True after the timeout). A step is seen as
    soon as it is there; `seconds_to_sleep` is how often `timeout_fn` is asked, and how often this
    looks at a directory of whose changes the kernel tells nothing. Tainted steps
    (`stepwell.Store.taint`) of a manager's root are passed over; a view elsewhere does not tell.

    In the block the step can be read, whatever the run deletes meanwhile.
    """
    name_format = step_name_format or path.step.standard_name_format(
        step_prefix=step_prefix, step_format_fixed_length=step_format_fixed_length)
    end = None if timeout is None else time.monotonic() + timeout
    changes = _Changes(checkpoint_dir)
    asleep_until = 0.0
    with contextlib.ExitStack() as pins:
        while True:
            step, directory = _latest(checkpoint_dir, name_format, until_step or 0)
            if step >= 0 and _pinned(pins, directory):
                break
            now = time.monotonic()
            if now >= asleep_until:
                if (end is not None and now + seconds_to_sleep > end
                        and (timeout_fn is None or timeout_fn())):
                    step = -1
                    break
                asleep_until = time.monotonic() + seconds_to_sleep
            changes.wait(max(0.0, asleep_until - time.monotonic()))
        yield step


def _latest(root: Any, name_format: Any, least: int) -> tuple[int, str]:
    """The last step that is not tainted, and its directory; -1 if there is none of at least
    `least`."""
    if not os.path.isdir(root):
        return -1, ""
    found = [(each.step, os.fspath(each.path)) for each in name_format.find_all(root)
             if each.step >= least]
    tainted: dict[str, Collection[int]] = {}  # by store
    for step, directory in sorted(found, reverse=True):
        shown = shown_at(directory)
        if shown is None:
            return step, directory
        if shown.store_path not in tainted:
            tainted[shown.store_path] = _tainted(shown.store_path)
        if shown.step not in tainted[shown.store_path]:
            return step, directory
    return -1, ""


def _tainted(store_path: str) -> Collection[int]:
    # Who may read the steps that a view shows need not be able to read its store.
    with contextlib.suppress(StoreNotFoundError, PermissionDeniedError):
        with reading(store_path) as store:
            return store.tainted_steps()
    return ()


def _pinned(pins: contextlib.ExitStack, directory: str) -> bool:
    """Pins a step of a view; False if it went meanwhile. A step of Orbax needs no pin here."""
    try:
        pins.enter_context(pin_view(directory))
    except StepNotFoundError:
        return os.path.isdir(directory)
    return True


@functools.wraps(checkpoint_utils.checkpoints_iterator)
def checkpoints_iterator(checkpoint_dir: Any, *, min_interval_secs: float = 0,
                         **options: Any) -> Iterator[int]:
    """The newest step of a run, again and again: each higher than the one before. Ends when no new
    one comes for `timeout` seconds (and `timeout_fn`, if given, returns True). Steps that come and
    go while the caller works are left out, and so are tainted ones."""
    last = -1
    while True:
        with wait_for_new_checkpoint(checkpoint_dir, until_step=last + 1, **options) as last:
            if last == -1:
                return
            start = time.monotonic()
            yield last
        time.sleep(max(0.0, start + min_interval_secs - time.monotonic()))
