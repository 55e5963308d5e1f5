# SPDX-License-Identifier: Apache-2.0
"""Deleting checkpoints, and checkpointables of them."""

from __future__ import annotations

import os
import shutil
from typing import Any

from ... import _store
from ..._runtime.files import local_path
from .. import _single
from .._claim import Claim
from .._work import Peers, start
from .context import Context, get_context
from .errors import InvalidLayoutError
from .free import AsyncResponse
from .items import RESERVED, names_of
from .options import CheckpointLayout
from .places import Place, find, is_orbax


def delete(path: Any, *, checkpointable_name: str | None = None, missing_ok: bool = False) -> bool:
    """Deletes a checkpoint, or one checkpointable of it, and says whether there was one.

    FileNotFoundError if there is none and `missing_ok` is False; ValueError for the only
    checkpointable of a checkpoint. Either is atomic: a reader sees all of it or nothing.
    """
    return delete_async(path, checkpointable_name=checkpointable_name,
                        missing_ok=missing_ok).result()


def delete_async(path: Any, *, checkpointable_name: str | None = None, missing_ok: bool = False
                 ) -> AsyncResponse[bool]:
    """As `delete`, in the background."""
    check_arguments(checkpointable_name, missing_ok)
    context = get_context()
    check_options(context)
    target = local_path(path)
    if os.path.islink(target):
        raise ValueError(f"Cannot delete a checkpoint through a symlink: {target}.")
    is_there = False

    def look() -> None:
        nonlocal is_there
        is_there = _is_there(target, checkpointable_name, missing_ok, context)

    peers = Peers(f"deleting {target!r}")
    peers.all(look)  # before any process changes it

    def work() -> bool:
        if is_there and checkpointable_name is None:
            peers.lead(lambda: remove(target))
        elif is_there and checkpointable_name is not None:
            remove_item(target, checkpointable_name)
        return is_there

    return start(work)


def _is_there(target: str, name: str | None, missing_ok: bool, context: Context) -> bool:
    if not os.path.exists(target):
        if missing_ok:
            return False
        raise FileNotFoundError(f"Checkpoint does not exist: {target}.")
    _check_root(target, context)
    if name is None:
        return True
    with find(target) as place:
        return check_item(place, name, missing_ok)


def check_arguments(name: Any, missing_ok: Any) -> None:
    if name is not None:
        if not isinstance(name, str):
            raise TypeError("checkpointable_name must be a string or None.")
        if (not name or name in (".", "..") or name in RESERVED
                or name == _single.CHECKPOINT_METADATA or set(name) & set("/\\\0")):
            raise ValueError(f"Invalid checkpointable name: {name!r}.")
    if not isinstance(missing_ok, bool):
        raise TypeError("missing_ok must be a bool.")


def check_options(context: Context) -> None:
    full_path = context.deletion.gcs_deletion_options.todelete_full_path
    if full_path is not None:
        if not full_path or full_path.startswith("/") or ".." in full_path.split("/"):
            raise ValueError("todelete_full_path must be a relative bucket path.")
        raise NotImplementedError("todelete_full_path requires a GCS checkpoint.")
    if context.checkpoint_layout == CheckpointLayout.SAFETENSORS:
        raise NotImplementedError("Deletion currently supports Orbax checkpoint layouts.")


def _check_root(target: str, context: Context) -> None:
    if not os.path.isdir(target):
        raise NotADirectoryError(f"Checkpoint path is not a directory: {target}.")
    if os.listdir(target) and not is_orbax(target):
        raise InvalidLayoutError(f"Not an Orbax checkpoint root: {target}.")


def check_item(place: Place, name: str, missing_ok: bool) -> bool:
    """Whether the item is there; raises where it cannot be deleted."""
    if place.flat is not None:
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


def remove(target: str) -> None:
    """Removes a directory under a name that is not read as a checkpoint."""
    gone = f"{target}.removed{_single.TEMPORARY}"
    shutil.rmtree(gone, ignore_errors=True)
    os.rename(target, gone)
    shutil.rmtree(gone)


def remove_item(target: str, name: str) -> None:
    """Makes a checkpoint without the item, by links, and puts it in the place of the old one."""
    folder = target + _single.TEMPORARY
    made = os.path.join(folder, "checkpoint")
    inside = _single.store_in(target)
    handlers = _single.read_handlers(os.path.join(target, _single.CHECKPOINT_METADATA))
    rest = {each: kind for each, kind in handlers.items() if each != name}
    home = os.path.join(made, min(rest), _single.STORE_NAME)
    peers = Peers(f"deleting {name!r} of {target!r}")

    def copy() -> None:
        claim.acquire()
        shutil.copytree(target, made, symlinks=True, copy_function=os.link,
                        ignore=lambda folder, names: [
                            each for each in names if folder == target and each == name
                            or each == _single.STORE_NAME])
        if inside is not None:
            shutil.copytree(inside, home)

    def drop() -> None:
        if inside is not None:
            with _store.open(home) as store:
                store.delete(_single.STEP, item=name)

    def put() -> None:
        if inside is not None:
            _single.strip(home)
        _single.write_handlers(os.path.join(made, _single.CHECKPOINT_METADATA), rest)
        _single.put(made, target, overwrite=True)

    claim = Claim(folder)  # process 0 acquires it
    try:
        peers.lead(copy)
        peers.all(drop)
        peers.lead(put)
    finally:
        claim.release()
