# SPDX-License-Identifier: Apache-2.0
"""A push to a directory of this machine: built beside its place, and put there at one instant."""

from __future__ import annotations

import os
import stat
from dataclasses import replace

from .._backend.export_options import ExportRequest
from .._lifetime import OpenStore
from .._runtime import durable
from .._runtime.arguments import Progress
from ..errors import InvalidArgumentError
from . import push_manifest
from .directory_store import DirectoryStore
from .push_manifest import Manifest, Object
from .pushed import PushReport, begins, exported, write_marks
from .transfer import Transfers

_MADE = "checkpoint"  # in the temporary directory


def push_to_directory(store: OpenStore, request: ExportRequest, place: DirectoryStore,
                      if_exists: str, data_file_bytes: int, progress: Progress | None
                      ) -> PushReport:
    """Does `push`, which documents it. LockedError: another push to there is under way."""
    step = request.step
    assert isinstance(step, int)
    path = os.path.realpath(place.url)  # what a link there leads to is the place
    if os.path.ismount(path):
        raise InvalidArgumentError(f"{path} is the top of a file system; push to a directory in it")
    mode = stat.S_IMODE(os.stat(store.path).st_mode) & 0o777
    skipped = PushReport(place.url, step, 0, 0, 0, 0, skipped=True)
    if not begins(place, if_exists):  # before anything is made
        return skipped
    durable.make_directories(os.path.dirname(path), mode)
    durable.sweep(os.path.dirname(path))
    with durable.Folder(path, replace=True, file_mode=mode & 0o666) as folder:
        if not begins(place, if_exists):  # nobody else pushes there from here on
            return skipped
        report = exported(store, replace(request, dest=os.path.join(folder.temporary, _MADE)),
                          data_file_bytes)
        made = report.path  # of a manager's root the step
        write_marks(made, place.url)
        manifest = _listed(made, step, progress)
        with open(os.path.join(made, push_manifest.NAME), "wb") as file:
            file.write(manifest.encode())
        _set_modes(made, mode)
        _keep_others(place, made)
        folder.commit(os.path.relpath(made, folder.temporary))
    return PushReport(place.url, step, len(manifest.objects), manifest.size_bytes,
                      len(manifest.objects), manifest.size_bytes, False, report.skipped,
                      report.widened)


def _listed(made: str, step: int, progress: Progress | None) -> Manifest:
    """The list of the objects, each read once more for its checksum."""
    paths = {key: os.path.join(made, key) for key in push_manifest.local_keys(made)}
    sizes = {key: os.path.getsize(path) for key, path in paths.items()}
    transfers = Transfers(sum(sizes.values()), progress)
    objects: dict[str, Object] = {}

    def read(key: str) -> None:
        digest = push_manifest.file_sha256(paths[key], transfers.check).hexdigest()
        objects[key] = Object(sizes[key], digest)
        transfers.add(sizes[key])

    transfers.run(read, paths)
    return Manifest(step, objects)


def _keep_others(place: DirectoryStore, made: str) -> None:
    """Files in a place that no push made stay there."""
    there = place.list()
    names = (push_manifest.NAME, push_manifest.UNDER_WAY)
    pushed = {key for name in names if name in there
              for key in push_manifest.owned_keys(place, name)}
    for key in there.keys() - pushed - {*names}:
        target = os.path.join(made, key)
        if not os.path.lexists(target):
            durable.link(os.path.join(place.url, key), target)


def _set_modes(made: str, mode: int) -> None:
    """Makes a pushed step as private as its store."""
    os.chmod(made, mode)
    for base, folders, names in os.walk(made):
        for name, wanted in [*((each, mode) for each in folders),
                             *((each, mode & 0o666) for each in names)]:
            path = os.path.join(base, name)
            if not os.path.islink(path):
                os.chmod(path, wanted)
