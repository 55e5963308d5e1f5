# SPDX-License-Identifier: Apache-2.0
"""Handlers of checkpointables: the protocols, and those that are registered from the start."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Awaitable
from typing import Any, Protocol, TypeVar, runtime_checkable

from ..._pytree.tree import walk_items
from . import registration
from .errors import NoEntryError
from .registration import (CheckpointableHandlerRegistry, global_registry, local_registry,
                           register_handler)

__all__ = ["AbstractCheckpointable", "Checkpointable", "CheckpointableHandler",
           "CheckpointableHandlerRegistry", "JsonHandler", "NoEntryError", "ProtoHandler",
           "PyTreeHandler", "StatefulCheckpointable", "global_registry", "local_registry",
           "register_handler"]

Checkpointable = Any
AbstractCheckpointable = Any
T = TypeVar("T")
A = TypeVar("A")
_V1 = "orbax.checkpoint.experimental.v1._src.handlers."


class PathAwaitingCreation(Protocol):
    """A directory that exists once `await_creation()` has returned."""

    @property
    def path(self) -> Any: ...

    def __truediv__(self, other: Any) -> PathAwaitingCreation: ...

    async def await_creation(self) -> Any: ...


@runtime_checkable
class StatefulCheckpointable(Protocol):
    """An object that saves itself to a directory and loads itself from one."""

    async def save(self, directory: PathAwaitingCreation) -> Awaitable[None]: ...

    async def load(self, directory: Any) -> Awaitable[None]: ...


class CheckpointableHandler(Protocol[T, A]):
    """Saves and loads objects of a type. `save` and `load` return an awaitable, which does the
    work that need not block."""

    async def save(self, directory: PathAwaitingCreation, checkpointable: T) -> Awaitable[None]:
        ...

    async def load(self, directory: Any, abstract_checkpointable: A | None = None
                   ) -> Awaitable[T]: ...

    async def metadata(self, directory: Any) -> A: ...

    def is_handleable(self, checkpointable: Any) -> bool: ...

    def is_abstract_handleable(self, abstract_checkpointable: Any) -> bool | None: ...


class PyTreeHandler:
    """Trees. The store saves and loads them, so this says only what is one."""

    TYPESTR = _V1 + "pytree_handler.PyTreeHandler"

    def is_handleable(self, checkpointable: Any) -> bool:
        try:
            walk_items({"checkpointable": checkpointable})
        except Exception:
            return False
        return True

    def is_abstract_handleable(self, abstract_checkpointable: Any) -> bool | None:
        return not is_stateful(abstract_checkpointable)


class JsonHandler:
    """What JSON can hold, in the file `filename`."""

    TYPESTR = _V1 + "json_handler.JsonHandler"

    def __init__(self, filename: str | None = None) -> None:
        self.filename = filename or "data.json"

    async def save(self, directory: PathAwaitingCreation, checkpointable: Any) -> Awaitable[None]:
        async def write() -> None:
            folder = await directory.await_creation()
            (folder / self.filename).write_text(json.dumps(checkpointable))

        return write()

    async def load(self, directory: Any, abstract_checkpointable: Any = None) -> Awaitable[Any]:
        async def read() -> Any:
            for name in (self.filename, "data.json", "metadata"):
                if (directory / name).exists():
                    return json.loads((directory / name).read_text())
            raise FileNotFoundError(f"{directory} has no JSON file {self.filename!r}")

        return read()

    async def metadata(self, directory: Any) -> None:
        return None

    def is_handleable(self, checkpointable: Any) -> bool:
        try:
            json.dumps(checkpointable)
        except Exception:
            return False
        return True

    def is_abstract_handleable(self, abstract_checkpointable: Any) -> bool | None:
        return None


class ProtoHandler:
    """Protocol buffers, as text."""

    TYPESTR = _V1 + "proto_handler.ProtoHandler"

    def __init__(self, filename: str = "proto.pbtxt") -> None:
        self._filename = filename

    async def save(self, directory: PathAwaitingCreation, checkpointable: Any) -> Awaitable[None]:
        from google.protobuf import text_format

        async def write() -> None:
            folder = await directory.await_creation()
            (folder / self._filename).write_text(text_format.MessageToString(checkpointable))

        return write()

    async def load(self, directory: Any, abstract_checkpointable: Any = None) -> Awaitable[Any]:
        from google.protobuf import text_format

        if abstract_checkpointable is None:
            raise ValueError("abstract_checkpointable must be provided to restore as a Proto.")

        async def read() -> Any:
            text = (directory / self._filename).read_text()
            return text_format.Parse(text, abstract_checkpointable())

        return read()

    async def metadata(self, directory: Any) -> Any:
        raise NotImplementedError

    def is_handleable(self, checkpointable: Any) -> bool:
        message = sys.modules.get("google.protobuf.message")
        return message is not None and isinstance(checkpointable, message.Message)

    def is_abstract_handleable(self, abstract_checkpointable: Any) -> bool | None:
        message = sys.modules.get("google.protobuf.message")
        return (message is not None and inspect.isclass(abstract_checkpointable)
                and issubclass(abstract_checkpointable, message.Message))


def is_stateful(value: Any) -> bool:
    return not isinstance(value, type) and isinstance(value, StatefulCheckpointable)


class StatefulCheckpointableHandler:
    """Objects that save themselves. To load one, pass the object."""

    TYPESTR = _V1 + "stateful_checkpointable_handler.StatefulCheckpointableHandler"

    async def save(self, directory: PathAwaitingCreation, checkpointable: Any) -> Awaitable[None]:
        begun: Awaitable[None] = await checkpointable.save(directory)
        return begun

    async def load(self, directory: Any, abstract_checkpointable: Any = None) -> Awaitable[Any]:
        if abstract_checkpointable is None:
            raise ValueError("To restore a `StatefulCheckpointable`, you must pass an instance of "
                             "the object.")
        begun = await abstract_checkpointable.load(directory)

        async def finish() -> Any:
            await begun
            return abstract_checkpointable

        return finish()

    async def metadata(self, directory: Any) -> Any:
        raise NotImplementedError("a StatefulCheckpointable has no metadata")

    def is_handleable(self, checkpointable: Any) -> bool:
        return is_stateful(checkpointable)

    def is_abstract_handleable(self, abstract_checkpointable: Any) -> bool | None:
        return is_stateful(abstract_checkpointable)


def _older(name: str, *classes: str) -> list[str]:
    return [f"orbax.checkpoint.{base}_src.handlers.{name}.{each}"
            for base in ("", "v0.") for each in classes]


for _handler, _name, _secondary in (
        (ProtoHandler, None, _older("proto_checkpoint_handler", "ProtoCheckpointHandler")),
        (JsonHandler, None, _older("json_checkpoint_handler", "JsonCheckpointHandler")),
        (StatefulCheckpointableHandler, None, None),
        (PyTreeHandler, None,
         _older("pytree_checkpoint_handler", "PyTreeCheckpointHandler")
         + _older("standard_checkpoint_handler", "StandardCheckpointHandler")),
        (PyTreeHandler, "state", None)):
    registration.global_registry().add(_handler, checkpointable_name=_name,
                                       secondary_typestrs=_secondary)
