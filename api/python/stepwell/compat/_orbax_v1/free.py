# SPDX-License-Identifier: Apache-2.0
"""The functions on a path: save, load, metadata."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from ..._runtime.files import local_path
from ...errors import Error, StepExistsError
from .. import _single
from .._work import Work
from . import safetensors
from .context import Context, get_context
from .errors import InvalidLayoutError, LoadError
from .items import (AUTO, RESERVED, STATE, Items, check_lacking, check_names, item_metadata,
                    load_item, names_of, orbax_errors, to_items, tree_name)
from .metadata import CheckpointMetadata
from .options import CheckpointLayout
from .places import Place, find, is_orbax
from .trees import check_target

T = TypeVar("T", covariant=True)


class AsyncResponse(Protocol[T]):
    """What runs in the background."""

    def result(self, timeout: float | None = None) -> T:
        """Waits for the result, and raises what went wrong."""
        ...

    def on_complete(self, callback: Callable[[Any], None]) -> None:
        """Calls `callback(result)` once it is done well."""
        ...


# ---- saving -------------------------------------------------------------------------------------


def save(path: Any, state: Any, *, checkpointable_name: str = STATE, overwrite: bool = False,
         custom_metadata: Any = None) -> None:
    """Saves a tree as the checkpoint `path`, and returns when it is durable.

    overwrite: replaces an existing checkpoint, at one instant. Else one is a ValueError.
    custom_metadata: JSON, for `metadata(path).custom_metadata`.
    """
    save_async(path, state, checkpointable_name=checkpointable_name, overwrite=overwrite,
               custom_metadata=custom_metadata).result()


def save_async(path: Any, state: Any, *, checkpointable_name: str = STATE,
               overwrite: bool = False, custom_metadata: Any = None) -> AsyncResponse[None]:
    """As `save`, in the background. When it returns, the state may be changed or donated."""
    return save_checkpointables_async(path, {checkpointable_name: state}, overwrite=overwrite,
                                      custom_metadata=custom_metadata)


def save_checkpointables(path: Any, checkpointables: dict[str, Any], *, overwrite: bool = False,
                         custom_metadata: Any = None) -> None:
    """Saves several checkpointables, by name, as one checkpoint."""
    save_checkpointables_async(path, checkpointables, overwrite=overwrite,
                               custom_metadata=custom_metadata).result()


def save_checkpointables_async(path: Any, checkpointables: dict[str, Any], *,
                               overwrite: bool = False, custom_metadata: Any = None
                               ) -> AsyncResponse[None]:
    check_names(checkpointables)
    context = get_context()
    if context.checkpoint_layout == CheckpointLayout.SAFETENSORS:
        raise NotImplementedError("Saving to Safetensors format is not supported yet.")
    items = to_items(checkpointables, context)
    return start(path, items, context, overwrite, custom_metadata)


def form_of(context: Context, items: Items) -> _single.Form:
    saving = context.array.saving
    return _single.Form(
        zarr=3 if saving.use_zarr3 else 2, codec="auto" if saving.use_compression else "raw",
        file_mode=context.file.path_permission_mode,
        staging_bytes=context.memory.write_concurrent_bytes, handlers=items.handlers)


def start(path: Any, items: Items, context: Context, overwrite: bool, custom_metadata: Any
          ) -> AsyncResponse[None]:
    """Saves items as a checkpoint in the background."""

    try:
        with orbax_errors():
            return _single.save(local_path(path), items.trees, overwrite=overwrite,
                                metadata=custom_metadata or None, chunks=items.chunks or None,
                                form=form_of(context, items),
                                finished=context.asynchronous.post_finalization_callback,
                                timeout=context.asynchronous.timeout_secs)
    except StepExistsError:
        raise ValueError(f"Destination {local_path(path)} already exists.") from None


# ---- loading ------------------------------------------------------------------------------------


def _layout(path: Any, context: Context) -> CheckpointLayout:
    if context.checkpoint_layout == CheckpointLayout.AUTO:
        return (CheckpointLayout.SAFETENSORS if safetensors.is_one(local_path(path))
                else CheckpointLayout.ORBAX)
    return context.checkpoint_layout


def unwrapped(abstract: Any) -> Any:
    """A target; of metadata the tree."""
    return abstract.metadata if isinstance(abstract, CheckpointMetadata) else abstract


def load(path: Any, abstract_state: Any = None, *, checkpointable_name: str | None = AUTO) -> Any:
    """Loads a tree.

    abstract_state: a tree of the saved structure, whose leaves say what to load each as: arrays,
        jax.ShapeDtypeStructs (with a sharding), metadata, Python scalars, types of these. A
        PLACEHOLDER is not loaded. None: the tree as Orbax gives it, with lists for tuples, dicts
        for namedtuples and objects, and str keys.
    checkpointable_name: AUTO is "state", or else the first tree there is.
    """
    context = get_context()
    if not path:
        raise ValueError("Path must not be None.")
    abstract = unwrapped(abstract_state)
    check_target(abstract)
    if _layout(path, context) == CheckpointLayout.SAFETENSORS:
        return safetensors.load(local_path(path), abstract)
    if checkpointable_name == "" or checkpointable_name in RESERVED - {AUTO}:
        raise ValueError(f"{checkpointable_name!r} is not the name of a checkpointable")
    with find(path) as place:
        return load_item(place, tree_name(place, checkpointable_name), abstract, context)


def load_async(path: Any, abstract_state: Any = None, *,
               checkpointable_name: str | None = AUTO) -> AsyncResponse[Any]:
    """As `load`, in the background. Orbax has it for safetensors only."""
    return _in_background(lambda: load(path, abstract_state,
                                       checkpointable_name=checkpointable_name))


def _in_background(work: Callable[[], Any]) -> AsyncResponse[Any]:
    context = get_context()

    def inside() -> Any:
        with Context(context):
            return work()

    return Work(inside)


def load_checkpointables(path: Any, abstract_checkpointables: Any = None) -> dict[str, Any]:
    """Loads checkpointables by name: those in `abstract_checkpointables`, or all."""
    context = get_context()
    wanted = unwrapped(abstract_checkpointables)
    _check_wanted(wanted)
    if _layout(path, context) == CheckpointLayout.SAFETENSORS:
        raise NotImplementedError("safetensors files have no checkpointables: use `load`")
    with find(path) as place:
        return load_all(place, wanted, context)


def load_checkpointables_async(path: Any, abstract_checkpointables: Any = None
                               ) -> AsyncResponse[dict[str, Any]]:
    """As `load_checkpointables`, in the background. Orbax does not have it."""
    return _in_background(lambda: load_checkpointables(path, abstract_checkpointables))


def _check_wanted(wanted: Any) -> None:
    if wanted is None:
        return
    if not isinstance(wanted, dict):
        raise ValueError("`abstract_checkpointables` must be a valid mapping of checkpointable "
                         f"names to abstract checkpointables to load, but got {type(wanted)}")
    if "" in wanted or wanted.keys() & RESERVED:
        raise ValueError(f"{sorted(wanted.keys() & {'', *RESERVED})} are not names of "
                         "checkpointables")


def load_all(place: Place, wanted: dict[str, Any] | None, context: Context) -> dict[str, Any]:
    if place.flat is not None:
        raise InvalidLayoutError(f"{place.path} has no named checkpointables: use `load`")
    wanted = wanted or dict.fromkeys(names_of(place))
    check_lacking(place, wanted)
    loaded = {}
    for name, abstract in wanted.items():
        try:
            loaded[name] = load_item(place, name, abstract, context)
        except (Error, ValueError, KeyError, FileNotFoundError, NotImplementedError) as error:
            raise LoadError(f"Failed to load checkpointable {name!r} of {place.path}: {error}"
                            ) from error
    return loaded


# ---- metadata -----------------------------------------------------------------------------------


def described(place: Place, metadata: Any, context: Context) -> dict[str, Any]:
    """The arguments of a CheckpointMetadata."""
    begun, committed = place.times
    return {"path": context.file.path_class(place.path), "metadata": metadata,
            "init_timestamp_nsecs": begun, "commit_timestamp_nsecs": committed,
            "custom_metadata": place.custom_metadata or {}}


def metadata(path: Any, checkpointable_name: str | None = AUTO) -> CheckpointMetadata[Any]:
    """Describes a tree without loading it: shapes, dtypes and shardings of its leaves."""
    context = get_context()
    if _layout(path, context) == CheckpointLayout.SAFETENSORS:
        return safetensors.metadata(local_path(path), context)
    with find(path) as place:
        name = tree_name(place, checkpointable_name)
        return CheckpointMetadata(**described(place, item_metadata(place, name, context), context))


def checkpointables_metadata(path: Any) -> CheckpointMetadata[dict[str, Any]]:
    """Describes each checkpointable, by name."""
    context = get_context()
    with find(path) as place:
        if place.flat is not None:
            raise InvalidLayoutError(f"{place.path} has no named checkpointables: use `metadata`")
        each = {name: item_metadata(place, name, context) for name in names_of(place)}
        return CheckpointMetadata(**described(place, each, context))


def is_orbax_checkpoint(path: Any) -> bool:
    """Whether the path is a checkpoint of Orbax or Stepwell."""
    return is_orbax(local_path(path))


# ---- older names --------------------------------------------------------------------------------


def _renamed(old: str, new: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        warnings.warn(f"{old} is deprecated: use {new.__name__}", DeprecationWarning, stacklevel=2)
        return new(*args, **kwargs)

    call.__name__ = call.__qualname__ = old
    call.__doc__ = f"Deprecated: use {new.__name__}."
    return call


save_pytree = _renamed("save_pytree", save)
save_pytree_async = _renamed("save_pytree_async", save_async)
load_pytree = _renamed("load_pytree", load)
load_pytree_async = _renamed("load_pytree_async", load_async)
pytree_metadata = _renamed("pytree_metadata", metadata)
