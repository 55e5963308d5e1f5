# SPDX-License-Identifier: Apache-2.0
"""Steps from object stores: what `pull` does, in order."""

from __future__ import annotations

import os
import posixpath
import threading
from collections.abc import Iterable, Mapping
from typing import Any, SupportsIndex

from .._backend.orbax_source import exists
from .._interop import checkpoint_import
from .._lifetime import OpenStore
from .._runtime.arguments import IfExists, Progress, if_exists_of, item_names, step_number
from .._runtime.durable import remove_tree
from .._runtime.progress import progress_of
from ..errors import CheckpointNotFoundError, CorruptionError, InvalidArgumentError
from . import push_manifest, run
from .directory_store import DirectoryStore
from .listing import newest_folder
from .object_store import ReadableStore, open_object_store
from .push_manifest import Manifest, Object
from .pushed import PullReport
from .run_pull import pull_from_run
from .transfer import Transfers, claimed, digest_of, with_context, work_path


def _find(bucket: ReadableStore) -> Manifest:
    manifest = push_manifest.read(bucket)
    if manifest is not None:
        return manifest
    there = bucket.list()
    if not there:
        raise CheckpointNotFoundError(f"{bucket.url}: there is nothing")
    if push_manifest.UNDER_WAY in there:
        raise CheckpointNotFoundError(f"{bucket.url} is half pushed: the push is under way, or was "
                                      "cut off; push again, and it goes on")
    raise CheckpointNotFoundError(f"{bucket.url} has no {push_manifest.NAME}: it is not a "
                                  "pushed step")


class _Receiver:
    """Objects into files below a directory; those that are there already are checked."""

    def __init__(self, bucket: ReadableStore, folder: str, manifest: Manifest, transfers: Transfers
                 ) -> None:
        self._bucket = bucket
        self._root = os.path.join(folder, "checkpoint")
        self._manifest = manifest
        self._transfers = transfers
        self._lock = threading.Lock()
        self.received_bytes = 0

    def receive(self, key: str) -> None:
        wanted = self._manifest.objects[key]
        path = os.path.join(self._root, key)
        with with_context(f"pull of {self._bucket.url}/{key}"):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if not self._fill(key, path, wanted):
                remove_tree(path)  # of what is kept, some was damaged: once more from the beginning
                if not self._fill(key, path, wanted):
                    raise CorruptionError(f"{self._bucket.url}/{key} is damaged: its checksum is "
                                          "wrong")
            self._transfers.add(wanted.size)

    def _fill(self, key: str, path: str, wanted: Object) -> bool:
        """Returns true if the file is the object now."""
        with open(path, "ab"):
            pass
        if os.path.getsize(path) > wanted.size:
            os.truncate(path, 0)
        digest = push_manifest.file_sha256(path, self._transfers.check)
        at = os.path.getsize(path)
        if (at < wanted.size or at == 0) and self._bucket.size(key) != wanted.size:
            raise self._short(key, wanted)
        with open(path, "ab") as file:
            for data in push_manifest.bucket_bytes(self._bucket, key, at, wanted.size,
                                                   self._transfers.check):
                if at + len(data) > wanted.size:
                    break
                file.write(data)
                digest.update(data)
                at += len(data)
                with self._lock:
                    self.received_bytes += len(data)
        if at != wanted.size:
            raise self._short(key, wanted)
        return bool(digest.hexdigest() == wanted.sha256)

    def _short(self, key: str, wanted: Object) -> CorruptionError:
        return CorruptionError(f"{self._bucket.url}/{key} is damaged or missing: it does not have "
                               f"the {wanted.size} bytes that it was pushed with")


