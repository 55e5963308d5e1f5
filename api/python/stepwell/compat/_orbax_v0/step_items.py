# SPDX-License-Identifier: Apache-2.0
"""The items of a stored step, of whichever library wrote it."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ... import _store
from .libraries import as_path
from .step import read_step_metadata
from .stored import StoredItem

DEFAULT_ITEM = "default"
METRICS_ITEM = "metrics"

# The part of a step's metadata that this facade keeps for itself: handlers of items, and custom
# metadata of items.
OWN_METADATA = "stepwell_orbax"


_HANDLERS = "orbax.checkpoint._src.handlers."
_STANDARD = _HANDLERS + "standard_checkpoint_handler.StandardCheckpointHandler"
_ARRAY = _HANDLERS + "array_checkpoint_handler.ArrayCheckpointHandler"
_JSON = _HANDLERS + "json_checkpoint_handler.JsonCheckpointHandler"
_TREES = (".StandardCheckpointHandler", ".PyTreeCheckpointHandler", ".ArrayCheckpointHandler")
IMPLIED_HANDLERS = (_STANDARD, _ARRAY)  # which the stored item itself tells


class StepItems:
    """What is in one step.

    store, step: where it is. directory: its directory below the root, which Orbax reads, too.
    imported: the store has it from that directory. flat: the step is one item and has no name.
    """

    def __init__(self, store: _store.Store, step: int, directory: str, *, imported: bool = False,
                 flat: bool = False) -> None:
        self.store = store
        self.step = step
        self.directory = directory
        self.view = store[step]
        self._imported = imported
        self._flat = flat

    @functools.cached_property
    def _names(self) -> dict[str, str]:
        """Names of the items in the store by those that the facade's user knows."""
        names = {name: name for name in self.view.items}
        is_default = self._flat or self._imported and os.path.isdir(
            os.path.join(self.directory, DEFAULT_ITEM))
        if is_default and "state" in names and DEFAULT_ITEM not in names:
            names[DEFAULT_ITEM] = names.pop("state")  # as the import named it
        return names

    @property
    def names(self) -> list[str]:
        """The items, with the metrics, which Orbax takes for one."""
        found = list(self._names)
        return sorted({*found, *([METRICS_ITEM] if self.view.metrics is not None else [])})

    @property
    def is_default(self) -> bool:
        """Whether the step was saved as one item without a name."""
        return DEFAULT_ITEM in self._names

    def __contains__(self, name: str) -> bool:
        return name in self.names

    @functools.cached_property
    def _metadata(self) -> dict[str, Any]:
        found = self.view.metadata
        return found if isinstance(found, dict) else {}

    @property
    def custom_metadata(self) -> dict[str, Any]:
        return {key: value for key, value in self._metadata.items()
                if key not in (OWN_METADATA, "orbax")}

    def _own(self, kind: str) -> dict[str, Any]:
        own = self._metadata.get(OWN_METADATA)
        return own.get(kind, {}) if isinstance(own, dict) else {}

    def custom_metadata_of(self, name: str) -> Any:
        return self._own("custom_metadata").get(name)

    @functools.cached_property
    def _orbax_metadata(self) -> dict[str, Any]:
        return read_step_metadata(self.directory) if self._imported else {}

    def handler(self, name: str) -> str | None:
        """The name of the class of the handler that saved an item, where it is known."""
        saved_by = self._saved_by(name)
        return self._of_tree(name) if saved_by is None and self.kind(name) == "tree" else saved_by

    def _saved_by(self, name: str) -> str | None:
        if name == METRICS_ITEM and name not in self._names:
            return _JSON
        saved = self._orbax_metadata.get("item_handlers")
        if isinstance(saved, str):
            return saved
        found: str | None = (saved or self._own("handlers")).get(name)
        return found

    def _of_tree(self, name: str) -> str:
        item = self.tree(name)
        is_array = item.record(item.number).type_name.endswith(".ArrayItem")
        return _ARRAY if is_array else _STANDARD

    @property
    def times(self) -> tuple[int | None, int]:
        """When the step was begun and committed, in nanoseconds."""
        saved = self._orbax_metadata
        committed = saved.get("commit_timestamp_nsecs") or int(self.view.time.timestamp() * 1e9)
        return saved.get("init_timestamp_nsecs"), committed

    def directory_of(self, name: str) -> Any:
        path = as_path(self.directory)
        return path if self._flat else path / name

    # ---- reading ----

    def tree(self, name: str) -> StoredItem:
        return StoredItem(self.view._source, self._names[name])

    def kind(self, name: str) -> str:
        """"tree", "json" or "files"."""
        if name == METRICS_ITEM and name not in self._names:
            return "json"
        saved_by = self._saved_by(name)
        if saved_by is None or saved_by.endswith(_TREES):
            return "tree"
        return "json" if saved_by == _JSON else "files"

    def json(self, name: str) -> Any:
        if name == METRICS_ITEM and self.view.metrics is not None:
            return self.view.metrics
        return self.store.load(self.step, (self._names[name],))

    @contextmanager
    def files(self, name: str) -> Iterator[Any]:
        """The files of an item, in a directory for the time of the block: those that a handler
        wrote, and for other items those that Orbax would have."""
        if self._imported or self.kind(name) != "files":
            yield self.directory_of(name)
            return
        with tempfile.TemporaryDirectory(prefix="stepwell-item-") as folder:
            self.view.write_files(self._names[name], folder)
            yield as_path(folder)
