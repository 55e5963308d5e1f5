# SPDX-License-Identifier: Apache-2.0
"""Checkpointables to items of a step, and back, through the handlers of the Context."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from ... import Files, Json
from ... import errors as native
from ..._pytree.chunks import ChunkShape
from ..._pytree.tree import walk_items
from ..._runtime.durable import scratch
from .. import _single
from .._orbax_common import run
from .._resolve import Opened
from .._stores import OWN_METADATA
from . import trees
from .base import (NoEntryError, get_context, handlers, resolve_handler_for_load,
                   resolve_handler_for_save, typestr, v1)
from .places import (RESERVED, DamagedCheckpointError, InvalidLayoutError, check_not_being_deleted,
                     folder_of, names_of, source_of)


class LoadError(NoEntryError, ValueError):  # type: ignore[misc]  # Orbax has no types
    """A checkpointable could not be loaded; `__cause__` says why. Orbax's NoEntryError."""

    def __str__(self) -> str:
        return str(self.args[0])


class Folder:
    """A directory that exists already, as handlers expect one: a PathAwaitingCreation."""

    def __init__(self, path: Any) -> None:
        self.path = path

    def __truediv__(self, other: Any) -> Folder:
        return Folder(self.path / other)

    async def await_creation(self) -> Any:
        return self.path


def _active(context: Any) -> Any:
    """Makes the Context the active one, for handlers. Orbax's cannot be entered twice."""
    return contextlib.nullcontext() if get_context() is context else v1.Context(context)


class Items(NamedTuple):
    """Items to be saved; `handlers` names the handler of each as Orbax does."""

    trees: dict[str, Any]
    chunks: dict[str, ChunkShape]
    handlers: dict[str, str]

    def metadata(self, custom: Any) -> dict[str, Any] | None:
        """A step's metadata: the custom metadata, and the handlers of items of files, which a
        view does not name."""
        own = {name: self.handlers[name] for name, item in self.trees.items()
               if isinstance(item, Files)}
        return {**(custom or {}), **({OWN_METADATA: {"handlers": own}} if own else {})} or None

    def form(self, context: Any) -> _single.Form:
        """Returns the form in which a checkpoint of its own is written."""
        saving = context.array.saving
        return _single.Form(
            zarr=3 if saving.use_zarr3 else 2, codec="auto" if saving.use_compression else "raw",
            file_mode=context.file.path_permission_mode,
            staging_bytes=context.memory.write_concurrent_bytes, handlers=self.handlers)


def check_names(checkpointables: Any, may_be_empty: bool = False) -> None:
    """ValueError for what `save_checkpointables` and `load_checkpointables` do not take."""
    if not isinstance(checkpointables, dict) or not (checkpointables or may_be_empty):
        raise ValueError("Checkpointables must be a valid dict of checkpointable names to what is "
                         f"saved or loaded, but got {type(checkpointables)}")
    if "" in checkpointables:
        raise ValueError("Empty string is not supported as a checkpointable name.")
    if reserved := checkpointables.keys() & RESERVED:
        raise ValueError(f"Provided reserved checkpointable keys: {reserved}.")


def _handler_to_save(registry: Any, name: str, value: Any) -> Any:
    """Finds the handler as Orbax does. An item without one that the store can hold is a tree."""
    if (value is not None and registry.has(name) and registry.get(name) is handlers.PyTreeHandler
            and not isinstance(value, handlers.StatefulCheckpointable)):
        return handlers.PyTreeHandler()  # without a look at each leaf by each handler
    try:
        return resolve_handler_for_save(registry, value, name=name)
    except NoEntryError:
        try:
            walk_items({name: value})
        except Exception:
            pass
        else:
            return handlers.PyTreeHandler()
        raise


