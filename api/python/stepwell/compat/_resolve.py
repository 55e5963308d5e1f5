# SPDX-License-Identifier: Apache-2.0
"""Resolves a path: to read, to save, to delete.

    a step of a root            by the mark in it: the store of the root (kind "step")
    a single checkpoint         the store inside it ("single")
    a checkpoint of Orbax, or   a temporary store, into which an item is imported when it is
    a copy of one of these      asked for ("orbax")
    an item of any of these     the checkpoint, and the item's name

A step of a root is saved, replaced and deleted through the root's store.
"""

from __future__ import annotations

import abc
import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Literal, TypeVar

from .. import _stepwell, _store
from .._interop.temporary_import import imported
from .._pytree.chunks import Chunks
from .._runtime import durable
from .._runtime.durable import TEMPORARY
from .._runtime.files import local_path, read_json_object, undisturbed
from .._views import StepView
from ..errors import (CheckpointNotFoundError, CorruptionError, Error, StepExistsError,
                      StepNotFoundError)
from . import _single, _stores
from ._root import Root
from ._single import TREE_FILE
from ._stores import METRICS, OWN_METADATA
from ._work import Peers, Work

T = TypeVar("T")
_STATE = "state"  # an unnamed item, as an import calls it


class Opened(abc.ABC):
    """A checkpoint that is open for reading. A context manager that closes.

    path: its directory. item: the one that the path named; None: the checkpoint itself. flat: the
    directory is one unnamed item. names: of its items, as its library calls them. missing: items
    that a copy lacks; a load of all raises. handlers: Orbax's names of the handlers that saved
    them. times: when it was begun and committed, in ns. metadata: custom metadata (JSON).
    """

    kind: Literal["step", "single", "orbax"]
    item: str | None = None
    flat: bool = False
    names: list[str]
    handlers: dict[str, str]
    times: tuple[int | None, int | None]
    metadata: dict[str, Any]
    metrics: Any

    def __init__(self, path: str) -> None:
        self.path = path
        self.missing: list[str] = []

    @abc.abstractmethod
    def open(self, name: str) -> tuple[_store.Store, int, str]:
        """The store and the step that have an item, and its name there."""

    @abc.abstractmethod
    def is_tree(self, name: str) -> bool:
        """Returns true if an item is a tree, and not files of some handler."""

    @contextlib.contextmanager
    def folder(self, name: str) -> Iterator[str]:
        """A directory with the files of an item that is not a tree."""
        yield self.path if self.flat else os.path.join(self.path, name)

    def close(self) -> None:
        """Lets what was opened go. Idempotent."""

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()


class StoredStep(Opened):
    """A step of a store; what Orbax reads of it is at `path`."""

    def __init__(self, kind: Literal["step", "single"], path: str, store: _store.Store, step: int,
                 closing: contextlib.ExitStack) -> None:
        super().__init__(path)
        self.kind = kind
        self.store = store
        self.step = step
        self.view: StepView = store[step]
        self._closing = closing
        described: dict[str, Any] = {}
        # A power cut may leave only a part of what a view shows, until the store is opened again.
        with contextlib.suppress(*([CorruptionError] if kind == "step" else [])):
            described = read_json_object(os.path.join(path, _single.CHECKPOINT_METADATA))
        stored = self.view.metadata if isinstance(self.view.metadata, dict) else {}
        own = stored.get(OWN_METADATA)
        self.own: dict[str, Any] = own if isinstance(own, dict) else {}
        self.metadata = {key: value for key, value in stored.items()
                         if key not in (OWN_METADATA, "orbax")}
        handlers = described.get("item_handlers")
        self.handlers = {**(handlers if isinstance(handlers, dict) else {}),
                         **self.own.get("handlers", {})}
        committed = self.view._source.reader.time_ns
        self.times = described.get("init_timestamp_nsecs", committed), committed
        self.metrics = _stores.metrics_of(store, step)
        self.names = [name for name in self.view.items]
        if kind == "single":
            self.flat = os.path.exists(os.path.join(path, TREE_FILE)) or os.path.exists(
                os.path.join(path, _stores.STORE_NAME))
            if not self.flat:
                self._without_deleted(handlers if isinstance(handlers, dict) else {})

    def _without_deleted(self, handlers: dict[str, str]) -> None:
        """Leaves out what Orbax deleted, or was deleting: the store has it still. An item with a
        handler and no directory is lost; one with neither was deleted, or Orbax holds nothing of
        it."""
        names = [name for name in self.names if name != _being_deleted(self.path)]
        gone = [name for name in names if not os.path.isdir(os.path.join(self.path, name))]
        left_out = _stepwell.missing_items(self.path) if gone else []
        self.missing = [name for name in gone if name in handlers]
        self.names = [name for name in names if name not in gone
                      or name not in handlers and name in left_out]

    def open(self, name: str) -> tuple[_store.Store, int, str]:
        return self.store, self.step, name

    def is_tree(self, name: str) -> bool:
        folder = os.path.join(self.path, name)
        # Orbax does not know of an item without anything that it can hold.
        return (self.flat or name not in self.handlers or not os.path.isdir(folder)
                or os.path.exists(os.path.join(folder, TREE_FILE)))

    @contextlib.contextmanager
    def folder(self, name: str) -> Iterator[str]:
        with durable.scratch("stepwell-files-") as folder:
            target = os.path.join(folder, name)
            self.view.write_files(name, target)
            yield target

    def close(self) -> None:
        self._closing.close()


