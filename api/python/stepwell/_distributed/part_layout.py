# SPDX-License-Identifier: Apache-2.0
"""Where the parts of a store of many processes lie: on one file system, or on a disk of each
machine. Nothing is made before it is known that it fits what is there."""

from __future__ import annotations

import os
from typing import Literal

from .._backend import MakeCore
from ..errors import Error, InvalidArgumentError, PeerError, StorageError
from .coordinator import is_store, part_path
from .messages import PathReport, RootReport

Disks = Literal["shared", "local"]


def look_around(root: str, process: int, disks: Disks) -> PathReport:
    """What `process` finds at its path; for check_paths."""
    parts: list[str] = []
    if disks == "local" and os.path.isdir(root):
        parts = sorted(name for name in os.listdir(root)
                       if name.startswith("process_") and is_store(os.path.join(root, name)))
    return PathReport(root, os.path.basename(root), disks, is_store(root), parts)


def check_paths(reports: list[PathReport]) -> None:
    """Whether all processes open one store, and its root, if there is one, is process 0's."""
    first = reports[0]
    for process, report in enumerate(reports):
        if report.name != first.name:
            raise PeerError(
                f"process {process} opens {report.path!r}, process 0 {first.path!r}: all "
                "processes open the same stores in the same order", [process])
        if report.disks != first.disks:
            raise PeerError(
                f"process {process} opens {report.path!r} with disks={report.disks!r}, process 0 "
                f"with disks={first.disks!r}", [process])
    if first.disks != "local" or first.is_store:
        return
    for process, report in enumerate(reports):
        if report.is_store or report.parts:
            what = "a store" if report.is_store else f"{report.parts[0]} of a store"
            raise Error(
                f"process 0 has no store at {first.path!r}, and process {process} finds {what} "
                f"in {report.path!r}: is process 0's path or machine another than when it was "
                "made, or its disk lost? The store begins where process 0 was; begin a new one at "
                "a path that is free on all machines")


def sees_root(path: str, process: int, root: RootReport, disks: Disks,
              make_core: MakeCore) -> bool:
    """Whether what another process than 0 has at `path` is the root that process 0 opened."""
    if is_store(path):
        core = make_core(path, True, None)
        is_root = core.id().hex() == root.id
        core.close()
        if is_root:
            return True
        raise Error(f"process {process} finds another store at {path!r} than process 0 opened at "
                    f"{root.path!r}: is the path right, and is process 0 on the machine where "
                    "it was when the store was made?")
    if disks == "shared":
        raise Error(f"process {process} does not see the store that process 0 opened at "
                    f"{root.path!r}: it must be on a file system that all processes share, or, "
                    "where each machine has a disk of its own, be opened with disks=\"local\"")
    return False


def check_part(path: str, process: int, root: RootReport) -> None:
    """Before the part of a process on a disk of its own is opened, or made: it is not lost."""
    own = part_path(path, process)
    if is_store(own):
        return
    if process in root.members:
        raise Error(f"part {process} of {root.path!r} is missing: process {process} has no "
                    f"{own!r}, and steps of the store have data there. Is the path right, is its "
                    "disk mounted, does the process run on the machine where it ran? If the disk "
                    "is lost, begin a new store elsewhere")
    try:
        try:
            os.mkdir(path)
        except FileExistsError:
            pass
        descriptor = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)  # the part's own names are synced by the engine
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StorageError(error.errno, f"process {process}: {path}: {error.strerror}") from error


def check_disks(disks: str) -> None:
    if disks not in ("shared", "local"):
        raise InvalidArgumentError(f"disks is 'shared' or 'local', not {disks!r}")