def pull(self: OpenStore, src: Any, step: SupportsIndex | None = None, *, prefix: str = "",
         if_exists: IfExists = "error", storage_options: Mapping[str, Any] | None = None,
         items: Iterable[str] | None = None, work_dir: str | os.PathLike[str] | None = None,
         progress: Progress | bool | None = None) -> PullReport:
    """Saves a step that `push` copied to an object store; it is durable when this returns. Every
    object's checksum is verified before anything is saved. A pull that was cut off keeps what it
    has beside the store; called again it verifies that and goes on.

    Of a pushed run (`layout="stepwell"`) it fetches only what the store's own steps do not have:
    the nearest below and above the pulled one, and the newest. It gives exactly the tree that was
    saved, with metrics and metadata.

    src, prefix, storage_options, progress: as in `push`. Where no step was pushed to `src` itself
        but steps were to places below it, the highest of them is pulled; two of that number are
        refused.
    step: the number that it gets; None: the one that it had. Of a pushed run: the step to pull,
        which keeps its number; None: the highest that is not tainted.
    if_exists: as in `save`.
    items: names of items, of those that were pushed; None: all.
    work_dir: where to put the objects meanwhile; None: beside the store.

    Raises CheckpointNotFoundError (nothing there, or half a push), StepNotFoundError (a run does
    not have that step), CorruptionError for an object
    that is missing or has another checksum, PermissionDeniedError and StorageError with the
    object and what the library said, StepExistsError, LockedError when the same pull is under way,
    and what `import_checkpoint` raises. Of several processes that have the store open together none
    can pull.
    """
    self._check()
    self._check_writable()
    if self._backend.process_count > 1:
        raise InvalidArgumentError("a step is pulled by one process: open the store there, without "
                                   "jax.distributed, and pull it before the run")
    if_exists_of(if_exists)
    shown = progress_of(progress, "pull")
    names = item_names(items)
    with with_context("pull"):
        bucket = open_object_store(src, prefix, storage_options)
        if isinstance(bucket, DirectoryStore):
            try:
                os.stat(bucket.url)
            except (FileNotFoundError, NotADirectoryError):
                raise CheckpointNotFoundError(
                    f"the directory {bucket.url} does not exist") from None
    with with_context(f"pull of {bucket.url}"):
        manifest = push_manifest.read(bucket)
        of_run = manifest is None and run.is_run(bucket)
        if manifest is None and not of_run:
            newest = newest_folder(src, prefix, bucket.list(), storage_options)
            if newest is not None:
                bucket = open_object_store(src, posixpath.join(prefix, newest), storage_options)
                of_run = run.is_run(bucket)
            manifest = None if of_run else _find(bucket)
    if manifest is None:
        work = work_path(self.path, f"pullrun-{digest_of(bucket.url)}", work_dir)
        return pull_from_run(self, bucket, None if step is None else step_number(step), if_exists,
                             names, work, shown)
    number = manifest.step if step is None else step_number(step)
    size = manifest.size_bytes
    if number in self.steps() and if_exists != "replace":
        if if_exists == "skip":
            return PullReport(bucket.url, number, len(manifest.objects), size, 0, skipped=True)
        raise exists(self.path, number)
    where = work_path(self.path, f"pull-{digest_of(bucket.url)}", work_dir)
    with claimed(where, keep_on_error=True) as folder:
        manifest, received_bytes = _receive(bucket, manifest, folder, shown)
        number = manifest.step if step is None else number
        handle = checkpoint_import.import_checkpoint(
            self, os.path.join(folder, "checkpoint"), number, items=names or None,
            if_exists=if_exists)
        handle.result()
    return PullReport(bucket.url, number, len(manifest.objects), manifest.size_bytes,
                      received_bytes, skipped=handle.skipped)


def _receive(bucket: ReadableStore, manifest: Manifest, folder: str, shown: Progress | None
             ) -> tuple[Manifest, int]:
    """Copies a pushed step to `folder`. Where another push takes its place meanwhile, that one.
    Gives what it copied, and how many bytes came."""
    received_bytes = 0
    while True:
        _drop_others(os.path.join(folder, "checkpoint"), manifest)
        transfers = Transfers(manifest.size_bytes, shown)
        receiver = _Receiver(bucket, folder, manifest, transfers)
        try:
            transfers.run(receiver.receive, manifest.objects)
            return manifest, received_bytes + receiver.received_bytes
        except CorruptionError:
            received_bytes += receiver.received_bytes
            before, manifest = manifest, _find(bucket)
            if manifest == before:
                raise


def _drop_others(root: str, manifest: Manifest) -> None:
    """Removes objects that are not part of the checkpoint, as another push to the same place left
    them."""
    for key in push_manifest.local_keys(root) if os.path.isdir(root) else []:
        if key not in manifest.objects:
            remove_tree(os.path.join(root, key))
