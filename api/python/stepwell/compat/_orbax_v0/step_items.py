# SPDX-License-Identifier: Apache-2.0
"""The items of a checkpoint that is open for reading, whichever library wrote it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

from etils import epath
from orbax.checkpoint import JsonCheckpointHandler, args
from orbax.checkpoint.metadata import StepMetadata

from .._orbax_stored import StoredItem
from .._resolve import Opened, StoredStep
from .._stores import METRICS, OWN_METADATA
from .._single import TREE_FILE
from .native import arguments, native_class, restored, unwrapped

DEFAULT_ITEM = "default"

_HANDLERS = "orbax.checkpoint._src.handlers."
_STANDARD = _HANDLERS + "standard_checkpoint_handler.StandardCheckpointHandler"
_ARRAY = _HANDLERS + "array_checkpoint_handler.ArrayCheckpointHandler"
_JSON = _HANDLERS + "json_checkpoint_handler.JsonCheckpointHandler"
IMPLIED_HANDLERS = (_STANDARD, _ARRAY)  # which the stored item itself tells

# Kinds of items. The end of a handler's name tells it, or the step's own metadata.
TREE, JSON, FILES = "tree", "json", "files"
_TREES = (".StandardCheckpointHandler", ".PyTreeCheckpointHandler", ".ArrayCheckpointHandler",
          ".BasePyTreeCheckpointHandler", ".PyTreeHandler")
_JSONS = (".JsonCheckpointHandler", ".JsonHandler")


def kind_of_handler(typestr: str | None) -> str:
    """Returns the kind of a handler's items, by the handler's name."""
    if typestr is None or typestr.endswith(_TREES):
        return TREE
    return JSON if typestr.endswith(_JSONS) else FILES


class StepItems:
    """The items of one checkpoint.

    shown: waits until the checkpoint's directory, which Orbax reads, too, is there.
    """

    def __init__(self, opened: Opened, shown: Callable[[], object] = lambda: None) -> None:
        self._opened = opened
        self._stored = opened if isinstance(opened, StoredStep) else None
        self._shown = shown
        self.path = opened.path
        self.is_one = opened.flat or opened.item is not None
        # The items, with the metrics, which Orbax takes for one.
        self.names = [DEFAULT_ITEM] if self.is_one else sorted(
            {*opened.names, *([METRICS] if opened.metrics is not None else [])})

    def all_names(self) -> list[str]:
        """Returns the names that a restore of all items restores. FileNotFoundError if a copy lacks
        some."""
        if self._opened.missing:
            raise FileNotFoundError(
                f"{self.path} is a copy that lacks {self._opened.missing}, which Orbax cannot hold "
                f"or which was removed; name what to restore of {self.names}")
        return self.names

    @property
    def is_default(self) -> bool:
        """True if the checkpoint was saved as one item without a name."""
        return DEFAULT_ITEM in self.names

    def check_is_one(self) -> None:
        """FileNotFoundError where this is a checkpoint of items, and one of them was to be named.
        """
        if not self.is_one:
            inside = ", ".join(os.path.join(self.path, name) for name in self.names)
            raise FileNotFoundError(f"{self.path} is a checkpoint of items, not one of them: pass "
                                    f"{inside or 'the path of one'}")

    def _name(self, name: str) -> str:
        """The name of an item as the checkpoint has it."""
        if not self.is_one:
            return name
        return self._opened.names[0] if self._opened.item is None else self._opened.item

    def _is_metrics(self, name: str) -> bool:
        """Returns true if this is the store's metrics, which Orbax takes for an item."""
        return (name == METRICS and self._stored is not None and not self.is_one
                and name not in self._stored.view.items)

    def _own(self, kind: str, name: str) -> Any:
        """Returns the metadata that this facade kept for an item in the step's metadata."""
        own = (self._opened.metadata.get(OWN_METADATA) if self._stored is None
               else self._stored.own)
        return own.get(kind, {}).get(self._name(name)) if isinstance(own, dict) else None

    def kind(self, name: str) -> str:
        """TREE, JSON or FILES."""
        if self._stored is None:  # JSON is files, there
            has_tree = os.path.isfile(os.path.join(self.directory_of(name), TREE_FILE))
            return TREE if has_tree else FILES
        if self._is_metrics(name):
            return JSON
        kind: str = self._own("kinds", name) or kind_of_handler(self._own("handlers", name))
        return kind

    def directory_of(self, name: str) -> Any:
        """Returns the directory in which Orbax finds the item."""
        path = epath.Path(self.path)
        return path if self._opened.flat else path / self._name(name)

    # ---- what is known of them ----

    def handler(self, name: str) -> str | None:
        """The name of the class of the handler that saved an item, where it is known."""
        if self._is_metrics(name):
            return _JSON
        saved = self._own("handlers", name) or (
            self._opened.handlers.get(self._name(name)) if self._stored is None else None)
        if saved is None and self.kind(name) == TREE:
            if self._stored is None:
                return _STANDARD  # from before Orbax noted it
            item = self.tree(name)
            is_array = item.record(item.number).type_name.endswith(".ArrayItem")
            return _ARRAY if is_array else _STANDARD
        return saved if isinstance(saved, str) else None

    @property
    def metrics(self) -> Any:
        """The metrics; None if there are none."""
        if self._opened.metrics is not None or self._stored is not None:
            return self._opened.metrics
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, ValueError):  # no dict
            return JsonCheckpointHandler(filename=METRICS).restore(
                epath.Path(self.path) / METRICS)
        return None

    def described(self, item_handlers: Any, item_metadata: Any) -> StepMetadata:
        """Orbax's metadata of the checkpoint."""
        begun, committed = self._opened.times
        metrics = None if self.is_one else self.metrics
        return StepMetadata(
            item_handlers=item_handlers, item_metadata=item_metadata,
            metrics=metrics if isinstance(metrics, dict) else {}, init_timestamp_nsecs=begun,
            commit_timestamp_nsecs=committed,
            custom_metadata={key: value for key, value in self._opened.metadata.items()
                             if key not in (OWN_METADATA, "orbax")})

    def item_metadata(self, name: str, handler: Any) -> Any:
        """Describes an item without reading its data; None if the handler does not say."""
        if name == METRICS or handler is None:
            return None
        if native_class(handler) is not None:
            if self.kind(name) == JSON:
                return None
            if self.kind(name) == TREE and self._stored is not None:
                return self.tree(name).metadata(self.directory_of(name),
                                                self._own("custom_metadata", name))
        with self._files(name) as directory, contextlib.suppress(
                FileNotFoundError, NotImplementedError, ValueError, TypeError, AttributeError):
            return handler.metadata(directory)
        return None

    # ---- reading ----

    def tree(self, name: str) -> StoredItem:
        store, step, item = self._opened.open(self._name(name))
        return StoredItem(store[step]._source, item)

    def restore(self, name: str, handler: Any, given: Any) -> Any:
        """Restores what the arguments of a handler ask for of an item."""
        cls = native_class(handler)
        if cls is not None:
            given = arguments(cls, given, True)
            kind = self.kind(name)
            if cls is JsonCheckpointHandler:
                if kind == JSON:
                    return self._json(name)
            elif kind == TREE and getattr(given, "legacy_transform_fn", None) is None:
                return restored(cls, self.tree(name), given)
            handler = unwrapped(handler)
        with self._files(name) as directory:
            return handler.restore(directory, args=given)

    def _json(self, name: str) -> Any:
        if self._is_metrics(name):
            return self._opened.metrics
        store, step, item = self._opened.open(self._name(name))
        return store.load(step, (item,))

    @contextlib.contextmanager
    def _files(self, name: str) -> Iterator[Any]:
        """The files of an item, for the time of the block: those that a handler wrote; for other
        items those that Orbax would have written."""
        if self._stored is None or self.kind(name) != FILES:
            self._shown()
            yield self.directory_of(name)
            return
        with self._opened.folder(self._name(name)) as folder:
            yield epath.Path(folder)


def restore_items(items: StepItems, handlers: Any, named: dict[str, Any]) -> args.Composite:
    """Items by name. Arguments of None: those that the item's handler has by default. KeyError."""
    found: dict[str, Any] = {}
    for name, given in sorted(named.items()):
        if name not in items.names:
            raise KeyError(f'Item "{name}" was not found in the checkpoint. Available items: '
                           f"{items.names}")
        handler = handlers.get(name, given)
        if given is None:
            given = handlers.default_restore_args(name, items.handler(name))
        found[name] = items.restore(name, handler, given)
    return args.Composite(**found)
