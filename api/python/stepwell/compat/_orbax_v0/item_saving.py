# SPDX-License-Identifier: Apache-2.0
"""Turns each item's arguments into what a save takes."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from etils import epath
from orbax.checkpoint import JsonCheckpointHandler
from orbax.checkpoint.args import Composite

from ... import Files
from ..._runtime import durable
from .._orbax_common import run
from .._stores import OWN_METADATA
from .native import arguments, item_of, native_class, unwrapped
from .step_items import FILES, IMPLIED_HANDLERS, JSON, TREE, kind_of_handler


def _save_files(handler: Any, folder: str, args: Any, timeout: float | None) -> None:
    """Lets a handler write its files, all of them, into a directory. TimeoutError."""
    directory = epath.Path(folder)
    _begin_operation()
    if hasattr(handler, "async_save"):
        async def start() -> list[Any]:
            return list(await handler.async_save(directory, args=args) or [])

        for future in run(start()):
            future.result(timeout=timeout)
    else:
        handler.save(directory, args=args)
    if hasattr(handler, "finalize"):
        handler.finalize(directory)


def _begin_operation() -> None:
    """Begins a save as Orbax's checkpointers do: without it, its handlers may wait for signals that
    an earlier save of Orbax in this process has contracted. The numbers have no public name."""
    numbers = importlib.import_module("orbax.checkpoint._src.futures.synchronization")
    for name in ("OperationIdGenerator", "HandlerAwaitableSignalOperationIdGenerator"):
        if hasattr(numbers, name):
            getattr(numbers, name).next_operation_id()
            return


class Saving:
    """The items of a save and what the store keeps beside them. timeout: for handlers that write
    files in the background."""

    def __init__(self, timeout: float | None) -> None:
        self._timeout = timeout
        self.items: dict[str, Any] = {}
        self._own: dict[str, dict[str, Any]] = {}

    def add(self, name: str, handler: Any, args: Any) -> None:
        cls = native_class(handler)
        if cls is None:
            with durable.scratch("stepwell-item-") as folder:
                _save_files(handler, folder, args, self._timeout)
                self.items[name] = Files(folder)
        else:
            args = arguments(cls, args, False)
            self.items[name] = item_of(cls, args)
        typestr = _typestr(unwrapped(handler))
        kind = FILES if cls is None else JSON if cls is JsonCheckpointHandler else TREE
        if kind != kind_of_handler(typestr):
            self._own.setdefault("kinds", {})[name] = kind
        if typestr not in IMPLIED_HANDLERS:
            self._own.setdefault("handlers", {})[name] = typestr
        # A handler around a composite one takes a Composite, each attribute of which is an item.
        custom = None if isinstance(args, Composite) else getattr(args, "custom_metadata", None)
        if custom is not None:
            self._own.setdefault("custom_metadata", {})[name] = custom

    def metadata(self, custom_metadata: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """The step's metadata: the user's, and what this facade keeps there."""
        own = {OWN_METADATA: self._own} if self._own else {}
        return {**(custom_metadata or {}), **own} or None


def _typestr(handler: Any) -> str:
    if hasattr(handler, "typestr"):
        found: str = handler.typestr()
        return found
    return f"{type(handler).__module__}.{type(handler).__qualname__}"