def _being_deleted(path: str) -> str | None:
    """The item that Orbax was deleting when it was killed."""
    found = read_json_object(os.path.join(path, "_CHECKPOINT_DELETION")).get("checkpointable_name")
    return found if isinstance(found, str) else None


class OrbaxCheckpoint(Opened):
    """A checkpoint with data of its own: Orbax wrote it, or it is a copy."""

    kind = "orbax"

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._imported: dict[str, _store.Store] = {}
        self._closing = contextlib.ExitStack()
        described = read_json_object(os.path.join(path, _single.CHECKPOINT_METADATA))
        handlers = described.get("item_handlers")
        self.handlers = handlers if isinstance(handlers, dict) else {}
        self.times = (described.get("init_timestamp_nsecs"),
                      described.get("commit_timestamp_nsecs"))
        custom = described.get("custom_metadata")
        self.metadata = custom if isinstance(custom, dict) else {}
        self.metrics = read_json_object(
            os.path.join(path, METRICS, METRICS)) or None
        if os.path.exists(os.path.join(path, TREE_FILE)) or isinstance(handlers, str):
            self.flat = True
            self.names = [_STATE]
            if isinstance(handlers, str):
                self.handlers = {_STATE: handlers}
        else:
            deleted = _being_deleted(path)
            self.names = sorted(
                entry.name for entry in os.scandir(path) if entry.is_dir()
                and entry.name != deleted and not entry.name.startswith(_stores.STORE_NAME))
            self.missing = [name for name in _stepwell.missing_items(path)
                            if name not in (deleted, METRICS)]

    def open(self, name: str) -> tuple[_store.Store, int, str]:
        if name not in self._imported:
            self._imported[name] = self._closing.enter_context(imported(
                _store.Store._open_alone, self.path, items=None if self.flat else [name]))
        store = self._imported[name]
        (item,) = store[0].items
        return store, 0, item

    def is_tree(self, name: str) -> bool:
        return self.flat or os.path.exists(os.path.join(self.path, name, TREE_FILE))

    def close(self) -> None:
        self._imported.clear()
        self._closing.close()


# ---- reading ------------------------------------------------------------------------------------


def shown(path: str) -> tuple[str, int] | None:
    """The store and the step that a directory shows, if it is a step of a root; also while it has
    yet to be shown as the store has it by now, or to go."""
    found = _stores.shown_at(path)
    return None if found is None else (found.store_path, found.step)


def opened(path: str | os.PathLike[str]) -> Opened:
    """The checkpoint at a path. FileNotFoundError (also for the root of several, which it names),
    NotADirectoryError."""
    directory = local_path(path)
    is_there = os.path.lexists(directory)
    if is_there and not os.path.isdir(directory):
        raise NotADirectoryError(f"{directory} is a file, not the directory of a checkpoint")
    found = _opened(directory)
    if found is not None:
        return found
    parent, item = os.path.split(directory)
    above = _opened(parent)
    if above is not None:
        if not above.flat and item in above.names:
            above.item = item
            return above
        above.close()
        raise CheckpointNotFoundError(f"{directory} is no item of the checkpoint {parent}, which "
                                      f"has {above.names}")
    if is_there:
        raise CheckpointNotFoundError(_describe_contents(directory))
    near = f"; {_describe_contents(parent)}" if _stepwell.stores_in(parent) else ""
    raise CheckpointNotFoundError(f"Checkpoint at {directory} not found{near}")


def step_of(root: Root, step: int) -> Opened:
    """A step of a root, whichever library wrote it. StepNotFoundError."""
    found = root.foreign().get(step)
    if found is not None:  # also one that nothing describes
        return _opened(found) or OrbaxCheckpoint(found)
    if not root.holds(step):
        raise StepNotFoundError(f"{root.path!r} has no step {step}; it has {root.steps()}")
    return StoredStep("step", root.directory_of(step), root.store, step, contextlib.ExitStack())


def read_step(root: Root, step: int, read: Callable[[Opened], T]) -> T:
    """Returns the result of `read` for a step of a root; for one that is not the store's, as
    undisturbed."""
    def once() -> T:
        with step_of(root, step) as found:
            return read(found)

    foreign = root.foreign().get(step)
    return once() if foreign is None else undisturbed(foreign, once)


def _opened(directory: str) -> Opened | None:
    """The checkpoint that a directory is; None for items, roots, and anything else."""
    own = shown(directory)
    with contextlib.ExitStack() as closing:
        if own is not None:
            store = closing.enter_context(_stores.reading(own[0]))
            try:
                return StoredStep("step", directory, store, own[1], closing.pop_all())
            except StepNotFoundError:
                raise CheckpointNotFoundError(
                    f"{directory} shows a step that was deleted") from None
        if is_item(directory):
            return None
        inside = _single.open_store(directory)
        if inside is not None:
            closing.enter_context(inside)
            return StoredStep("single", directory, inside, _single.STEP, closing.pop_all())
    return OrbaxCheckpoint(directory) if is_checkpoint(directory) else None


