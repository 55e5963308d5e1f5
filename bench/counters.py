# SPDX-License-Identifier: Apache-2.0
"""Counters of the kernel: bytes read and written, memory, space. None where it does not tell."""

import os
import pathlib


def _process_io(field: str) -> int | None:
    try:
        text = pathlib.Path("/proc/self/io").read_text()
    except OSError:
        return None  # a kernel without task I/O accounting
    for line in text.splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    return None


def read_bytes() -> int | None:
    """Bytes that this process fetched from disks; what the page cache had does not count."""
    return _process_io("read_bytes")


def written_bytes() -> int | None:
    """Bytes that this process wrote to disks, or to pages of files that have to be written."""
    return _process_io("write_bytes")


def device(directory: pathlib.Path) -> pathlib.Path | None:
    """The entry in /sys of the block device below `directory`."""
    number = directory.stat().st_dev
    entry = pathlib.Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    return entry.resolve() if entry.exists() else None


def device_written_bytes(directory: pathlib.Path) -> int | None:
    """Bytes that the block device was sent by the whole machine, journal and all."""
    entry = device(directory)
    if entry is None:
        return None
    return int((entry / "stat").read_text().split()[6]) * 512  # the unit is always 512 bytes


def allocated_bytes(directory: pathlib.Path) -> int:
    """The space of all files; one with several names counts once."""
    found = [file.lstat() for file in directory.rglob("*") if file.is_file()]
    return sum({status.st_ino: status.st_blocks * 512 for status in found}.values())


class PeakMemory:
    """Measures the growth of the process's resident memory within a `with` block, in bytes. Mapped
    pages of files count, as they do for the kernel."""

    def __enter__(self) -> "PeakMemory":
        self.bytes: int | None = None
        self._before: int | None = None
        try:
            pathlib.Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
        except OSError:
            return self
        self._before = self._status("VmRSS")
        return self

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            self.bytes = max(0, self._status("VmHWM") - self._before)

    @staticmethod
    def _status(field: str) -> int:
        for line in pathlib.Path("/proc/self/status").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
        return 0
