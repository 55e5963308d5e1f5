# SPDX-License-Identifier: Apache-2.0
"""A safetensors file of the newest step, which follows the store."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from types import TracebackType
from typing import Any, Final, NamedTuple, SupportsIndex

from .._backend.export_options import OnUnsupported, tensors_of
from .._backend.safetensors_file import check_outside, write_tensors
from .._backend.tensors import float_dtype
from .._follow import Commits
from .._lifetime import OpenStore
from .._load.source import Source
from .._pytree.records import PathLike
from .._renaming import Rename, Rule, rules_of
from .._runtime import service
from .._runtime.arguments import step_index
from .._runtime.files import local_path
from .._runtime.service import NotCopied
from .._runtime.threads import Thread
from ..errors import Error, InvalidArgumentError, StepNotFoundError

# After a look at the store, or a step, that failed; twice as long each time.
_AGAIN_SECONDS, _AGAIN_MAX_SECONDS = 1.0, 60.0
_IN_FOLDER: Final = "model.safetensors"  # the name that servers look for in a model's directory


class _Shown(NamedTuple):
    """A step as it was saved. error: why it is not in the file; "": it is."""

    step: int
    time_ns: int
    error: str = ""


def _shown(source: Source) -> _Shown:
    return _Shown(source.step, source.reader.time_ns)


class _Form(NamedTuple):
    """How the file is made of a step."""

    path: str
    every: int
    item: PathLike | None
    rules: list[Rule]
    dtype: Any
    on_unsupported: OnUnsupported


class SafetensorsView(NotCopied):
    """A safetensors file that shows the newest step of a store; made by `Store.safetensors_view`. A
    context manager that closes. It ends with the store at the latest."""

    def __init__(self, store: OpenStore, form: _Form) -> None:
        self._form = form
        # The thread has its own store, so that dropping the other one closes that.
        self._store = type(store)._open_alone(store.path, read_only=True)
        self._shown: _Shown | None = None
        self._step: int | None = None
        self._changed = threading.Condition()
        self._stopping = self._ended = False
        try:
            self._commits = Commits(self._store)
            self._thread = Thread("stepwell-view", self._run)
        except BaseException:
            self._store.close()
            raise
        store._followers.add(self)

    def __repr__(self) -> str:
        state = "closed" if self._ended else "following"
        return f"<safetensors view {self.path!r} of step {self.step}, {state}>"

    @property
    def path(self) -> str:
        """The file, absolute."""
        return self._form.path

    @property
    def step(self) -> int | None:
        """The step that the file shows; None before the first."""
        return self._step

    def wait(self, timeout: float | None = None) -> None:
        """Waits until the file shows what is the newest step now. `timeout` is in seconds;
        TimeoutError when it runs out. Error if the step cannot be written, or the view is closed.
        """
        self._store._check_fork()
        end = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while True:
                if self._ended:
                    raise Error(f"the view {self.path!r} is closed")
                wanted = self._wanted()
                if self._is_shown(wanted):
                    if wanted is not None and self._shown is not None and self._shown.error:
                        raise Error(f"step {self._shown.step} is not in {self.path!r}: "
                                    f"{self._shown.error}")
                    return
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError(f"{self.path!r} is behind its store after {timeout} s")
                self._changed.wait(left)

    def close(self) -> None:
        """Ends it, after a last look at the store; the file stays. Idempotent."""
        self._store._check_fork()
        with self._changed:
            self._stopping = True
        self._commits.wake()
        self._thread.join()
        self._store.close()

    def __enter__(self) -> SafetensorsView:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()

    def _wanted(self) -> _Shown | None:
        """The step that the file is to show; None without any."""
        store, every = self._store, self._form.every
        while every > 1:
            multiples = [step for step in store._backend.step_numbers(tainted=False)
                         if step % every == 0]
            if not multiples:
                return None
            with contextlib.suppress(StepNotFoundError):  # deleted in the instant between
                return _shown(store._source(multiples[-1]))
        store._check_open()
        newest = store._backend.newest_source(store._check_open, store._account)
        return None if newest is None else _shown(newest)

    def _is_shown(self, wanted: _Shown | None) -> bool:
        return wanted is None or (self._shown is not None and self._shown[:2] == wanted[:2])

    def _run(self) -> None:
        said, pause = "", _AGAIN_SECONDS
        try:
            while not self._store._closed:
                is_last = self._stopping
                try:
                    failed = self._update()
                except (Error, OSError) as error:  # the store cannot be looked at now
                    failed = str(error)
                if failed not in ("", said) and not self._store._closed:
                    service.logger.error("%s: %s", self.path, failed)
                said = failed
                if is_last:
                    return
                if failed:
                    self._wait(pause)
                    pause = min(2 * pause, _AGAIN_MAX_SECONDS)
                else:
                    self._commits.wait()
                    pause = _AGAIN_SECONDS
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _wait(self, pause: float) -> None:
        """Waits so many seconds, or until there is another newest step, or `close`."""
        end = time.monotonic() + pause
        while not self._stopping and (left := end - time.monotonic()) > 0:
            self._commits.wait(left)
            with contextlib.suppress(Error, OSError):
                wanted = self._wanted()
                if wanted is not None and not self._is_shown(wanted):
                    return

    def _update(self) -> str:
        """Returns why the newest step is not shown, which may pass, as a full disk does; "": it
        is."""
        wanted = self._wanted()
        if wanted is None or wanted == self._shown:
            return ""
        form = self._form
        try:
            tensors = tensors_of(self._store._source(wanted.step), form.item, form.rules,
                                 form.dtype, form.on_unsupported)
            write_tensors(form.path, self._store.path, tensors, replace=True, progress=None)
            self._step = wanted.step
        except StepNotFoundError:
            return ""  # there is another newest step now
        except Exception as error:  # also of a function of the user's
            if self._store._closed:
                return ""
            wanted = wanted._replace(error=f"{type(error).__name__}: {error}")
        with self._changed:
            self._shown = wanted
            self._changed.notify_all()
        return wanted.error and f"step {wanted.step} is not shown: {wanted.error}"


def safetensors_view(self: OpenStore, path: str | os.PathLike[str], *, every: SupportsIndex = 1,
                     item: PathLike | None = None, rename: Rename | None = None,
                     dtype: Any = None, on_unsupported: OnUnsupported = "error"
                     ) -> SafetensorsView:
    """Shows the newest step as a safetensors file, from now on: for servers that watch a file. Each
    time that a step is committed, the file is replaced, at one instant, so that a reader sees the
    old or the new, whole; and a reader that has it open keeps what it has. `stepwell.step` in its
    metadata is the step.

    A thread does the work, and never holds up a save: steps that are saved while it writes are
    left out but for the newest. What goes wrong is logged, `wait` raises it, and it is tried again,
    after a second and up to a minute; the file stays as it was then. Closing the store or the view
    leaves the file.

    path: the file; where it is a directory, `model.safetensors` in it.
    every: only steps that are multiples of it.
    item: the item, subtree or leaf that is shown, such as "params"; None: the step.
    rename, dtype, on_unsupported: as in `export(to="safetensors")`.

    Of several views of one file the last one to write wins. Raises InvalidArgumentError; with
    local disks, Error.
    """
    self._check()
    self._backend.files("a view")
    number = step_index(every)
    if number < 1:
        raise InvalidArgumentError(f"every must be at least 1, not {number}")
    target = local_path(path)
    if os.path.isdir(target):
        target = os.path.join(target, _IN_FOLDER)
    check_outside(self.path, target)
    return SafetensorsView(self, _Form(target, number, item, rules_of(rename),
                                       float_dtype(dtype), on_unsupported))
