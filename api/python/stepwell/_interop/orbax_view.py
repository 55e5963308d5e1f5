# SPDX-License-Identifier: Apache-2.0
"""Directories that show the steps of a store as Orbax checkpoints while the store goes on."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Literal, SupportsIndex, cast

from .. import _stepwell
from .._backend.export_options import Layout, Leaves, OnUnsupported, orbax_options
from .._lifetime import OpenStore
from .._runtime.arguments import item_names, step_number
from .._runtime.files import engine_path, local_path
from .._runtime.service import NotCopied
from .._runtime.stats import ViewStats, dict_of
from .._text import counted
from ..errors import InvalidArgumentError, StepNotFoundError

# The file of a viewed step that its readers lock; db/view/folder.h.
_PIN_NAME = "stepwell-view"
_FOREVER_S = 365 * 86400.0


@contextlib.contextmanager
def pin_view(path: str | os.PathLike[str]) -> Iterator[str]:
    """Keeps one step of a view, in any process, whatever its store deletes meanwhile:

        with stepwell.pin_view("/runs/view/900") as path:
            state = orbax.checkpoint.v1.load(path)

    path: the step's directory. Its space is given back after the block. The lock goes with the
    process; it is flock's, so `flock -s /runs/view/900/stepwell-view COMMAND` does the same.

    Raises StepNotFoundError when the view does not have the step, or not any more. A view that is
    closed, or whose process dies, keeps nothing.
    """
    directory = local_path(path)
    name = os.path.join(directory, _PIN_NAME)
    descriptor = _locked(directory, name)
    try:
        yield directory
    finally:
        # A child that was forked in the block has the descriptor, too.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _locked(directory: str, name: str) -> int:
    while True:
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            raise StepNotFoundError(
                f"{directory} is not a step of a view, or it was deleted") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            # It may have been removed or replaced before the lock was taken.
            if os.path.samestat(os.fstat(descriptor), os.stat(name)):
                return descriptor
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


class OrbaxView(NotCopied):
    """A directory that shows a store's steps as Orbax checkpoints; made by `Store.orbax_view`. A
    context manager that closes. It ends with the store at the latest."""

    def __init__(self, store: OpenStore, view: _stepwell.View) -> None:
        self._store = store
        self._view = view

    def __repr__(self) -> str:
        stats = self.stats()
        state = "following" if stats["following"] else "closed"
        return f"<view {self.path!r} of {counted(stats['shown'], 'step')}, {state}>"

    @property
    def path(self) -> str:
        """The directory, absolute."""
        return self._view.path

    def path_of(self, step: SupportsIndex) -> str:
        """Returns the path that a step has, or would have."""
        return self._view.path_of(step_number(step))

    def wait(self, timeout: float | None = None) -> None:
        """Waits until the directory shows what is committed now, as far as it can. `timeout` is in
        seconds; TimeoutError when it runs out. Error when the view is closed."""
        self._store._check_fork()
        if not self._view.wait(_FOREVER_S if timeout is None else max(0.0, timeout)):
            raise TimeoutError(f"{self.path!r} is behind its store after {timeout} s")

    def pin(self, step: SupportsIndex) -> contextlib.AbstractContextManager[str]:
        """Keeps a step in the view while it is read, also when the store deletes it meanwhile:
        `with view.pin(900) as path: …`. Processes without the store take `stepwell.pin_view`.
        (`Store.pin` keeps a step in the store itself, until it is unpinned.)"""
        return pin_view(self.path_of(step))

    def stats(self) -> ViewStats:
        """Numbers about the view: see `stepwell.ViewStats`."""
        return dict_of(ViewStats, self._view.stats())

    def close(self, *, keep: bool = False) -> None:
        """Ends it, after a last look at the store. Idempotent.

        keep: leave the directory as it is, until the store is opened for writing the next time.
            What is deleted before stays in it. Otherwise the steps' directories go, but for
            those that readers hold, and the store forgets the view.
        """
        self._store._check_fork()
        self._view.close(keep)

    def __enter__(self) -> OrbaxView:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()


def orbax_view(self: OpenStore, path: str | os.PathLike[str], *, layout: Layout = "v1",
               leaves: Leaves = "numpy", zarr: Literal[2, 3] = 3,
               items: Iterable[str] | None = None, step_prefix: str | None = None,
               step_digits: int = 0, name_prefix: str | None = None, unnamed_default: bool = False,
               on_unsupported: OnUnsupported = "error", beside: bool = False,
               poll: float = 0.2) -> OrbaxView:
    """Shows the steps as Orbax checkpoints in a directory, from now on: each appears when it is
    committed and goes when it is deleted, so that evaluators can follow a training run.

    The checkpoints are whole: they share the store's data where the file system can (clones, hard
    links), else have copies, and small steps are copied. So a copy of one, however it is made, is a
    checkpoint of its own, that no change of the store reaches. A thread does the work: nothing that
    goes wrong with the view fails or delays a save; it is logged, and counted in `stats()`.

    Readers that do not `pin` a step may see its directory go while they read it: Orbax raises then,
    and TensorStore does if told fill_missing_data_reads=False (else it gives zeros for a chunk
    whose file it has not opened yet). What they have open stays as it is.

    Closing the store leaves the directory as it is, and each later open for writing goes on with
    it, until the view is closed or the directory deleted. Calling this again gives the same view,
    or, with other options, makes all of it anew.

    path: absent, empty, or an earlier view of this store. Every layout has one directory a step,
        as the root of a CheckpointManager or of v1's training.Checkpointer.
    layout, leaves, zarr, step_prefix, step_digits, unnamed_default: as in `export`.
    name_prefix: what stands before the digits, without a `_`: "ckpt" makes ckpt7. Not with
        step_prefix.
    items: only these.
    on_unsupported: a step with what Orbax cannot hold is not shown ("error"), or shown without it
        ("skip"), or with the next wider types ("widen", which writes them).
    beside: the store is `path`/.stepwell, or `path`/.stepwell-NAME where it has several, and the
        steps are shown next to it, among directories and files of other programs, and of other
        stores' views, which stay as they are: a step whose name one of them has is not shown. The
        directory can be moved and copied as a whole; the store goes on with the view wherever it
        is opened then, and while it is open.
    poll: how often a store that was opened with mode "r" is looked at, in seconds.

    Raises Error for a directory with other files in it or of another store, LockedError when
    another process serves it, InvalidArgumentError.
    """
    self._check()
    core = self._backend.files("a view")
    names = item_names(items)
    if not poll > 0:
        raise InvalidArgumentError(f"poll is a number of seconds above 0, not {poll!r}")
    if name_prefix and step_prefix:
        raise InvalidArgumentError("a view has a step_prefix or a name_prefix")
    options = orbax_options("auto", layout, leaves or "numpy", on_unsupported, zarr,
                            name_prefix or step_prefix or "", step_digits, unnamed_default)
    options.step_prefix_verbatim = bool(name_prefix)
    options.items = names
    target = engine_path(local_path(path))
    return OrbaxView(self, core.open_view(target, options, beside, poll))
