# SPDX-License-Identifier: Apache-2.0
"""What a save makes of each item's arguments, and a restore of each item."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any

from ...errors import UnsupportedLeafError
from .args import ours
from .libraries import as_path
from .native_handlers import NativeHandler, files_item
from .registry import ItemHandlers, LegacyArgs
from .step_items import IMPLIED_HANDLERS, METRICS_ITEM, OWN_METADATA, StepItems


def run_sync(work: Coroutine[Any, Any, Any]) -> Any:
    """Runs a coroutine to its end, also where this thread runs an event loop."""
    import asyncio  # takes longer to import than the rest of the facade

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    result: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            result.append(asyncio.run(work))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="stepwell-compat")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return result[0]


def is_native(handler: Any) -> bool:
    """Whether a handler's items need no files: one of ours, with nothing of it overridden that
    works on files."""
    return isinstance(handler, NativeHandler) and all(
        getattr(type(handler), name) is getattr(_native_class(type(handler)), name)
        for name in ("save", "async_save", "restore"))


def _native_class(cls: type[Any]) -> type[Any]:
    """The handler of this package that a class is or derives from."""
    return next(each for each in cls.__mro__ if each.__module__ == NativeHandler.__module__
                or each.__module__.startswith(NativeHandler.__module__.rpartition(".")[0] + "."))


def call(function: Callable[..., Any], directory: Any, args: Any) -> Any:
    if isinstance(args, LegacyArgs):
        return function(directory, *args.args, **args.kwargs)
    return function(directory, args=args)


def save_files(handler: Any, folder: str, args: Any) -> None:
    """Lets a handler write its files, all of them, into a directory."""
    directory = as_path(folder)
    if hasattr(handler, "async_save"):
        async def start() -> list[Any]:
            return list(await call(handler.async_save, directory, args) or [])

        for future in run_sync(start()):
            future.result()
    else:
        call(handler.save, directory, args)
    if hasattr(handler, "finalize"):
        handler.finalize(directory)


class UnsupportedLeafValueError(UnsupportedLeafError, ValueError):
    """Leaves that cannot be saved: a ValueError, as Orbax raises it."""


@contextlib.contextmanager
def orbax_errors() -> Iterator[None]:
    """Raises the errors of a save as the classes that Orbax raises."""
    try:
        yield
    except UnsupportedLeafError as error:
        raise UnsupportedLeafValueError(str(error), error.paths) from None


class Saving:
    """The items of a save and what the store keeps beside them. A context manager: the files of
    handlers exist in its block."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self.items: dict[str, Any] = {}
        self._own: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> Saving:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def add(self, name: str, handler: Any, args: Any) -> None:
        args = ours(args)
        if is_native(handler):
            self.items[name] = handler.item_of(args, self._folder)
        else:
            path = self._folder()
            save_files(handler, path, args)
            self.items[name] = files_item(path)
        typestr = _typestr(handler)
        if typestr not in IMPLIED_HANDLERS:
            self._own.setdefault("handlers", {})[name] = typestr
        custom = getattr(args, "custom_metadata", None)
        if custom is not None:
            self._own.setdefault("custom_metadata", {})[name] = custom

    def _folder(self) -> str:
        return self._stack.enter_context(tempfile.TemporaryDirectory(prefix="stepwell-item-"))

    def metadata(self, custom_metadata: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """The step's metadata: the user's, and what this facade keeps there."""
        own = {OWN_METADATA: self._own} if self._own else {}
        return {**(custom_metadata or {}), **own} or None


def _typestr(handler: Any) -> str:
    if hasattr(handler, "typestr"):
        found: str = handler.typestr()
        return found
    return f"{type(handler).__module__}.{type(handler).__qualname__}"


def restore_item(step: StepItems, name: str, handler: Any, args: Any) -> Any:
    """What `args` ask for of an item of a step."""
    args = ours(args)
    if is_native(handler):
        return handler.restored(step, name, args)
    with step.files(name) as directory:
        return call(handler.restore, directory, args)


def restore_items(step: StepItems, handlers: ItemHandlers, named: Mapping[str, Any]
                  ) -> dict[str, Any]:
    """Items by name. Args of None: those that the item's handler has by default. KeyError."""
    restored: dict[str, Any] = {}
    for name, args in sorted(named.items()):
        if name not in step:
            raise KeyError(f'Item "{name}" was not found in the checkpoint. Available items: '
                           f"{step.names}")
        handler = handlers.get(name, args)
        if args is None:
            args = handlers.default_restore_args(name, step.handler(name))
        restored[name] = restore_item(step, name, handler, args)
    return restored


def item_metadata(step: StepItems, name: str, handler: Any) -> Any:
    """What is known of an item without reading its data; None if the handler does not say."""
    if name == METRICS_ITEM or not hasattr(handler, "metadata"):
        return None
    if is_native(handler):
        return handler.metadata_of(step, name)
    with step.files(name) as directory, contextlib.suppress(FileNotFoundError, NotImplementedError):
        return handler.metadata(directory)
    return None