def is_item(directory: str) -> bool:
    """Returns true if a directory is an item of the checkpoint around it."""
    described = read_json_object(
        os.path.join(os.path.dirname(directory), _single.CHECKPOINT_METADATA))
    handlers = described.get("item_handlers")
    return isinstance(handlers, dict) and os.path.basename(directory) in handlers


def is_checkpoint(directory: str) -> bool:
    """Returns true if a directory is a checkpoint of Orbax, finished, and not an item or a root of
    some."""
    if TEMPORARY in os.path.basename(directory) or not os.path.isdir(directory):
        return False
    names = (_single.CHECKPOINT_METADATA, TREE_FILE, _single.INDICATOR)
    if any(os.path.exists(os.path.join(directory, name)) for name in names):
        return not is_item(directory)
    with contextlib.suppress(OSError):  # of v0, from before it described its steps
        return any(os.path.exists(os.path.join(entry.path, TREE_FILE))
                   for entry in [*os.scandir(directory)] if not shown(entry.path)
                   and not os.path.exists(os.path.join(entry.path, _single.CHECKPOINT_METADATA)))
    return False


def _describe_contents(directory: str) -> str:
    stores = _stepwell.stores_in(directory)
    if stores:
        with contextlib.suppress(Error):
            with _stores.reading(os.path.join(directory, stores[0])) as store:
                return (f"{directory} is the root of several checkpoints, the steps "
                        f"{store.steps()}; name one of its directories, or open the store in it: "
                        f"stepwell.open({os.path.join(directory, stores[0])!r})")
    inner = sorted(entry.path for entry in os.scandir(directory)
                   if entry.is_dir() and is_checkpoint(entry.path))
    if inner:
        return (f"{directory} is the root of several checkpoints; name one of them: "
                f"{', '.join(inner[:10])}")
    return f"{directory} is not a checkpoint of Stepwell or Orbax"


# ---- changing -----------------------------------------------------------------------------------


def save(path: str | os.PathLike[str], items: Mapping[str, Any], *, overwrite: bool = False,
         metadata: Any = None, metrics: Any = None, chunks: Chunks | None = None,
         form: _single.Form | None = None, timeout: float | None = None,
         finished: Callable[[], object] | None = None) -> Work[None]:
    """Saves items as the checkpoint `path`, in the background: as _single.save, or through the
    store where the path is a step of a root, or (one item) an item of a step."""
    target = local_path(path)
    own, item = shown(target), None
    if own is None and len(items) == 1 and os.path.lexists(target):
        own, item = shown(os.path.dirname(target)), os.path.basename(target)
    if own is None:
        return _single.save(path, items, overwrite=overwrite, metadata=metadata, metrics=metrics,
                            chunks=chunks, form=form, timeout=timeout, finished=finished)
    if not overwrite:
        raise StepExistsError(f"{target!r} exists; overwrite=True replaces it")
    with contextlib.ExitStack() as closing, _stores.alone(*own) as note:
        store = closing.enter_context(_stores.writing(own[0]))
        if item is None:
            handle = store._put(own[1], items, metadata=metadata, metrics=metrics, chunks=chunks,
                                replace=True)
        else:
            handle = _save_item(store, own[1], item, next(iter(items.values())))
        held = closing.pop_all()
        try:
            saving = Work(lambda: _complete(handle, held, finished), timeout=timeout)
        except BaseException:
            held.close()
            raise
        note(saving)
        return saving


def _save_item(store: _store.Store, step: int, item: str, tree: Any) -> Any:
    """A step once more, with another item of this name. The caller is `alone`."""
    view = store[step]
    items: dict[str, Any] = {name: view[(name,)] for name in view.items if name != item}
    return store._put(step, {**items, item: tree}, metadata=view.metadata, metrics=view.metrics,
                      replace=True)


def _complete(handle: Any, closing: contextlib.ExitStack, finished: Callable[[], object] | None
              ) -> None:
    with closing:
        handle.result()
    if finished is not None:
        finished()


def delete(path: str | os.PathLike[str]) -> None:
    """Deletes a checkpoint: durable, and gone from the directory, when this returns. All processes
    of a run call it. FileNotFoundError."""
    target = local_path(path)
    own = shown(target)
    if own is not None:
        with _stores.writing(own[0]) as store:
            store.delete(own[1])
        return
    Peers(f"deleting {target!r}").lead(lambda: durable.remove(target))


def delete_item(path: str | os.PathLike[str], name: str) -> None:
    """Deletes an item of a checkpoint, which has others."""
    target = local_path(path)
    own = shown(target)
    if own is None:
        _single.delete_item(target, name)
        return
    with _stores.writing(own[0]) as store:
        store.delete(own[1], item=name)
