# SPDX-License-Identifier: Apache-2.0
"""The stores of roots: each is open once in a process, however many facades use it."""

from __future__ import annotations

import contextlib
import datetime
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import Any, NamedTuple

from .. import _stepwell, _store
from .._interop.orbax_view import OrbaxView
from .._pytree.has_leaf import has_leaf
from .._runtime import service
from .._runtime.files import key_of
from ..errors import Error, StepNotFoundError
from ._work import Work

STORE_NAME = ".stepwell"
METRICS = "metrics"  # an item of Orbax's, too
OWN_METADATA = "stepwell_orbax"  # a key of a step's metadata, of the facades alone


class Info(NamedTuple):
    """The facts that policies know of a step."""

    step: int
    time: datetime.datetime
    metrics: Any


def now() -> datetime.datetime:
    return datetime.datetime.now(tz=datetime.timezone.utc)


def metrics_of(store: _store.Store, step: int) -> Any:
    """The metrics of a step of a store; those that are no dict are an item of JSON."""
    view = store[step]
    if view.metrics is None and METRICS in view.items:
        return store.load(step, items=[METRICS])[METRICS]
    return view.metrics


def shown_at(path: str) -> _stepwell.ShownStep | None:
    """Which step of a root's store a directory shows; None if it shows none, or is not there, also
    where it goes meanwhile."""
    try:
        return _stepwell.made_by_view(path)
    except StepNotFoundError:
        return None


def retired(steps: Iterable[int], step: int, items: Mapping[str, Any]) -> list[int]:
    """Which of the steps that a policy gives up go with a save of `items` as `step`: only the step
    itself if the items have no leaf, as those of a train step that forgot its `return`."""
    return [each for each in steps if each == step or has_leaf(dict(items))]


def kept_beside(steps: Iterable[float], new: float, tainted: Set[int]) -> set[float]:
    """Which of `steps` stay beside those that a policy keeps once `new` is saved, which is one of
    them: what the engine's rule for tainted steps says of these, which may be of other libraries,
    too.

    And `new` stays below tainted steps, where a policy takes it for an old one: the engine never
    drops the step that it saves.
    """
    ordered = sorted(set(steps))
    bad = [at for at, step in enumerate(ordered) if step in tainted and step != new]
    kept = _stepwell.kept_untainted(len(ordered), bad, ordered.index(new))
    stay = set() if kept is None else {ordered[kept]}
    return stay | {new} if bad and new < ordered[bad[-1]] else stay


class Shared:
    """A store of this process, with the number of those that use it."""

    def __init__(self, store: _store.Store, key: tuple[int, int]) -> None:
        self.store = store
        self.key = key
        self.view: OrbaxView | None = None
        # Held from the choice of what a save retires until the save is in the lists.
        self.planning = threading.RLock()
        self.users = 1
        self.saving: dict[int, tuple[Work[None], Info]] = {}
        self.infos: dict[tuple[int, int], Info] = {}  # by step and commit

    def in_flight(self) -> dict[int, Info]:
        """The steps that are being saved."""
        for step, (saving, _) in list(self.saving.items()):
            if saving.done():
                self.saving.pop(step, None)
        return {step: info for step, (_, info) in list(self.saving.items())}


_lock = threading.RLock()
_by_key: dict[tuple[int, int], Shared] = {}  # by device and inode of the store's directory
_closing: dict[tuple[int, int], int] = {}  # and the threads that close them
_closed = threading.Condition(_lock)


def _forget_after_fork() -> None:
    global _lock, _closed
    _lock = threading.RLock()
    _by_key.clear()  # the parent's
    _closing.clear()
    _closed = threading.Condition(_lock)


os.register_at_fork(after_in_child=_forget_after_fork)


def _taken(path: str) -> Shared | None:
    """The store at a path, if this process has it open for writing; it has one user more."""
    while (key := key_of(path)) is not None and _closing.get(
            key, here := threading.get_ident()) != here:
        _closed.wait()
    shared = None if key is None else _by_key.get(key)
    if shared is not None:
        shared.users += 1
    return shared


def take(path: str, opened: Callable[[], _store.Store | None],
         prepare: Callable[[Shared], object]) -> Shared | None:
    """The store at a path for one user more. `opened`: opens it, where this process has it not open
    for writing; None: there is none. `prepare`: of a store that was opened for writing, before
    anyone else has it."""
    with _lock:
        shared = _taken(path)
        if shared is not None:
            return shared
        store = opened()
        if store is None:
            return None
        key = key_of(path)
        assert key is not None  # it is open
        shared = Shared(store, key)
        if not store.read_only:
            _by_key[key] = shared
            try:
                prepare(shared)
            except BaseException:
                release(shared)
                raise
        return shared


def release(shared: Shared) -> None:
    """The last user closes the store; raises the first error of a save that was not raised yet."""
    last = writer = False
    try:
        with _lock:
            shared.users -= 1
            last = shared.users == 0
            writer = last and _by_key.get(shared.key) is shared
            if writer:
                del _by_key[shared.key]
                _closing[shared.key] = threading.get_ident()
        if last:
            shared.store.close()
        elif not shared.store.read_only:
            shared.store.wait()
    finally:
        if writer:
            with _lock:
                _closing.pop(shared.key, None)
                _closed.notify_all()


@contextlib.contextmanager
def reading(path: str) -> Iterator[_store.Store]:
    """A store of a root: this process's own, or opened for reading for the time of the block."""
    with _lock:
        shared = _taken(path)
    if shared is None:
        with _store.open(path, mode="r") as store:
            yield store
        return
    try:
        yield shared.store
    finally:
        release(shared)


@contextlib.contextmanager
def alone(path: str, step: int) -> Iterator[Callable[[Work[None]], None]]:
    """Nothing else of this process saves to the store: what it saves of the step has come to its
    end, and other saves wait for the block. Gives what is to be told of a save that begins."""
    with _lock:
        shared = _by_key.get(key_of(path) or (0, 0))
    if shared is None:  # then nothing else has it open
        yield lambda saving: None
        return

    def note(saving: Work[None]) -> None:
        shared.saving[step] = saving, Info(step, now(), None)

    with shared.planning:
        known = shared.saving.get(step)
        if known is not None:
            known[0].wait()
        yield note


@contextlib.contextmanager
def opened_to_change(path: str) -> Iterator[_store.Store]:
    """A store that is open for a change, which has said by itself how it went: what goes wrong at
    the end undoes nothing, and is logged."""
    store = _store.open(path)
    try:
        yield store
    finally:
        try:
            store.close()
        except Error as error:
            service.logger.warning("%s: closing it after a change: %s", path, error)


@contextlib.contextmanager
def writing(path: str) -> Iterator[_store.Store]:
    """A store of a root for one change. The root shows it when the block has ended. LockedError if
    another process writes the store."""
    with _lock:
        shared = _taken(path)
    if shared is None:
        with opened_to_change(path) as store:  # its end is that of showing the steps, too
            yield store
        return
    try:
        yield shared.store
        if shared.view is not None:
            shared.view.wait(60.0)
    finally:
        release(shared)
