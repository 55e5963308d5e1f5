# SPDX-License-Identifier: Apache-2.0
"""Resolves a path, and the name of a checkpointable, as Orbax v1 does."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from typing import Any

from ... import errors as native
from ..._load.source import Source
from ..._runtime.durable import TEMPORARY
from ..._runtime.files import local_path, read_json_object
from .. import _resolve, _single
from .._resolve import Opened
from .base import errors

_DELETION_FILE = "_CHECKPOINT_DELETION"
STATE, AUTO = "state", "AUTO"
RESERVED = frozenset({"metrics", AUTO, _DELETION_FILE})

InvalidLayoutError: Any = errors.InvalidLayoutError


class CheckpointNotFoundError(InvalidLayoutError, FileNotFoundError):  # type: ignore[misc]
    """The path does not exist. Orbax raises InvalidLayoutError, which this is, too."""

    __str__ = ValueError.__str__


class DamagedCheckpointError(InvalidLayoutError, native.CorruptionError):  # type: ignore[misc]
    """Files of a checkpoint are damaged or lacking. Orbax's InvalidLayoutError, too."""


@contextlib.contextmanager
def find(path: Any) -> Iterator[Opened]:
    """The checkpoint at a path. InvalidLayoutError says what is there instead."""
    directory = local_path(path)
    beginning = f"Could not recognize the checkpoint at {directory} as a valid Orbax checkpoint: "
    if not os.path.exists(directory):
        raise CheckpointNotFoundError(f"{beginning}it does not exist")
    if TEMPORARY in os.path.basename(directory):
        raise InvalidLayoutError(f"{beginning}it is incomplete")
    try:
        found = _resolve.opened(directory)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InvalidLayoutError(f"{beginning}{error}") from error
    with found:
        parent = os.path.dirname(directory)
        if found.item is not None or found.kind == "orbax" and _has(
                parent, _single.CHECKPOINT_METADATA):
            raise InvalidLayoutError(
                f"{beginning}it is an item of the checkpoint {parent}: load that")
        if found.kind == "orbax" and _has(directory, _single.INDICATOR) and not _has(
                directory, _single.CHECKPOINT_METADATA):
            raise DamagedCheckpointError(f"{beginning}it lacks {_single.CHECKPOINT_METADATA}")
        yield found


def _has(folder: str, name: str) -> bool:
    return os.path.lexists(os.path.join(folder, name))


def is_orbax_checkpoint(path: Any) -> bool:
    """Returns true if the path is a checkpoint of Orbax or Stepwell, not a part or a root of
    some."""
    return _resolve.is_checkpoint(local_path(path))


def names_of(place: Opened) -> list[str]:
    """Names of the checkpointables, `state` first."""
    names = sorted(name for name in place.names if name not in RESERVED)
    return [STATE] * (STATE in names) + [name for name in names if name != STATE]


def check_not_being_deleted(place: Opened, names: Iterable[str]) -> None:
    """DeletionInProgressError for an item that Orbax was deleting when it was killed."""
    deleted = read_json_object(os.path.join(place.path, _DELETION_FILE)).get("checkpointable_name")
    if deleted is not None and deleted in names:
        kind = getattr(errors, "DeletionInProgressError", InvalidLayoutError)
        raise kind(f"{deleted!r} of {place.path} is being deleted")


def check_name(name: str | None) -> None:
    """ValueError for a `checkpointable_name` that no checkpointable has."""
    if name == "":
        raise ValueError("Empty string is not supported as a checkpointable name in `load`.")
    if name in RESERVED and name != AUTO:
        raise ValueError(f"Provided reserved checkpointable key: {name}.")


def tree_name(place: Opened, name: str | None) -> str:
    """The checkpointable that a `checkpointable_name` means. InvalidLayoutError."""
    beginning = f"Failed to interpret path {place.path} as a valid Orbax PyTree: "
    if place.flat:
        if name is None or name == AUTO:
            return place.names[0]
        raise InvalidLayoutError(f"{beginning}it has no named checkpointables, so there is no "
                                 f"{name!r}; omit checkpointable_name")
    if name is None:
        raise InvalidLayoutError(f"{beginning}it has named checkpointables: {names_of(place)}; "
                                 "name one of them, or omit checkpointable_name")
    check_not_being_deleted(place, [name])
    found = [each for each in names_of(place) if place.is_tree(each)]
    if name == AUTO and found:
        return found[0]
    if name not in found:
        raise InvalidLayoutError(f"{beginning}it has no tree {name!r}; it has {found}")
    return name


def source_of(place: Opened, name: str) -> tuple[Source, str]:
    """The records of the step that has an item, and the item's name there."""
    try:
        store, step, item = place.open(name)
    except native.CorruptionError as error:
        raise DamagedCheckpointError(str(error)) from error
    return store._source(step), item


@contextlib.contextmanager
def folder_of(place: Opened, name: str) -> Iterator[str]:
    """A directory with the files of an item, for a handler; of a tree those that Orbax reads."""
    if place.is_tree(name):
        yield place.path if place.flat else os.path.join(place.path, name)
        return
    with place.folder(name) as folder:
        yield folder
