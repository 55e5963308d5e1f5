# SPDX-License-Identifier: Apache-2.0
"""Where a checkpoint is, and how its items are read: what a path may mean.

    a single checkpoint of Stepwell     its own store
    a step of a Checkpointer            the store of its root
    a checkpoint of Orbax, v1 or v0     a temporary store, into which an item is imported when it is
                                        asked for
"""

from __future__ import annotations

import abc
import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from ... import _store
from ..._interop.temporary_import import imported
from ..._runtime.files import local_path
from .. import _root, _single
from .errors import CheckpointNotFoundError, DeletionInProgressError, InvalidLayoutError

TREE_FILE = "_METADATA"
DELETION_FILE = "_CHECKPOINT_DELETION"

# A key of a step's metadata, of the facades alone: Orbax's names of handlers, by item.
OWN_METADATA = "stepwell_orbax"


class Place(abc.ABC):
    """A checkpoint that is open for reading. A context manager that closes.

    names: of its items. flat: of a checkpoint that is one unnamed tree, the item's name. handlers:
    Orbax's names of the handlers that saved the items. times: when it was begun and committed, in
    ns. custom_metadata: JSON.
    """

    names: list[str]
    flat: str | None = None
    handlers: dict[str, str]
    times: tuple[int | None, int | None]
    custom_metadata: Any

    def __init__(self, path: str) -> None:
        self.path = path

    @abc.abstractmethod
    def is_tree(self, name: str) -> bool:
        """Whether an item is a tree, and not files of some handler."""

    @abc.abstractmethod
    def open(self, name: str) -> tuple[_store.Store, int, str]:
        """The store and the step that have an item, and the item's name there."""

    @contextlib.contextmanager
    def folder(self, name: str) -> Iterator[str]:
        """A directory with the files of an item that is not a tree."""
        yield os.path.join(self.path, name)

    def close(self) -> None:
        pass

    def __enter__(self) -> Place:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()


class StorePlace(Place):
    """A step of a store; its export or its view is at `path`. own: whether to close the store."""

    def __init__(self, path: str, store: _store.Store, step: int, *, own: bool) -> None:
        super().__init__(path)
        self._store = store
        self._step = step
        self._own = own
        view = store[step]
        metadata = view.metadata or {}
        self.custom_metadata = {key: value for key, value in metadata.items()
                                if key not in (OWN_METADATA, "orbax")}
        described = read_json(os.path.join(path, _single.CHECKPOINT_METADATA))
        handlers = described.get("item_handlers")
        self.handlers = {**(handlers if isinstance(handlers, dict) else {}),
                         **metadata.get(OWN_METADATA, {}).get("handlers", {})}
        committed = store._source(step).reader.time_ns
        self.times = described.get("init_timestamp_nsecs", committed), committed
        self.names = view.items
        if own and _single.store_in(path) is not None:  # an item may have been deleted by Orbax
            if os.path.exists(os.path.join(path, TREE_FILE)):
                self.flat = self.names[0]
            else:
                self.names = [name for name in self.names if name not in self.handlers
                              or os.path.isdir(os.path.join(path, name))]

    def is_tree(self, name: str) -> bool:
        folder = os.path.join(self.path, name)
        # Orbax does not know of an item without anything that it can hold.
        return (self.flat is not None or name not in self.handlers or not os.path.isdir(folder)
                or os.path.exists(os.path.join(folder, TREE_FILE)))

    def open(self, name: str) -> tuple[_store.Store, int, str]:
        return self._store, self._step, name

    @contextlib.contextmanager
    def folder(self, name: str) -> Iterator[str]:
        folder = tempfile.mkdtemp(prefix="stepwell-files-")
        try:
            target = os.path.join(folder, name)
            self._store[self._step].write_files(name, target)
            yield target
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        if self._own:
            self._store.close()


