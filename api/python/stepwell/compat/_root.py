# SPDX-License-Identifier: Apache-2.0
"""The root of a CheckpointManager: a store, its view, and the steps that other libraries wrote.

    root/.stepwell     the store
    root/<step>/…      the view of each step, in Orbax's layout: links into the store
    root/<step>/…      steps that Orbax wrote here before; read by importing them, never changed

In one process a directory has one store, however many managers are open on it. If another process
writes the store, this one reads it, and a save raises LockedError.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Callable
from typing import Literal

from .. import _stepwell, _store
from .._interop.orbax_view import OrbaxView
from .._interop.temporary_import import imported
from .._runtime.files import local_path
from ..errors import (Error, LockedError, PermissionDeniedError, StepNotFoundError,
                      StoreNotFoundError)

STORE_NAME = ".stepwell"
VIEW_STEP_NAME = "stepwell-view"  # db/view/folder.h, kViewStepName: in each step that a view made
_VIEW_NAME = "STEPWELL_VIEW"  # db/view/folder.h, kViewMarkName: where a view shows its steps

# Steps of a directory by number, each with the name of its directory in it.
FindSteps = Callable[[str], dict[int, str]]
_Found = tuple[int, int, int, int]  # a foreign step: its number, and its directory as stat sees it


class _Shared:
    """A store of this process, with the number of managers that have it open."""

    def __init__(self, store: _store.Store, view: OrbaxView | None) -> None:
        self.store = store
        self.view = view
        self.users = 0


_lock = threading.RLock()
_open: dict[str, _Shared] = {}
_closing: dict[str, int] = {}  # stores that are being closed, and the thread that does it
_closed = threading.Condition(_lock)


def _forget_after_fork() -> None:
    global _lock, _closed
    _lock = threading.RLock()
    _open.clear()  # the parent's
    _closing.clear()
    _closed = threading.Condition(_lock)


os.register_at_fork(after_in_child=_forget_after_fork)


def find_orbax_steps(directory: str) -> dict[int, str]:
    """Steps below the root of a CheckpointManager, by the number that a name is or ends in."""
    return {step: os.path.basename(path)
            for step, path in dict(_stepwell.orbax_steps(directory)).items()}


def is_shown(step: str) -> bool:
    """Whether the directory of a step is what the view of the store beside it shows: links into the
    store. A copy that has the data itself, as `cp -L` makes one, is a checkpoint of its own; and so
    is each step of a view elsewhere."""
    real = os.path.realpath(step)
    folder, name = os.path.split(real)
    mark = os.path.join(real, VIEW_STEP_NAME)
    if not os.path.lexists(mark) or not os.path.isdir(os.path.join(folder, STORE_NAME)):
        return False
    lines = _lines(mark)
    view = [line for line in _lines(os.path.join(folder, _VIEW_NAME))
            if line.startswith("store-id ")]
    if not lines or f"name {name}" in lines and set(view) & set(lines):
        return True
    return any(os.path.islink(os.path.join(base, each))
               for base, folders, files in os.walk(real) for each in (*folders, *files))


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return []


def _remove(step: str) -> None:
    gone = f"{step}.removed.orbax-checkpoint-tmp"  # never read as a step
    os.rename(step, gone)
    shutil.rmtree(gone)


class Root:
    """What a manager has open.

    layout, zarr: how the view shows steps. step_prefix, step_digits: how it names them.
    find_steps: finds steps that others wrote; those that the view made are left out here.
    """

    def __init__(self, directory: str | os.PathLike[str], *, read_only: bool = False,
                 create: bool = True, layout: Literal["v0", "v1"] = "v1",
                 zarr: Literal[2, 3] = 3, step_prefix: str | None = None, step_digits: int = 0,
                 find_steps: FindSteps = find_orbax_steps) -> None:
        self.path = local_path(directory)
        self.read_only = read_only
        self._find_steps = find_steps
        self._shared: _Shared | None = None
        self._refused: Error | None = None  # what kept the store from being open for writing
        self._imported: tuple[_Found, _store.Store, contextlib.ExitStack] | None = None
        if not read_only and create:
            os.makedirs(self.path, exist_ok=True)
        self._key = os.path.realpath(self.path)
        with _lock:
            while _closing.get(self._key, here := threading.get_ident()) != here:
                _closed.wait()
            shared = _open.get(self._key)
            if shared is None:
                store = self._open_store()
                if store is None:
                    return
                # One process serves the view for all.
                view = None if store.read_only or not store._backend.leads else store.orbax_view(
                    self.path, layout=layout, leaves="jax", zarr=zarr, beside=True,
                    step_prefix=step_prefix, step_digits=step_digits, on_unsupported="skip")
                shared = _Shared(store, view)
                if not store.read_only:
                    _open[self._key] = shared
            shared.users += 1
            self._shared = shared

    def _open_store(self) -> _store.Store | None:
        path = os.path.join(self.path, STORE_NAME)
        if not self.read_only:
            try:
                return _store.open(path)
            except (LockedError, PermissionDeniedError) as error:  # steps can be read, nevertheless
                self._refused = error
        with contextlib.suppress(StoreNotFoundError):
            return _store.open(path, mode="r")
        return None

    @property
    def store(self) -> _store.Store:
        """The store. StoreNotFoundError if this root is read only and has none; what refused it if
        it could not be made."""
        if self._shared is None and self._refused is not None:
            raise self._refused
        if self._shared is None:
            raise StoreNotFoundError(f"{self.path!r} has no Stepwell store, and is open for "
                                     "reading only")
        return self._shared.store

    # ---- steps ----

    def foreign(self) -> dict[int, str]:
        """Steps that other libraries wrote into this directory: their paths by number."""
        if not os.path.isdir(self.path):
            return {}
        own = set(self.own_steps())
        return {step: os.path.join(self.path, name)
                for step, name in self._find_steps(self.path).items()
                if step not in own and not is_shown(os.path.join(self.path, name))}

    def own_steps(self) -> list[int]:
        """The committed steps of the store, ascending. Without a store, an empty list."""
        return [] if self._shared is None else self._shared.store.steps()

    def holds(self, step: int) -> bool:
        """Whether the store has the step."""
        return self._shared is not None and step in self._shared.store

    def steps(self) -> list[int]:
        """All committed steps, ascending: the store's and other libraries'."""
        return sorted({*self.own_steps(), *self.foreign()})

    def opened(self, step: int) -> _store.Store:
        """A store that has `step`: this root's own, or one that a foreign step was imported into,
        which lives until another foreign step, or this one with other content, is opened.
        StepNotFoundError."""
        if self.holds(step):
            return self.store
        found = self.foreign().get(step)
        if found is None:
            raise StepNotFoundError(f"{self.path!r} has no step {step}; it has {self.steps()}")
        status = os.stat(found)  # a library that overwrites the step makes another directory
        key = (step, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
        if self._imported is None or self._imported[0] != key:
            self._drop_imported()
            with contextlib.ExitStack() as opened:
                store = opened.enter_context(imported(_store.Store._open_alone, found, step))
                self._imported = (key, store, opened.pop_all())
        return self._imported[1]

    def delete(self, step: int) -> None:
        """Deletes a step, whichever library wrote it. StepNotFoundError."""
        if self.holds(step):
            self.delete_foreign(step)  # which a killed overwrite left: it would come back
            self.store.delete(step)
            return
        found = self.foreign().get(step)
        if found is None:
            raise StepNotFoundError(f"{self.path!r} has no step {step}; it has {self.steps()}")
        if self._leads:
            _remove(found)

    @property
    def _leads(self) -> bool:
        """Whether this process changes the directory for all."""
        return self._shared is None or self._shared.store._backend.leads

    def delete_foreign(self, step: int) -> None:
        """Deletes what another library wrote as `step`, if anything: the store has the step now."""
        found = dict(self._find_steps(self.path)).get(step)
        if found is not None and self._leads:
            path = os.path.join(self.path, found)
            if not is_shown(path):
                _remove(path)

    # ---- life ----

    def wait_for_view(self, timeout: float = 60.0) -> None:
        """Waits until every committed step stands in the directory, where this process is the one
        that shows them."""
        if self._shared is not None and self._shared.view is not None:
            self._shared.view.wait(timeout)

    def _drop_imported(self) -> None:
        if self._imported is not None:
            _, _, opened = self._imported
            self._imported = None
            opened.close()

    def close(self) -> None:
        """Waits for the saves of the store. The last manager of a directory closes it; raises the
        first error of a save that was not raised yet. Idempotent."""
        self._drop_imported()
        shared, self._shared = self._shared, None
        if shared is None:
            return
        last = writer = False
        try:
            with _lock:
                shared.users -= 1
                last = shared.users == 0
                writer = last and _open.get(self._key) is shared
                if writer:
                    del _open[self._key]
                    _closing[self._key] = threading.get_ident()
            if last:
                shared.store.close()
            elif not shared.store.read_only:
                shared.store.wait()
        finally:
            if writer:
                with _lock:
                    _closing.pop(self._key, None)
                    _closed.notify_all()

    def __enter__(self) -> Root:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

