# SPDX-License-Identifier: Apache-2.0
"""The steps that were pushed to an object store or directory."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .._runtime.durable import TEMPORARY
from ..errors import InvalidArgumentError
from . import push_manifest, run
from .object_store import open_object_store
from .transfer import with_context


@dataclass(frozen=True)
class PushedStep:
    """A step that was pushed. url: where it is, for `Store.pull(url, step)`; of a step of a run the
    run. objects, size_bytes: of it; of a step of a run the objects that have some of it, and its
    bytes in them."""

    url: str
    step: int
    objects: int
    size_bytes: int


def pushed_steps(place: Any, *, prefix: str = "", storage_options: Mapping[str, Any] | None = None
                 ) -> list[PushedStep]:
    """The pushed steps at and below `place`, ascending by step. A push that is under way, or was
    cut off, is none. Lists every object below `place`, and reads one for each step, or its
    beginning.

    place, prefix, storage_options: as in `Store.push`.

    Raises CorruptionError for a damaged list of objects, PermissionDeniedError and StorageError
    with the object and what the library said.
    """
    with with_context("listing"):
        bucket = open_object_store(place, prefix, storage_options)
    with with_context(f"listing {bucket.url}"):
        keys = bucket.list()
    return [step for step, _ in _pushes(place, prefix, keys, storage_options)]


def _pushes(place: Any, prefix: str, keys: Iterable[str],
            storage_options: Mapping[str, Any] | None) -> list[tuple[PushedStep, str]]:
    """Each pushed step with its folder, ascending by step; not of one that is being made, or was
    left, in a temporary directory. `keys`: all that are there."""
    keys = list(keys)
    folders = [posixpath.dirname(key) for key in keys
               if posixpath.basename(key) == push_manifest.NAME and TEMPORARY not in key]
    found = [(step, folder) for folder in folders
             if (step := _pushed(place, prefix, folder, storage_options)) is not None]
    for folder in [posixpath.dirname(key) for key in keys
                   if posixpath.basename(key) == run.MARK and TEMPORARY not in key]:
        found += [(step, folder) for step in _steps_of_run(place, prefix, folder, keys,
                                                           storage_options)]
    return sorted(found, key=lambda each: (each[0].step, each[0].url))


def _pushed(place: Any, prefix: str, folder: str, storage_options: Mapping[str, Any] | None
            ) -> PushedStep | None:
    """None: it was replaced or removed meanwhile."""
    bucket = open_object_store(place, posixpath.join(prefix, folder), storage_options)
    with with_context(f"listing {bucket.url}"):
        manifest = push_manifest.read(bucket)
    if manifest is None:
        return None
    return PushedStep(bucket.url, manifest.step, len(manifest.objects), manifest.size_bytes)


def _steps_of_run(place: Any, prefix: str, folder: str, keys: list[str],
                  storage_options: Mapping[str, Any] | None) -> list[PushedStep]:
    bucket = open_object_store(place, posixpath.join(prefix, folder), storage_options)
    found = []
    with with_context(f"listing {bucket.url}"):
        if not run.is_run(bucket):  # it was removed meanwhile
            return []
        below = f"{folder}/" if folder else ""
        there = run.listing_of((key.removeprefix(below), 0) for key in keys
                               if key.startswith(below))
        for step in there.steps:
            head = run.read_head(bucket, run.step_key(step))
            if head is not None:
                found.append(PushedStep(bucket.url, step, len(head.objects), head.stored_bytes))
    return found


def newest_folder(place: Any, prefix: str, keys: Iterable[str],
                  storage_options: Mapping[str, Any] | None) -> str | None:
    """Returns the folder of the highest pushed step below `prefix`. `keys`: all that are there.
    InvalidArgumentError where two have that number."""
    found = [each for each in _pushes(place, prefix, keys, storage_options) if each[1]]
    if not found:
        return None
    newest, folder = found[-1]
    urls = [step.url for step, _ in found if step.step == newest.step]
    if len(urls) > 1:
        raise InvalidArgumentError(f"step {newest.step} was pushed to {' and '.join(urls[:3])}: "
                                   "name the one to pull")
    return folder
