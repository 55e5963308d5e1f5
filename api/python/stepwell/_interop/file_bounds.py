# SPDX-License-Identifier: Apache-2.0
"""Bounds the memory that a file of another library takes before it is read: compressed archives may
hold a thousand times their size."""

from __future__ import annotations

import math
import os
import stat
import zipfile
from typing import Any

import numpy as np

from ..errors import CorruptionError, Error, InvalidArgumentError

_CGROUP = "/sys/fs/cgroup"


def check_regular(path: str) -> None:
    """InvalidArgumentError for a FIFO, a socket or a device: reading one may wait for ever."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise InvalidArgumentError(f"{path} is neither a directory nor a regular file")


def check_fits(path: str, nbytes: int) -> None:
    """Error if what is in a file takes more than the memory that is there for this process."""
    free = memory_available()
    if nbytes > free:
        raise Error(f"{path}: what is in it takes {nbytes:,} bytes of memory, and {free:,} are "
                    "available. Read it where there is more memory, or import parts of it")


def npz_bytes(path: str) -> int:
    """The size of an archive's arrays, as its directory and their headers say. CorruptionError
    where these two differ."""
    total = 0
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            total += member.file_size
            if member.filename.endswith(".npy"):
                _check_header(path, archive, member)
    return total


def _check_header(path: str, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    with archive.open(member) as file:
        # read_magic gives what it was given where that is not NumPy's; np.load says so.
        version = np.lib.format.read_magic(file)
        readers: Any = {(1, 0): np.lib.format.read_array_header_1_0,
                        (2, 0): np.lib.format.read_array_header_2_0}
        if version not in readers:
            return
        shape, _, dtype = readers[version](file)
        nbytes = math.prod(shape) * dtype.itemsize
        if not dtype.hasobject and file.tell() + nbytes != member.file_size:
            raise CorruptionError(f"{path}: {member.filename} has {member.file_size:,} bytes, and "
                                  f"an array {dtype}{list(shape)} has {nbytes:,}")


def memory_available() -> int:
    """Bytes that this process can still have, of the machine and of its control groups."""
    free = _fields("/proc/meminfo").get("MemAvailable:", 1 << 62)
    folder = next((line.strip().split(":", 2)[2] for line in _lines("/proc/self/cgroup")
                   if line.startswith("0::")), None)
    while folder is not None:
        group = _CGROUP + folder.rstrip("/")
        limit, used = _number(f"{group}/memory.max"), _number(f"{group}/memory.current")
        if limit is not None and used is not None:
            cache = _fields(f"{group}/memory.stat").get("file", 0)  # the kernel gives it up
            free = min(free, max(limit - used + cache, 0))
        folder = None if folder in ("", "/") else os.path.dirname(folder)
    return free


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.readlines()
    except OSError:
        return []


def _number(path: str) -> int | None:
    text = "".join(_lines(path)).strip()
    return int(text) if text.isdecimal() else None


def _fields(path: str) -> dict[str, int]:
    found = {}
    for line in _lines(path):
        name, number, *unit = line.split()
        found[name] = int(number) * (1024 if unit == ["kB"] else 1)
    return found
