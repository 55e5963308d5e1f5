# SPDX-License-Identifier: Apache-2.0
"""Checkpointables to items of a step, and back, through the handlers of the Context."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Coroutine, Mapping
from typing import Any, NamedTuple, TypeVar

from ... import Files, Json
from ... import errors as native
from ..._pytree.chunks import ChunkShape
from .._work import Work
from . import trees
from .context import Context
from .errors import InvalidLayoutError, NoEntryError, UnsupportedLeafError
from .handlers import JsonHandler, PyTreeHandler, is_stateful
from .metadata import tree_metadata
from .places import OWN_METADATA, Place, StorePlace
from .registration import handler_to_load, handler_to_save, typestr

T = TypeVar("T")

STATE, AUTO = "state", "AUTO"
RESERVED = frozenset({"metrics", AUTO, "_CHECKPOINT_DELETION"})


class Folder:
    """A directory that exists already, as handlers expect one: a PathAwaitingCreation."""

    def __init__(self, path: Any) -> None:
        self.path = path

    def __truediv__(self, other: Any) -> Folder:
        return Folder(self.path / other)

    async def await_creation(self) -> Any:
        return self.path


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a handler's coroutine, also where an event loop runs on this thread."""
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    return Work(lambda: asyncio.run(coroutine)).result()


class Items(NamedTuple):
    """Items to be saved; `handlers` names the handler of each as Orbax does."""

    trees: dict[str, Any]
    chunks: dict[str, ChunkShape]
    handlers: dict[str, str]

    def metadata(self, custom: Any) -> dict[str, Any] | None:
        """The step's metadata: the custom metadata, and the handlers of items of files, which a
        view does not name."""
        own = {name: self.handlers[name] for name, item in self.trees.items()
               if isinstance(item, Files)}
        return {**(custom or {}), **({OWN_METADATA: {"handlers": own}} if own else {})} or None


def check_names(checkpointables: Any) -> None:
    """ValueError for what `save_checkpointables` does not take."""
    if not checkpointables or not isinstance(checkpointables, dict):
        raise ValueError("`checkpointables` must be a valid dict of checkpointable names to "
                         f"desired checkpointables to save, but got {type(checkpointables)}")
    if "" in checkpointables:
        raise ValueError("Empty string is not supported as a checkpointable name.")
    if reserved := checkpointables.keys() & RESERVED:
        raise ValueError(f"Provided reserved checkpointable keys: {reserved}.")


@contextlib.contextmanager
def orbax_errors() -> Any:
    """Raises exceptions of the classes that Orbax raises."""
    try:
        yield
    except native.UnsupportedLeafError as error:
        raise UnsupportedLeafError(str(error), error.paths) from None


def to_items(checkpointables: Mapping[str, Any], context: Context) -> Items:
    """Runs the handlers of items that are not trees."""
    registry = context.checkpointables.registry
    made = Items({}, {}, {})
    for name, value in checkpointables.items():
        handler = handler_to_save(registry, name, value, is_stateful)
        made.handlers[name] = typestr(type(handler))
        if isinstance(handler, PyTreeHandler):
            made.trees[name], chunks = trees.apply_storage(value, name, context.array.saving)
            made.chunks.update(chunks)
        elif _is_plain_json(handler):
            made.trees[name] = Json(value)
        else:
            with tempfile.TemporaryDirectory(prefix="stepwell-files-") as folder:
                run(_save(handler, Folder(context.file.path_class(folder)), value))
                made.trees[name] = Files(folder)
    return made


def _is_plain_json(handler: Any) -> bool:
    return type(handler) is JsonHandler and handler.filename == "data.json"


async def _save(handler: Any, folder: Folder, value: Any) -> None:
    await (await handler.save(folder, value))


async def _load(handler: Any, folder: Any, abstract: Any) -> Any:
    return await (await handler.load(folder, abstract))


# ---- reading ------------------------------------------------------------------------------------


def names_of(place: Place) -> list[str]:
    """Names of the checkpointables, `state` first."""
    names = sorted(name for name in place.names if name not in RESERVED)
    return [STATE] * (STATE in names) + [name for name in names if name != STATE]


def handler_of(place: Place, name: str, abstract: Any, context: Context) -> Any:
    """The handler that loads `name`; for a tree a PyTreeHandler. NoEntryError."""
    found = handler_to_load(context.checkpointables.registry, name, abstract,
                            place.handlers.get(name), is_stateful)
    if found is not None:
        return found
    if place.is_tree(name):
        return PyTreeHandler()
    if name in place.handlers:
        raise NoEntryError(f"{name!r} of {place.path} was saved by {place.handlers[name]}, which "
                           "is not in the registry")
    return JsonHandler()


def load_item(place: Place, name: str, abstract: Any, context: Context) -> Any:
    handler = handler_of(place, name, abstract, context)
    if isinstance(place, StorePlace) and _is_plain_json(handler):
        store, step, item = place.open(name)
        return store.load(step, items=[item])[item]
    if not isinstance(handler, PyTreeHandler):
        with place.folder(name) as folder:
            return run(_load(handler, context.file.path_class(folder), abstract))
    store, step, item = place.open(name)
    if abstract is None:
        return trees.load_plain(store, step, item)
    if "jax" not in sys.modules:
        trees.import_jax()
    loading = context.array.loading
    return trees.load_like(store, step, item, abstract,
                           partial=context.pytree.loading.partial_load,
                           pads=loading.enable_padding_and_truncation)


def item_metadata(place: Place, name: str, context: Context) -> Any:
    """Metadata of one checkpointable; None where its handler has none."""
    try:
        handler = handler_of(place, name, None, context)
    except NoEntryError:
        return None
    if isinstance(handler, PyTreeHandler):
        store, step, item = place.open(name)
        tree = store._source(step).tree
        return tree_metadata(tree, trees.item_number(tree, item))
    try:
        with place.folder(name) as folder:
            return run(handler.metadata(context.file.path_class(folder)))
    except Exception:
        return None


def tree_name(place: Place, name: str | None) -> str:
    """The checkpointable that a `checkpointable_name` means. InvalidLayoutError."""
    if name == "":
        raise ValueError("Empty string is not supported as a checkpointable name in `load`.")
    if name in RESERVED and name != AUTO:
        raise ValueError(f"Provided reserved checkpointable key: {name}.")
    if place.flat is not None:
        if name is None or name == AUTO:
            return place.flat
        raise InvalidLayoutError(f"{place.path} has no named checkpointables, so there is no "
                                 f"{name!r}; omit checkpointable_name")
    if name is None:
        raise InvalidLayoutError(f"{place.path} has named checkpointables: {names_of(place)}; name "
                                 "one of them, or omit checkpointable_name")
    found = [each for each in names_of(place) if place.is_tree(each)]
    if name == AUTO:
        if found:
            return found[0]
        raise InvalidLayoutError(f"{place.path} has no checkpointable that is a tree")
    if name not in found:
        raise InvalidLayoutError(f"{place.path} has no tree {name!r}; it has {found}")
    return name


def check_lacking(place: Place, wanted: Mapping[str, Any]) -> None:
    """KeyError for names that the checkpoint does not have."""
    there = names_of(place)
    lacking = [name for name in wanted if name not in there]
    if lacking:
        raise KeyError(f"Requested checkpointables {lacking} were not found in {place.path}. "
                       f"Available checkpointables: {there}")