class OrbaxPlace(Place):
    """A checkpoint that Orbax wrote. An item is imported when it is asked for."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._imported: dict[str, _store.Store] = {}
        self._opened = contextlib.ExitStack()
        described = read_json(os.path.join(path, _single.CHECKPOINT_METADATA))
        handlers = described.get("item_handlers")
        self.handlers = handlers if isinstance(handlers, dict) else {}
        self.times = (described.get("init_timestamp_nsecs"),
                      described.get("commit_timestamp_nsecs"))
        self.custom_metadata = described.get("custom_metadata")
        self._deleted = read_json(os.path.join(path, DELETION_FILE)).get("checkpointable_name")
        if os.path.exists(os.path.join(path, TREE_FILE)) or isinstance(handlers, str):
            self.flat = "state"
            self.names = ["state"]
        else:
            self.names = [entry.name for entry in os.scandir(path)
                          if entry.is_dir() and entry.name != self._deleted]

    def is_tree(self, name: str) -> bool:
        return self.flat is not None or os.path.exists(os.path.join(self.path, name, TREE_FILE))

    def open(self, name: str) -> tuple[_store.Store, int, str]:
        if name == self._deleted:
            raise DeletionInProgressError(f"{name!r} of {self.path} is being deleted")
        if name not in self._imported:
            self._imported[name] = self._opened.enter_context(imported(
                _store.Store._open_alone, self.path, items=None if self.flat else [name]))
        store = self._imported[name]
        (item,) = store[0].items
        return store, 0, item

    def close(self) -> None:
        self._imported.clear()
        self._opened.close()


def read_json(path: str) -> dict[str, Any]:
    """A JSON object in a file; empty if there is no file."""
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    return value if isinstance(value, dict) else {}


def find(path: Any) -> Place:
    """The checkpoint at a path. InvalidLayoutError says what is there instead."""
    directory = local_path(path)
    if not os.path.exists(directory):
        raise CheckpointNotFoundError(f"Could not recognize {directory} as a checkpoint: it does "
                                      "not exist")
    if not os.path.isdir(directory):
        raise InvalidLayoutError(f"{directory} is a file, not a checkpoint's directory. For a "
                                 ".safetensors file set ctx.checkpoint_layout = 'safetensors'")
    if _single.TEMPORARY in os.path.basename(directory):
        raise InvalidLayoutError(f"{directory} is an incomplete checkpoint")
    if os.path.exists(os.path.join(directory, _root.VIEW_STEP_NAME)):
        place = _step_of_root(directory)
        if place is not None:
            return place
    parent = os.path.dirname(directory)
    if os.path.exists(os.path.join(parent, _single.CHECKPOINT_METADATA)):
        raise InvalidLayoutError(f"{directory} is an item of the checkpoint {parent}: load that")
    store = _single.open_store(directory)
    if store is not None:
        return StorePlace(directory, store, _single.STEP, own=True)
    _check_orbax(directory)
    return OrbaxPlace(directory)


def _step_of_root(directory: str) -> Place | None:
    """The step of a root whose view made `directory`; None if the store is elsewhere."""
    number = re.search(r"[0-9]+$", os.path.basename(directory))
    inside = os.path.join(os.path.dirname(directory), _root.STORE_NAME)
    if number is None or not os.path.isdir(inside):
        return None
    store = _store.open(inside, mode="r")
    if int(number[0]) not in store:
        store.close()
        return None
    return StorePlace(directory, store, int(number[0]), own=True)


def is_orbax(directory: str) -> bool:
    """Whether a directory is a checkpoint, not a part or a root of some."""
    parent = os.path.dirname(directory)
    return os.path.isdir(directory) and _single.TEMPORARY not in os.path.basename(directory) and (
        not os.path.exists(os.path.join(parent, _single.CHECKPOINT_METADATA))) and any(
        os.path.exists(os.path.join(directory, name))
        for name in (_single.CHECKPOINT_METADATA, TREE_FILE, _single.INDICATOR))


def _check_orbax(directory: str) -> None:
    if is_orbax(directory):
        return
    inner = sorted(entry.path for entry in os.scandir(directory) if entry.is_dir()
                   and os.path.exists(os.path.join(entry.path, _single.CHECKPOINT_METADATA)))
    if inner:
        raise InvalidLayoutError(f"{directory} is the root of several checkpoints; load one of "
                                 f"them: {', '.join(inner)}")
    raise InvalidLayoutError(f"Could not recognize {directory} as a checkpoint of Stepwell or "
                             "Orbax. Use `ctx.checkpoint_layout` for checkpoints of other kinds")
