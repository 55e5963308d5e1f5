# SPDX-License-Identifier: Apache-2.0
"""The elements of every push, wherever it goes: README.md, "A pushed step"."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from .._backend.export_options import ExportedLeaf, ExportReport, ExportRequest, run_export
from .._lifetime import OpenStore
from ..errors import Error, StepExistsError
from . import push_manifest, run
from .object_store import ReadableStore

# Orbax takes a directory for a finished checkpoint once it has one of these. They are written last
# and removed first.
LAST = ("_CHECKPOINT_METADATA", "orbax.checkpoint", "commit_success.txt")
_COMMITTED = "Checkpoint commit was successful to "


@dataclass(frozen=True)
class PushReport:
    """Describes a `Store.push`.

    url: the checkpoint or run. step: its number. objects, size_bytes: of the whole checkpoint; of a
    step of a run: the objects that have some of it, and its bytes in them.
    sent_objects, sent_bytes: without those that were there, whole, from a push that was cut off,
    or from other steps of the run.
    skipped: the step was there, and `if_exists` is "skip". left_out, widened: as an export's.
    """

    url: str
    step: int
    objects: int
    size_bytes: int
    sent_objects: int
    sent_bytes: int
    skipped: bool = False
    left_out: tuple[ExportedLeaf, ...] = ()
    widened: tuple[ExportedLeaf, ...] = ()


@dataclass(frozen=True)
class PullReport:
    """Describes a `Store.pull`.

    url: the checkpoint or run. step: the step that it became. objects, size_bytes: of the
    checkpoint; of a step of a run: the objects that have some of it, and its bytes in them.
    received_bytes: without what a pull that was cut off had.
    skipped: the step was there, and `if_exists` is "skip".
    """

    url: str
    step: int
    objects: int
    size_bytes: int
    received_bytes: int
    skipped: bool = False


def exported(store: OpenStore, request: ExportRequest, data_file_bytes: int) -> ExportReport:
    """A compact copy of the step. Where the file system can, it shares the store's blocks."""
    source, core = store._source(request.step), store._backend.files("a push")
    for mode in ("reflink", "copy"):
        try:
            return run_export(core, source, replace(request, mode=mode), None, data_file_bytes)
        except Error as error:
            if type(error) is not Error or mode == "copy":
                raise
    raise AssertionError


def write_marks(root: str, url: str) -> None:
    """Orbax's own commit marks, as it writes them where directories cannot be renamed."""
    keys = [key for key in push_manifest.local_keys(root) if key.endswith(LAST[2])]
    for key in {*keys, LAST[2]}:
        folder = key.rpartition("/")[0]
        with open(os.path.join(root, key), "w", encoding="utf-8", errors="replace") as file:
            file.write(_COMMITTED + "/".join(filter(None, [url, folder])))


def begins(bucket: ReadableStore, if_exists: str) -> bool:
    """Returns true if the push goes on. Raises StepExistsError."""
    there = bucket.list()
    if push_manifest.NAME in there:
        if if_exists == "error":
            raise StepExistsError(f"{bucket.url} has a pushed step already; if_exists=\"replace\" "
                                  "replaces it, \"skip\" keeps it")
        return if_exists == "replace"
    if run.MARK in there:
        raise StepExistsError(f"{bucket.url} is a pushed run: push to it with layout=\"stepwell\", "
                              "or elsewhere")
    if there and push_manifest.UNDER_WAY not in there:
        raise StepExistsError(f"{bucket.url} has {len(there)} objects that no push made, such as "
                              f"{min(there)!r}; push to a place that is empty")
    return True
