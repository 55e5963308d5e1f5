# SPDX-License-Identifier: Apache-2.0
"""Which handler saves and restores which item."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, Protocol

from .base import (get_registered_args_cls, get_registered_handler_cls, handlers_by_typestr,
                   has_registered_args)


class AlreadyExistsError(ValueError):
    """The registry has such an entry already."""


class NoEntryError(KeyError):
    """The registry has no such entry."""


class CheckpointHandlerRegistry(Protocol):
    """Handlers by item name and class of arguments."""

    def add(self, item: str | None, args: Any, handler: Any = None) -> None: ...

    def get(self, item: str | None, args: Any) -> Any: ...

    def has(self, item: str | None, args: Any) -> bool: ...

    def get_all_entries(self) -> Any: ...


def _class(args: Any) -> type[Any]:
    return args if isinstance(args, type) else type(args)


class DefaultCheckpointHandlerRegistry(CheckpointHandlerRegistry):
    """Handlers by item name and class of arguments. The name None is for items that have no entry
    of their own."""

    def __init__(self, other_registry: Any = None) -> None:
        self._entries: dict[tuple[str | None, type[Any]], Any] = {}
        if other_registry:
            for (item, args), handler in other_registry.get_all_entries().items():
                self.add(item, args, handler)

    def add(self, item: str | None, args: Any, handler: Any = None) -> None:
        """Adds an entry. handler: one, its class, or None for the one that `args` are registered
        with. Raises AlreadyExistsError, and ValueError without a handler."""
        cls = _class(args)
        if self.has(item, cls):
            raise AlreadyExistsError(f"Entry for item={item} and args_type={cls} already exists in "
                                     "the registry.")
        if handler is None:
            try:
                handler = get_registered_handler_cls(cls)
            except ValueError as error:
                raise ValueError(f"item={item}, args_type={cls}: no handler is given, and none is "
                                 "registered for these arguments") from error
        if isinstance(handler, type):
            try:
                handler = handler()
            except TypeError as error:
                raise ValueError(f"item={item}, args_type={cls}: {handler} cannot be made without "
                                 "arguments; pass one") from error
        self._entries[(item, cls)] = handler

    def get(self, item: str | None, args: Any) -> Any:
        if not self.has(item, args):
            raise NoEntryError(
                f"No entry for item={item} and args_ty={_class(args)} in the registry.")
        return self._entries[(item, _class(args))]

    def has(self, item: str | None, args: Any) -> bool:
        return (item, _class(args)) in self._entries

    def get_all_entries(self) -> dict[tuple[str | None, type[Any]], Any]:
        return self._entries

    def __repr__(self) -> str:
        return f"DefaultCheckpointHandlerRegistry({self._entries})"


def create_default_handler_registry(**items_to_handlers: Any) -> DefaultCheckpointHandlerRegistry:
    """A registry of handlers by item name."""
    registry = DefaultCheckpointHandlerRegistry()
    for item, handler in items_to_handlers.items():
        for args in dict.fromkeys(get_registered_args_cls(handler)):
            registry.add(item, args, handler)
    return registry


class LegacyArgs:
    """Arguments of a handler that has no class of arguments: as they were called."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args = args
        self.kwargs = kwargs


class ItemHandlers:
    """The handler of each item of a manager or composite handler.

    An item keeps the handler that the first save or restore gave it; arguments of another handler
    are a ValueError from then on, as in Orbax.
    """

    def __init__(self, item_names: tuple[str, ...] = (), handler_registry: Any = None,
                 items_and_handlers: Mapping[str, Any] | None = None) -> None:
        self.registry = DefaultCheckpointHandlerRegistry(handler_registry)
        self._pending: set[str] | None = None  # items whose handler the first use decides
        self._deferred = {item for item, _ in self.registry.get_all_entries() if item is not None}
        if not item_names and not items_and_handlers:
            return
        self._pending = {name for name in item_names if name not in (items_and_handlers or {})}
        for name, handler in (items_and_handlers or {}).items():
            if handler is None:
                self._pending.add(name)
            elif has_registered_args(handler):
                self._add(name, handler)
            else:
                self.registry.add(name, LegacyArgs, handler)

    def _add(self, name: str, handler: Any) -> None:
        for args in dict.fromkeys(get_registered_args_cls(handler)):
            self.registry.add(name, args, handler)

    def known(self) -> dict[str, Any]:
        """Items with their handlers; None for items that have a name only."""
        found: dict[str, Any] = {item: handler for (item, _), handler
                                 in self.registry.get_all_entries().items() if item is not None}
        return {**dict.fromkeys(self._pending or ()), **found}

    def args_of(self, name: str) -> tuple[type[Any], type[Any]]:
        """The classes of arguments of an item, for `items=` of the legacy interface."""
        handler = self.known().get(name)
        if handler is None:
            raise ValueError(f'Unknown key "{name}" in CompositeCheckpointHandler.')
        if self.registry.has(name, LegacyArgs):
            return LegacyArgs, LegacyArgs
        return get_registered_args_cls(handler)

    def get(self, name: str, args: Any) -> Any:
        """The handler of an item for these arguments; None for the handler that it has."""
        if args is None:
            handler = self.known().get(name)
            if handler is None:
                raise ValueError(f'Provided `None` for `CheckpointArgs`, and the handler of item '
                                 f'"{name}" is not known yet: pass arguments that say which it is')
            return handler
        if self.registry.has(name, args):
            return self.registry.get(name, args)
        if self.registry.has(None, args):
            handler = self.registry.get(None, args)
            self.registry.add(name, args, handler)
            return handler
        handler = get_registered_handler_cls(args)()
        if self._pending is not None:
            if name in self._pending:
                self._pending.remove(name)
                self._add(name, handler)
                return handler
        elif name not in self._deferred:
            self._deferred.add(name)
            self._add(name, handler)
            return handler
        raise ValueError(f'Item "{name}" and args "{type(args).__name__}" does not match with any '
                         f"registered handler! Registered: {self.registry.get_all_entries()}")

    def known_or_default(self, name: str, typestr: str | None) -> Any:
        """The handler of an item, or the one that saved it; None if neither is known."""
        handler = self.known().get(name)
        if handler is None:
            cls = handlers_by_typestr.get(typestr or "")
            with contextlib.suppress(TypeError):
                handler = cls() if cls is not None else None
        return handler

    def default_restore_args(self, name: str, typestr: str | None) -> Any:
        """Arguments that restore an item of which nothing was said."""
        known = self.known()
        if name in known:
            if known[name] is None:
                raise ValueError(f'Item with name: "{name}" had an undetermined '
                                 "`CheckpointHandler` when restoring. Pass arguments that say "
                                 "which it is")
            handler = known[name]
            if self.registry.has(name, LegacyArgs):
                return LegacyArgs()
        else:
            handler = handlers_by_typestr.get(typestr or "")
            if handler is None:
                raise ValueError(
                    f'Item "{name}" was found in the checkpoint, but could not be restored. '
                    "Please provide a `CheckpointHandlerRegistry`, or call `restore` with an "
                    "appropriate `CheckpointArgs` subclass.")
        cls = get_registered_args_cls(handler)[1]
        try:
            return cls()
        except TypeError as error:
            raise ValueError(f'Item "{name}": {cls.__name__} cannot be made without arguments; '
                             "pass it to restore") from error