def to_items(checkpointables: Mapping[str, Any], context: Any) -> Items:
    """Runs the handlers of items that are not trees."""
    made = Items({}, {}, {})
    for name, value in checkpointables.items():
        handler = _handler_to_save(context.checkpointables.registry, name, value)
        made.handlers[name] = typestr(type(handler))
        if type(handler) is handlers.PyTreeHandler:
            made.trees[name], chunks = trees.apply_storage(value, name, context.array.saving)
            made.chunks.update(chunks)
        elif type(handler) is handlers.JsonHandler:
            made.trees[name] = Json(value)
        else:
            with _active(context), scratch("stepwell-files-") as folder:
                run(_save(handler, Folder(context.file.path_class(folder)), value))
                made.trees[name] = Files(folder)
    return made


async def _save(handler: Any, folder: Folder, value: Any) -> None:
    await (await handler.save(folder, value))


async def _load(handler: Any, folder: Any, abstract: Any) -> Any:
    return await (await handler.load(folder, abstract))


# ---- reading ------------------------------------------------------------------------------------


def _handler_to_load(place: Opened, name: str, abstract: Any, context: Any) -> Any:
    """Finds the handler as Orbax does. An item without one is a tree if it is stored as one."""
    registry = context.checkpointables.registry
    if (abstract is None and registry.has(name)
            and registry.get(name) is handlers.PyTreeHandler):
        return handlers.PyTreeHandler()
    saved_by = place.handlers.get(name)
    try:
        return resolve_handler_for_load(registry, abstract, name=name, handler_typestr=saved_by)
    except NoEntryError:
        if place.is_tree(name):
            return handlers.PyTreeHandler()
        if saved_by is not None:
            raise NoEntryError(f"{name!r} of {place.path} was saved by {saved_by}, which is not in "
                               "the registry") from None
        return handlers.JsonHandler()


def load_item(place: Opened, name: str, abstract: Any, context: Any) -> Any:
    handler = _handler_to_load(place, name, abstract, context)
    if type(handler) is handlers.JsonHandler and place.kind != "orbax":
        store, step, item = place.open(name)
        return store.load(step, items=[item])[item]
    if type(handler) is not handlers.PyTreeHandler:
        with _active(context), folder_of(place, name) as folder:
            return run(_load(handler, context.file.path_class(folder), abstract))
    if not place.is_tree(name):
        raise InvalidLayoutError(f"{name!r} of {place.path} is no tree")
    if abstract is None:
        return trees.load_plain(*source_of(place, name))
    source_of(place, name)
    return trees.load_like(*place.open(name), abstract,
                           partial=context.pytree.loading.partial_load,
                           pads=context.array.loading.enable_padding_and_truncation)


def load_items(place: Opened, wanted: dict[str, Any] | None, context: Any) -> dict[str, Any]:
    """The checkpointables in `wanted`, or all."""
    if place.flat:
        raise InvalidLayoutError(f"{place.path} has no named checkpointables: use `load`")
    there = names_of(place)
    if place.missing and not wanted:
        raise LoadError(f"{place.path} is a copy that lacks {place.missing}, which Orbax cannot "
                        f"hold or which was removed; name what to load of {there}")
    wanted = wanted or dict.fromkeys(there)
    check_not_being_deleted(place, wanted)
    lacking = [name for name in wanted if name not in there]
    if lacking:
        raise KeyError(f"Requested checkpointables {lacking} were not found in {place.path}. "
                       f"Available checkpointables: {there}")
    loaded = {}
    for name, abstract in wanted.items():
        try:
            loaded[name] = load_item(place, name, abstract, context)
        except (native.Error, ValueError, KeyError, FileNotFoundError,
                NotImplementedError) as error:
            raise LoadError(f"Failed to load checkpointable {name!r} of {place.path}: {error}"
                            ) from error
    return loaded


def metadata_of(place: Opened, name: str, context: Any) -> Any:
    """Metadata of one checkpointable; None where its handler has none, or where a checkpoint of
    Orbax is damaged."""
    try:
        handler = _handler_to_load(place, name, None, context)
        if type(handler) is handlers.PyTreeHandler and place.is_tree(name):
            return trees.metadata_of(*source_of(place, name))
    except NoEntryError:
        return None
    except DamagedCheckpointError:
        if place.flat:
            raise
        return None
    with contextlib.suppress(Exception), _active(context), folder_of(place, name) as folder:
        return run(handler.metadata(context.file.path_class(folder)))
    return None
