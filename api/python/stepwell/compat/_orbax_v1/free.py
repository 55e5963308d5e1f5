# SPDX-License-Identifier: Apache-2.0
"""The functions on a path: save, load, metadata, delete."""

from __future__ import annotations

import contextvars
import os
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from ..._runtime.files import local_path, undisturbed
from ...errors import StepExistsError
from .. import _resolve, _single
from .._orbax_common import orbax_errors
from .._resolve import Opened
from .._work import Peers, Work, start
from .base import get_context, v1
from .items import check_names, load_item, load_items, metadata_of, to_items
from .places import (AUTO, RESERVED, STATE, InvalidLayoutError, check_name, find,
                     is_orbax_checkpoint, names_of, tree_name)
from .trees import check_target

T = TypeVar("T")
SAFETENSORS, ANY = "SAFETENSORS", "AUTO"  # names of layouts


def _layout(context: Any) -> str:
    layout = context.checkpoint_layout
    return str(getattr(layout, "name", layout)).upper()


# ---- saving -------------------------------------------------------------------------------------


def save(path: Any, state: Any, *, checkpointable_name: str = STATE, overwrite: bool = False,
         custom_metadata: Any = None) -> None:
    """Saves a tree as the checkpoint `path`, and returns when it is durable.

    overwrite: replaces an existing checkpoint, at one instant. Else one is a ValueError.
    custom_metadata: JSON, for `metadata(path).custom_metadata`.
    """
    save_async(path, state, checkpointable_name=checkpointable_name, overwrite=overwrite,
               custom_metadata=custom_metadata).result()


def save_async(path: Any, state: Any, *, checkpointable_name: str = STATE, **options: Any
               ) -> Work[None]:
    """Does `save` in the background. When it returns, the state may be changed or donated."""
    return save_checkpointables_async(path, {checkpointable_name: state}, **options)


def save_checkpointables(path: Any, checkpointables: dict[str, Any], **options: Any) -> None:
    """Does `save` for several checkpointables, by name, as one checkpoint."""
    save_checkpointables_async(path, checkpointables, **options).result()


def save_checkpointables_async(path: Any, checkpointables: dict[str, Any], *,
                               overwrite: bool = False, custom_metadata: Any = None) -> Work[None]:
    """Does `save_checkpointables` in the background."""
    check_names(checkpointables)
    context = get_context()
    if _layout(context) == SAFETENSORS:
        raise NotImplementedError("Saving to Safetensors format is not supported yet.")
    items = to_items(checkpointables, context)
    described = custom_metadata or None
    if _resolve.shown(local_path(path)) is not None:  # where no file names handlers
        described = items.metadata(custom_metadata)
    try:
        with orbax_errors():
            return _resolve.save(
                path, items.trees, overwrite=overwrite, metadata=described,
                chunks=items.chunks or None, form=items.form(context),
                finished=context.asynchronous.post_finalization_callback,
                timeout=context.asynchronous.timeout_secs)
    except StepExistsError as error:
        raise ValueError(f"Destination {local_path(path)} already exists. {error}") from None


# ---- loading ------------------------------------------------------------------------------------


def _is_safetensors(path: Any, context: Any) -> bool:
    """Returns true if Orbax is to load it: files of that kind have nothing to do with a store."""
    if _layout(context) != ANY:
        return _layout(context) == SAFETENSORS
    where = local_path(path)
    names = os.listdir(where) if os.path.isdir(where) else [where]
    return not is_orbax_checkpoint(path) and any(name.endswith(".safetensors") for name in names)


def unwrapped(abstract: Any) -> Any:
    """A target; of metadata the tree."""
    return abstract.metadata if isinstance(abstract, v1.CheckpointMetadata) else abstract


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
    if _is_safetensors(path, context):
        return v1.load(local_path(path), abstract)
    check_name(checkpointable_name)
    return _read(path, lambda place: load_item(
        place, tree_name(place, checkpointable_name), abstract, context))


def _read(path: Any, read: Callable[[Opened], T]) -> T:
    def once() -> T:
        with find(path) as place:
            return read(place)

    return undisturbed(local_path(path), once)


def load_async(path: Any, abstract_state: Any = None, *,
               checkpointable_name: str | None = AUTO) -> Work[Any]:
    """Does `load` in the background. Orbax has it for safetensors only."""
    return in_background(lambda: load(path, abstract_state,
                                      checkpointable_name=checkpointable_name))


def in_background(work: Callable[[], Any]) -> Work[Any]:
    """Does `work` in the Context of the caller."""
    context = contextvars.copy_context()
    return Work(lambda: context.run(work))


def load_checkpointables(path: Any, abstract_checkpointables: Any = None) -> dict[str, Any]:
    """Loads checkpointables by name: those in `abstract_checkpointables`, or all."""
    context = get_context()
    wanted = unwrapped(abstract_checkpointables)
    if wanted is not None:
        check_names(wanted, may_be_empty=True)
    if _is_safetensors(path, context):
        loaded: dict[str, Any] = v1.load_checkpointables(local_path(path), wanted)
        return loaded
    return _read(path, lambda place: load_items(place, wanted, context))


def load_checkpointables_async(path: Any, abstract_checkpointables: Any = None
                               ) -> Work[dict[str, Any]]:
    """Does `load_checkpointables` in the background. Orbax does not have it."""
    return in_background(lambda: load_checkpointables(path, abstract_checkpointables))


# ---- metadata -----------------------------------------------------------------------------------


