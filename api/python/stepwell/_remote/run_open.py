# SPDX-License-Identifier: Apache-2.0
"""A pushed run as a store that is open for reading only: for `stepwell.open` of a URL."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any, NoReturn

from .. import _stepwell
from .._backend.backend import OneProcess
from .._runtime.files import is_url
from ..errors import Error, InvalidArgumentError, StoreNotFoundError
from . import push_manifest, run
from .object_store import local_path, open_object_store
from .run_objects import RunObjects
from .transfer import with_context

_LOOK_SECONDS = 1.0  # from one look at the steps to the next: each is two or three requests


class Looks:
    """In place of a watch (api/python/watch.h), where nothing tells of changes."""

    why_not = ""

    def __init__(self) -> None:
        self._woken = threading.Event()

    def wait(self, timeout_s: float) -> bool:
        told = self._woken.wait(min(timeout_s, _LOOK_SECONDS))
        self._woken.clear()
        return told

    def wake(self) -> None:
        self._woken.set()


class RunReads(OneProcess):
    """The reads of a run. Where files of the engine itself would be copied, there are none."""

    how_to_change = ("it is a pushed run, which is only read: change the step in the store that it "
                     "was pushed from, and push it again with if_exists=\"replace\"; "
                     "stepwell.delete_pushed deletes a step here")

    def watch(self, what: str) -> Looks:
        return Looks()

    def files(self, what: str) -> NoReturn:
        raise Error(f"{self._path} is a pushed run, open where it lies: pull the step "
                    f"(`Store.pull`), and make {what} of that")

    def export(self, request: Any, *rest: Any) -> Any:
        if request.to == "orbax":
            self.files("an export")
        return super().export(request, *rest)


def is_run_place(path: str | os.PathLike[str]) -> bool:
    """Returns true for what `open_run` is for: a URL, or a directory that a run was pushed to. A
    store is none, even if it has a file of the mark's name."""
    text = os.fsdecode(path)
    if is_url(text):
        return True
    return os.path.isfile(os.path.join(text, run.MARK)) and not os.path.exists(
        os.path.join(text, "STEPWELL"))


def open_run(place: str | os.PathLike[str], storage_options: Mapping[str, Any] | None,
             options: _stepwell.OpenOptions) -> tuple[str, _stepwell.Core]:
    """The place, as messages name it, and the run there. Raises StoreNotFoundError, and what
    reading its mark raises."""
    place = os.fsdecode(place)
    with with_context("open"):
        bucket = open_object_store(place, "", storage_options)
        lists = open_object_store(place, "steps", storage_options)
    with with_context(f"open {bucket.url}"):
        there = run.is_run(bucket)
        is_step = not there and bucket.size(push_manifest.NAME) is not None
    if is_step:
        raise InvalidArgumentError(
            f"{bucket.url} is one step, pushed as an Orbax checkpoint: pull it into a store, or "
            "push the run with layout=\"stepwell\" to read it where it lies")
    if not there:
        raise StoreNotFoundError(f"{bucket.url} is not a pushed run; Store.push(layout="
                                 "\"stepwell\") and Store.push_following make one")
    where = local_path(place) or bucket.url
    name = os.fsencode(where).decode(errors="replace")  # the engine's, for messages
    return where, _stepwell.Core.of_run(RunObjects(bucket, lists), name, options)
