# SPDX-License-Identifier: Apache-2.0
"""Steps to object stores: what `push` does, in order. What a pushed step is: README.md, "A pushed
step"."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, SupportsIndex

from .. import _stepwell
from .._backend.export_options import ExportRequest, Layout, Leaves, OnUnsupported
from .._lifetime import OpenStore
from .._runtime import durable
from .._runtime.arguments import IfExists, Progress, if_exists_of
from .._runtime.files import is_inside
from .._runtime.progress import progress_of
from ..errors import CorruptionError, InvalidArgumentError
from . import push_manifest
from .directory_store import DirectoryStore
from .object_store import PART_BYTES, ObjectStore, local_path, open_object_store
from .push_directory import push_to_directory
from .push_manifest import Manifest, Object
from .pushed import LAST, PushReport, begins, exported, write_marks
from .run_push import push_to_run
from .transfer import (LOCK_NAME, Transfers, claimed, digest_of, sweep_work, with_context,
                       work_path)

# Data files of a pushed checkpoint: one upload each, so that a cut loses no more of an array.
_DATA_FILE_BYTES = PART_BYTES


def _is_late(key: str) -> bool:
    return key.rpartition("/")[2] in LAST


def _take_over(bucket: ObjectStore, step: int, keys: set[str]) -> dict[str, int]:
    """From here on no reader takes what is there for a checkpoint, and what pushes before this one
    put there and this one does not is gone. What is left, with sizes in bytes."""
    there = bucket.list()
    old = {key for name in (push_manifest.NAME, push_manifest.UNDER_WAY) if name in there
           for key in push_manifest.owned_keys(bucket, name)} & there.keys()
    bucket.put(push_manifest.UNDER_WAY, push_manifest.under_way(step, keys | old))
    for key in [push_manifest.NAME, *filter(_is_late, old), *sorted(old - keys)]:
        if key in there:
            bucket.delete(key)
            del there[key]
    return there


def _send(bucket: ObjectStore, root: str, step: int, verify: bool, progress: Progress | None
          ) -> tuple[Manifest, int, int]:
    """Everything but the decision to do it; the number of objects and bytes that were sent."""
    sizes = {key: os.path.getsize(os.path.join(root, key))
             for key in push_manifest.local_keys(root)}
    there = _take_over(bucket, step, set(sizes))
    transfers = Transfers(sum(sizes.values()), progress)
    objects: dict[str, Object] = {}
    sent: list[int] = []

    def send(key: str) -> None:
        path = os.path.join(root, key)
        with with_context(f"push of step {step}: {bucket.url}/{key}"):
            wanted = Object(sizes[key],
                            push_manifest.file_sha256(path, transfers.check).hexdigest())
            objects[key] = wanted
            if there.get(key) != wanted.size or (
                    push_manifest.bucket_sha256(bucket, key, wanted.size, transfers.check)
                    != wanted.sha256):
                bucket.put_file(key, path)
                sent.append(wanted.size)
                if verify:
                    _check_sent(bucket, key, wanted, transfers.check)
            transfers.add(wanted.size)

    transfers.run(send, [key for key in sizes if not _is_late(key)])
    for key in sorted(filter(_is_late, sizes), key=lambda key: (-key.count("/"), key)):
        send(key)
    manifest = Manifest(step, objects)
    bucket.put(push_manifest.NAME, manifest.encode())
    bucket.delete(push_manifest.UNDER_WAY)
    return manifest, len(sent), sum(sent)


def _check_sent(bucket: ObjectStore, key: str, wanted: Object, check: Callable[[], None]) -> None:
    size = bucket.size(key)
    if size != wanted.size or (
            push_manifest.bucket_sha256(bucket, key, wanted.size, check) != wanted.sha256):
        raise CorruptionError(f"{bucket.url}/{key} is not what was sent: it has {size} bytes of "
                              f"{wanted.size}, or others; push again")


def push(self: OpenStore, step: SupportsIndex | None, dest: Any, *, prefix: str = "",
         if_exists: IfExists = "error", storage_options: Mapping[str, Any] | None = None,
         layout: Layout | Literal["stepwell"] = "v1", leaves: Leaves | None = None,
         unnamed_default: bool = False, on_unsupported: OnUnsupported = "error",
         verify: bool = False, work_dir: str | os.PathLike[str] | None = None,
         progress: Progress | bool | None = None) -> PushReport:
    """Copies a step (None: the newest) to an object store, as an Orbax checkpoint and a list of its
    objects with checksums. The list comes last, and `pull` finds only steps
    that have one. A push that was cut off resumes when it is called again: objects that are there
    and whole are not sent again. Arrays are cut into objects of 8 MiB at most; a larger file of
    a `Files` item is one object, which starts anew.
    One push at a time to a place.

    A directory appears, or is replaced, whole and at one instant, and is durable when this returns;
    a push to one that was cut off starts anew.

    layout="stepwell" pushes the step to a *run* instead: a place for many steps, in Stepwell's own
    encoding, of which each push sends only the chunks that the nearest steps there lack, and
    differences as differences. `pull`, `pushed_steps` and `delete_pushed` know such a place. Orbax
    does not read it. Any number of steps may be pushed there at a time; of one step the last push
    wins. A step that is replaced is there, as it was or as it is, at any time.

    dest: the checkpoint's place: a URL ("s3://bucket/run1/100", "gs://…", "az://…"), a local path,
        a store of obstore, or a file system of fsspec. For URLs obstore is used, or else fsspec.
        It is empty, or has a pushed step or a half of one. With layout="stepwell" the run's place:
        it is empty, or a run.
    prefix: the place below `dest`.
    if_exists: about a step that was pushed there before: "error", "replace" (readers must wait
        meanwhile: there is none until the new one is complete) or "skip".
    storage_options: keywords for the library that opens the URL, such as credentials and regions.
    layout: "v1" or "v0", as in `export`: `dest` is always the step's own directory. "stepwell": a
        run, see above.
    leaves, unnamed_default, on_unsupported: as in `export`; not for a run, which has the step as it
        was saved.
    verify: reads every object back before the list is written; of a run also those that the step
        shares with others, and sends anew what is damaged.
    work_dir: where to put a compact copy of the step meanwhile; None: beside the store. It takes no
        space where the file system shares blocks (XFS, btrfs). Of a push to a run only a note.
    progress: called with bytes done and all bytes, from several threads, one at a time. True: a bar
        of tqdm or rich.

    Raises what `export` raises; StepExistsError (also for objects there that no push made),
    PermissionDeniedError and StorageError with the object and what the library said,
    CorruptionError (verify), LockedError when the same push is under way, Error when no library is
    installed.
    """
    if_exists_of(if_exists)
    shown = progress_of(progress, "push")
    self._backend.files("a push")
    source = self._source(step)
    number = source.step
    local = local_path(dest)
    if local and is_inside(local, self.path):
        raise InvalidArgumentError(f"{dest} is inside the store; push elsewhere")
    if layout not in (layouts := [*sorted(_stepwell.ExportLayout.__members__), "stepwell"]):
        raise InvalidArgumentError(f"layout is one of {', '.join(layouts)}, not {layout!r}")
    if layout == "stepwell":
        if leaves is not None or unnamed_default or on_unsupported != "error":
            raise InvalidArgumentError("leaves, unnamed_default and on_unsupported are for Orbax "
                                       "checkpoints; layout=\"stepwell\" pushes the step as it is")
        with with_context(f"push of step {number}"):
            place = open_object_store(dest, prefix, storage_options)
        with with_context(f"push of step {number} to {place.url}"):
            work = work_path(self.path, f"pushrun-{digest_of(place.url)}", work_dir)
            return push_to_run(self, source, place, if_exists, verify, work, shown)
    request = ExportRequest(number, "orbax", "", "copy", 3, None, layout, leaves, "", 0,
                            unnamed_default, on_unsupported, None)
    with with_context(f"push of step {number}"):
        bucket = open_object_store(dest, prefix, storage_options)
    what = f"push of step {number} to {bucket.url}"
    if isinstance(bucket, DirectoryStore):
        with with_context(what):
            return push_to_directory(self, request, bucket, if_exists, _DATA_FILE_BYTES, shown)
    with with_context(what):
        if not begins(bucket, if_exists):
            return PushReport(bucket.url, number, 0, 0, 0, 0, skipped=True)
    where = work_path(self.path, f"push-{number}-{digest_of(bucket.url)}", work_dir)
    sweep_work(where)
    with claimed(where, keep_on_error=False) as folder, with_context(what):
        for each in os.listdir(folder):  # of a push that was killed
            if each != LOCK_NAME:
                durable.remove_tree(os.path.join(folder, each))
        export = exported(self, replace(request, dest=os.path.join(
            folder, f"checkpoint-{os.urandom(8).hex()}")), _DATA_FILE_BYTES)
        write_marks(export.path, bucket.url)
        manifest, objects, size = _send(bucket, export.path, number, verify, shown)
    return PushReport(bucket.url, number, len(manifest.objects), manifest.size_bytes, objects, size,
                      False, export.skipped, export.widened)