def described(place: Opened, metadata: Any, context: Any) -> dict[str, Any]:
    """The arguments of a CheckpointMetadata."""
    begun, committed = place.times
    return {"path": context.file.path_class(place.path), "metadata": metadata,
            "init_timestamp_nsecs": begun, "commit_timestamp_nsecs": committed,
            "custom_metadata": place.metadata}


def metadata(path: Any, checkpointable_name: str | None = AUTO) -> Any:
    """Describes a tree without loading it, as a CheckpointMetadata: shapes, dtypes and shardings of
    its leaves."""
    context = get_context()
    if _is_safetensors(path, context):
        return v1.metadata(local_path(path), checkpointable_name)
    check_name(checkpointable_name)
    return _read(path, lambda place: v1.CheckpointMetadata(**described(
        place, metadata_of(place, tree_name(place, checkpointable_name), context), context)))


def checkpointables_metadata(path: Any) -> Any:
    """Describes each checkpointable, by name, in a CheckpointMetadata."""
    context = get_context()
    if _is_safetensors(path, context):
        return v1.checkpointables_metadata(local_path(path))

    def read(place: Opened) -> Any:
        if place.flat:
            raise InvalidLayoutError(f"{place.path} has no named checkpointables: use `metadata`")
        each = {name: metadata_of(place, name, context) for name in names_of(place)}
        return v1.CheckpointMetadata(**described(place, each, context))

    return _read(path, read)


# ---- deleting -----------------------------------------------------------------------------------


def delete(path: Any, *, checkpointable_name: str | None = None, missing_ok: bool = False) -> bool:
    """Deletes a checkpoint, or one checkpointable of it, and says whether there was one.

    FileNotFoundError if there is none and `missing_ok` is False; ValueError for the only
    checkpointable of a checkpoint. Either is atomic and durable: a reader sees all of it or
    nothing.
    """
    return delete_async(path, checkpointable_name=checkpointable_name,
                        missing_ok=missing_ok).result()


def delete_async(path: Any, *, checkpointable_name: str | None = None, missing_ok: bool = False
                 ) -> Work[bool]:
    """Does `delete` in the background."""
    check_deletion(checkpointable_name, missing_ok, get_context())
    target, name = local_path(path), checkpointable_name
    if os.path.islink(target):
        raise ValueError(f"Cannot delete a checkpoint through a symlink: {target}.")
    is_there = False

    def look() -> None:
        nonlocal is_there
        is_there = _is_there(target, name, missing_ok)

    peers = Peers(f"deleting {target!r}")
    peers.all(look)  # before any process changes it

    def work() -> bool:
        if is_there and name is None:
            _resolve.delete(target)
        elif is_there and name is not None:
            _resolve.delete_item(target, name)
        return is_there

    return start(work)


def _is_there(target: str, name: str | None, missing_ok: bool) -> bool:
    if not os.path.exists(target):
        if missing_ok:
            return False
        raise FileNotFoundError(f"Checkpoint does not exist: {target}.")
    if not os.path.isdir(target):
        raise NotADirectoryError(f"Checkpoint path is not a directory: {target}.")
    if os.listdir(target) and not is_orbax_checkpoint(target):
        raise InvalidLayoutError(f"Not an Orbax checkpoint root: {target}.")
    if name is None:
        return True

    def look() -> bool:
        with find(target) as place:
            return check_item(place, name, missing_ok)

    return undisturbed(target, look)


def check_deletion(name: Any, missing_ok: Any, context: Any) -> None:
    """The arguments of a deletion; raises what Orbax raises."""
    if name is not None:
        if not isinstance(name, str):
            raise TypeError("checkpointable_name must be a string or None.")
        if (not name or name in (".", "..") or name in RESERVED
                or name == _single.CHECKPOINT_METADATA or set(name) & set("/\\\0")):
            raise ValueError(f"Invalid checkpointable name: {name!r}.")
    if not isinstance(missing_ok, bool):
        raise TypeError("missing_ok must be a bool.")
    full_path = context.deletion.gcs_deletion_options.todelete_full_path
    if full_path is not None:
        if not full_path or full_path.startswith("/") or ".." in full_path.split("/"):
            raise ValueError("todelete_full_path must be a relative bucket path.")
        raise NotImplementedError("todelete_full_path requires a GCS checkpoint.")
    if _layout(context) == SAFETENSORS:
        raise NotImplementedError("Deletion currently supports Orbax checkpoint layouts.")


def check_item(place: Opened, name: str, missing_ok: bool) -> bool:
    """Checks that the item is there; raises where it cannot be deleted."""
    if place.flat:
        raise InvalidLayoutError(f"Checkpoint at {place.path} has no named checkpointables.")
    names = names_of(place)
    if name not in names:
        if missing_ok:
            return False
        raise FileNotFoundError(f"Checkpointable {name!r} does not exist at {place.path}; it has "
                                f"{names}.")
    if names == [name]:
        raise ValueError("Cannot delete the final checkpointable; delete the whole checkpoint "
                         "instead.")
    return True


# ---- older names --------------------------------------------------------------------------------


def renamed(old: str, new: Callable[..., Any]) -> Callable[..., Any]:
    """`new` under its older name."""

    def call(*args: Any, **kwargs: Any) -> Any:
        warnings.warn(f"{old} is deprecated: use {new.__name__}", DeprecationWarning, stacklevel=2)
        return new(*args, **kwargs)

    call.__name__ = call.__qualname__ = old
    call.__doc__ = f"Deprecated: use {new.__name__}."
    return call


save_pytree = renamed("save_pytree", save)
save_pytree_async = renamed("save_pytree_async", save_async)
load_pytree = renamed("load_pytree", load)
load_pytree_async = renamed("load_pytree_async", load_async)
pytree_metadata = renamed("pytree_metadata", metadata)
