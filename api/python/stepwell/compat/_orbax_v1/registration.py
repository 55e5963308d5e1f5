# SPDX-License-Identifier: Apache-2.0
"""Registries of handlers, and which handler saves or loads a checkpointable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from .errors import AlreadyExistsError, NoEntryError

Entry = tuple[type, str | None]
H = TypeVar("H", bound=type)


class CheckpointableHandlerRegistry(Protocol):

    def add(self, handler_type: type, *, checkpointable_name: str | None = None,
            secondary_typestrs: Sequence[str] | None = None) -> CheckpointableHandlerRegistry: ...

    def get(self, checkpointable_name: str) -> type: ...

    def has(self, checkpointable_name: str) -> bool: ...

    def get_all_entries(self) -> Sequence[Entry]: ...

    def get_secondary_typestrs(self, handler_type: type) -> Sequence[str]: ...


class DefaultCheckpointableHandlerRegistry:
    """Handler types in the order in which they were added, each for a name or for all."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._secondary: dict[type, Sequence[str]] = {}

    def add(self, handler_type: type, *, checkpointable_name: str | None = None,
            secondary_typestrs: Sequence[str] | None = None) -> CheckpointableHandlerRegistry:
        if not isinstance(handler_type, type):
            raise ValueError(f"The `handler_type` must be a type, but got {handler_type}.")
        if checkpointable_name:
            if self.has(checkpointable_name):
                raise AlreadyExistsError(f"Entry for checkpointable_name={checkpointable_name} "
                                         "already exists in the registry.")
        elif any(handler is handler_type for handler, _ in self._entries):
            raise AlreadyExistsError(
                f"Handler type {handler_type} already exists in the registry.")
        self._entries.append((handler_type, checkpointable_name))
        if secondary_typestrs is not None:
            self._secondary[handler_type] = secondary_typestrs
        return self

    def get(self, checkpointable_name: str) -> type:
        for handler, name in self._entries:
            if name == checkpointable_name:
                return handler
        raise NoEntryError(
            f"No entry for checkpointable_name={checkpointable_name} in the registry.")

    def has(self, checkpointable_name: str) -> bool:
        return any(name == checkpointable_name for _, name in self._entries)

    def get_all_entries(self) -> Sequence[Entry]:
        return self._entries

    def get_secondary_typestrs(self, handler_type: type) -> Sequence[str]:
        return self._secondary.get(handler_type, [])

    def __repr__(self) -> str:
        return f"CheckpointableHandlerRegistry({self._entries})"


class ReadOnlyCheckpointableHandlerRegistry:
    """A registry that cannot be added to: that of a Context by default."""

    def __init__(self, registry: CheckpointableHandlerRegistry) -> None:
        self._registry = registry
        self.get, self.has = registry.get, registry.has
        self.get_all_entries = registry.get_all_entries
        self.get_secondary_typestrs = registry.get_secondary_typestrs

    def add(self, handler_type: type, *, checkpointable_name: str | None = None,
            secondary_typestrs: Sequence[str] | None = None) -> CheckpointableHandlerRegistry:
        raise NotImplementedError("Adding not implemented for read-only registry.")

    def __deepcopy__(self, memo: dict[int, Any]) -> ReadOnlyCheckpointableHandlerRegistry:
        return self

    def __repr__(self) -> str:
        return f"ReadOnly{self._registry!r}"


_GLOBAL = DefaultCheckpointableHandlerRegistry()


def global_registry() -> CheckpointableHandlerRegistry:
    """The registry that `register_handler` adds to."""
    return _GLOBAL


def local_registry(other_registry: CheckpointableHandlerRegistry | None = None, *,
                   include_global_registry: bool = True) -> CheckpointableHandlerRegistry:
    """A new registry with the entries of the global one and of `other_registry`."""
    registry = DefaultCheckpointableHandlerRegistry()
    for source in [_GLOBAL] * include_global_registry + [other_registry] * bool(other_registry):
        assert source is not None
        for handler, name in source.get_all_entries():
            registry.add(handler, checkpointable_name=name,
                         secondary_typestrs=source.get_secondary_typestrs(handler))
    return registry


def register_handler(cls: H, *, checkpointable_name: str | None = None,
                     secondary_typestrs: Sequence[str] | None = None) -> H:
    """Adds a handler to the global registry; a decorator, too."""
    _GLOBAL.add(cls, checkpointable_name=checkpointable_name,
                secondary_typestrs=secondary_typestrs)
    return cls


def typestr(handler: type) -> str:
    return str(getattr(handler, "TYPESTR", f"{handler.__module__}.{handler.__qualname__}"))


def _construct(name: str | None, handler: type) -> Any:
    try:
        return handler()
    except TypeError as error:
        raise ValueError(f"The handler {handler} of checkpointable {name!r} cannot be constructed "
                         "without arguments.") from error


def _able(registry: CheckpointableHandlerRegistry, able: Callable[[Any], object]) -> Any | None:
    """The last handler for all names that is able."""
    found = None
    for kind, name in registry.get_all_entries():
        if name is None:
            handler = _construct(name, kind)
            if able(handler):
                found = handler
    return found


def handler_to_save(registry: CheckpointableHandlerRegistry, name: str, checkpointable: Any,
                    is_stateful: Callable[[Any], bool]) -> Any:
    if checkpointable is None:
        raise ValueError("checkpointable must not be None for saving.")
    if registry.has(name) and not is_stateful(checkpointable):
        return _construct(name, registry.get(name))
    found = _able(registry, lambda handler: handler.is_handleable(checkpointable))
    if found is None and registry.has(name):
        return _construct(name, registry.get(name))
    if found is None:
        raise NoEntryError(
            f"Could not identify a valid handler for the checkpointable: {name!r} and "
            f"checkpointable type={type(checkpointable)}. Register a `CheckpointableHandler` for "
            "it using `register_handler`, or in a local registry (`CheckpointablesOptions`). "
            f"The available handlers are: {[kind for kind, _ in registry.get_all_entries()]}")
    return found


def handler_to_load(registry: CheckpointableHandlerRegistry, name: str, abstract: Any,
                    saved_by: str | None, is_stateful: Callable[[Any], bool]) -> Any | None:
    """The handler of a stored checkpointable; None: none is known, so it is taken for a tree."""

    def fits(handler: Any) -> bool:
        return abstract is None or bool(handler.is_abstract_handleable(abstract))

    named = _construct(name, registry.get(name)) if registry.has(name) else None
    saver = None
    for kind, own in reversed(registry.get_all_entries()):
        if saved_by and (typestr(kind) == saved_by
                         or saved_by in registry.get_secondary_typestrs(kind)):
            saver = _construct(own, kind)
            break
    if saver is not None and abstract is not None and is_stateful(abstract) and fits(saver):
        return saver
    for handler in (named, saver):
        if handler is not None and fits(handler):
            return handler
    if abstract is not None:
        found = _able(registry, lambda handler: handler.is_abstract_handleable(abstract))
        if found is not None:
            return found
    return named
