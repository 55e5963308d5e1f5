# SPDX-License-Identifier: Apache-2.0
"""Brings back what a save takes away, a version of its step or steps that retention gives up, if
the save is cancelled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ... import Files, Json
from ..._runtime.durable import scratch
from ...errors import StepNotFoundError
from .._resolve import step_of
from .._root import Root
from .._stores import OWN_METADATA
from .trees import load_plain


class Old:
    """A step that the store has. Its data stay readable while this object lives."""

    def __init__(self, root: Root, step: int) -> None:
        self._root = root
        self._view = root.store[step]
        with step_of(root, step) as found:
            self._handlers = found.handlers

    @staticmethod
    def all_of(root: Root, steps: Iterable[int]) -> list[Old] | None:
        """None if one of them cannot come back: another library wrote it, it has just gone, or
        several processes have the store."""
        steps = list(steps)
        if steps and root.store._backend.collective or not all(map(root.holds, steps)):
            return None
        try:
            return [Old(root, step) for step in steps]
        except StepNotFoundError:  # another thread's save retired it
            return None

    def restore(self) -> None:
        """Saves it again, in the place of what took its place."""
        view = self._view
        self._root.save(view.step, {name: self._item(name) for name in view.items},
                        metadata=view.metadata, metrics=view.metrics,
                        replace=self._root.holds(view.step)).result()
        if view.taint is not None:
            self._root.store.taint(view.step, view.taint)

    def _item(self, name: str) -> Any:
        handler = self._handlers.get(name, "").rpartition(".")[2]
        if handler in ("JsonHandler", "JsonCheckpointHandler"):  # as v1 and a view call it
            return Json(load_plain(self._view._source, name))
        if name in ((self._view.metadata or {}).get(OWN_METADATA) or {}).get("handlers", {}):
            with scratch("stepwell-files-") as folder:
                self._view.write_files(name, folder)
                return Files(folder)
        return self._view[(name,)]
