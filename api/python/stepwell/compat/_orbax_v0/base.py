# SPDX-License-Identifier: Apache-2.0
"""Handlers and their arguments: the base classes, and which arguments belong to which handler."""

from __future__ import annotations

import abc
import dataclasses
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar


@dataclasses.dataclass
class CheckpointArgs:
    """Base of the arguments of a handler. Make a dataclass of it for saving and one for restoring,
    and register both: `@register_with_handler(MyHandler, for_save=True)`."""


class CheckpointHandler(abc.ABC):
    """Saves objects of one kind into a directory, and restores them.

    A handler of your own writes files into `directory`, which is temporary; the files become an
    item of the step, and are written into a temporary directory again for `restore`.
    """

    @abc.abstractmethod
    def save(self, directory: Any, *args: Any, **kwargs: Any) -> Any:
        """Saves into `directory`, which exists."""

    @abc.abstractmethod
    def restore(self, directory: Any, *args: Any, **kwargs: Any) -> Any:
        """Restores what `save` wrote there."""

    def metadata(self, directory: Any) -> Any:
        """What is in `directory`, in short. None: this handler does not say."""
        return None

    def finalize(self, directory: Any) -> None:
        """Called once after `save`, before the checkpoint is committed."""

    def close(self) -> None:
        """Called when the manager or checkpointer is closed."""

    @classmethod
    def typestr(cls) -> str:
        return f"{cls.__module__}.{cls.__qualname__}"


class AsyncCheckpointHandler(CheckpointHandler):
    """A handler whose save is a coroutine that gives futures, or None."""

    @abc.abstractmethod
    async def async_save(self, directory: Any, *args: Any, **kwargs: Any) -> Any:
        """Starts the save; the futures that it returns have `result()`."""


ArgsClass = type[Any]
Decorated = TypeVar("Decorated", bound=type[Any])

_save_handlers: dict[ArgsClass, type[Any]] = {}
_restore_handlers: dict[ArgsClass, type[Any]] = {}
handlers_by_typestr: dict[str, type[Any]] = {}


def register_with_handler(handler_cls: type[Any], for_save: bool = False, for_restore: bool = False
                          ) -> Callable[[Decorated], Decorated]:
    """Says which handler a class of arguments is for."""
    if not for_save and not for_restore:
        raise ValueError("`for_save` and `for_restore` cannot both be False.")

    def register(cls: Decorated) -> Decorated:
        if not issubclass(cls, CheckpointArgs):
            raise TypeError(f"{cls} must subclass `CheckpointArgs` in order to be registered.")
        if for_save:
            _save_handlers[cls] = handler_cls
        if for_restore:
            _restore_handlers[cls] = handler_cls
        handlers_by_typestr[handler_cls.typestr()] = handler_cls
        return cls

    return register


def get_registered_handler_cls(arg: Any) -> type[Any]:
    """The handler that a class of arguments, or an object of it, is registered with."""
    cls = arg if inspect.isclass(arg) else type(arg)
    if not issubclass(cls, CheckpointArgs):
        found: type[Any] | None = _orbax_registry("get_registered_handler_cls", cls)
        if found is None:
            raise TypeError(f"{cls} must be a subclass of `CheckpointArgs`.")
        return found
    for registry in (_save_handlers, _restore_handlers):
        if cls in registry:
            return registry[cls]
    raise ValueError(f"Unable to find registered `CheckpointHandler` for {cls}. Use "
                     "`register_with_handler`.")


def get_registered_args_cls(handler: Any) -> tuple[ArgsClass, ArgsClass]:
    """The classes of arguments for saving and for restoring with a handler."""
    cls = handler if inspect.isclass(handler) else type(handler)
    found: list[ArgsClass] = []
    for registry, use in ((_save_handlers, "save"), (_restore_handlers, "restore")):
        args = next((args for args, known in registry.items() if known is cls), None)
        if args is None:
            both = _orbax_registry("get_registered_args_cls", cls)
            if both is not None:
                return both[0], both[1]
            raise ValueError(
                f"Unable to find registered `CheckpointArgs` for {use} for {cls}.")
        found.append(args)
    return found[0], found[1]


def has_registered_args(handler: Any) -> bool:
    try:
        get_registered_args_cls(handler)
    except ValueError:
        return False
    return True


def _orbax_registry(function: str, cls: type[Any]) -> Any:
    """What Orbax's own registry knows of handlers that other libraries registered there, Grain's
    for one; None where Orbax is not imported or knows nothing."""
    registry = sys.modules.get("orbax.checkpoint.checkpoint_args")
    if registry is None:
        return None
    try:
        return getattr(registry, function)(cls)
    except (TypeError, ValueError):
        return None


def is_args(value: object) -> bool:
    """Whether a value is an object of arguments, ours or Orbax's own."""
    if isinstance(value, CheckpointArgs):
        return True
    registry = sys.modules.get("orbax.checkpoint.checkpoint_args")
    return registry is not None and isinstance(value, registry.CheckpointArgs)


def is_handler(value: object) -> bool:
    """Whether a value is a handler, ours or Orbax's own."""
    return (isinstance(value, CheckpointHandler)
            or callable(getattr(value, "save", None)) and callable(getattr(value, "restore", None))
            and not isinstance(value, Mapping) and not hasattr(value, "handler"))
