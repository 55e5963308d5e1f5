# SPDX-License-Identifier: Apache-2.0
"""The machine: what it is, what its disk and its memory can do, and its page cache."""

import ctypes
import importlib.metadata
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import time
from typing import Any

import numpy as np

engine = "io_uring"  # of fio; libaio once io_uring has failed
PACKAGES = ["numpy", "jax", "jaxlib", "orbax-checkpoint", "tensorstore"]


def describe(directory: pathlib.Path) -> dict[str, Any]:
    """What a reader needs to judge the figures."""
    cpu = platform.machine()
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    versions = {"python": platform.python_version(), "fio": fio_version() or "missing"}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "missing"
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": memory,
        "kernel": platform.release(),
        "filesystem": _filesystem(directory),
        "load_average": os.getloadavg()[0],
        "versions": versions,
    }


def _filesystem(directory: pathlib.Path) -> str:
    """Type and device of the longest mount point above `directory`."""
    best, answer = "", "unknown"
    for line in pathlib.Path("/proc/self/mounts").read_text().splitlines():
        device, mount, kind, options = line.split()[:4]
        inside = str(directory.resolve()).startswith(mount.rstrip("/") + "/") or mount == "/"
        if inside and len(mount) >= len(best):
            best, answer = mount, f"{kind} on {device} ({options})"
    return answer


def fio_version() -> str | None:
    fio = shutil.which("fio")
    if fio is None:
        return None
    return subprocess.run([fio, "--version"], capture_output=True, text=True).stdout.strip()


def disk_limit(file: pathlib.Path, kind: str, size_bytes: int) -> float | None:
    """The best of a few runs of fio in two shapes: single runs vary by half, always downwards."""
    runs = [fio(file, kind, size_bytes, *shape) for shape in (("1M", 16), ("4M", 12)) * 2]
    return max((run for run in runs if run is not None), default=None)


def fio(file: pathlib.Path, kind: str, size_bytes: int, block: str, depth: int) -> float | None:
    """Bytes per second of a sequential O_DIRECT write (of a new file, with its fsync) or read."""
    global engine
    if shutil.which("fio") is None:
        return None
    if kind == "write":
        file.unlink(missing_ok=True)
    while True:
        command = [
            "fio", "--name=limit", f"--filename={file}", f"--rw={kind}", f"--size={size_bytes}",
            f"--bs={block}", f"--iodepth={depth}", f"--ioengine={engine}", "--direct=1",
            "--end_fsync=1", "--output-format=json",
        ]  # fmt: skip
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode == 0 or engine == "libaio":
            break
        engine = "libaio"  # where io_uring is forbidden
    if result.returncode != 0:
        print(f"fio failed: {result.stderr.strip()[:200]}", file=sys.stderr)
        return None
    text = result.stdout
    job = json.loads(text[text.index("{"):])["jobs"][0]
    return float(job[kind]["bw_bytes"])


def warm_memory(size_bytes: int) -> None:
    """Touches memory and gives it back to the kernel. A virtual machine's host takes back what is
    free for some seconds; without this, whoever comes first would pay for getting it again."""
    np.ones(size_bytes, dtype=np.uint8)


class Memcpy:
    """Copies of arrays into memory that is there already: the floor of any snapshot."""

    def __init__(self, arrays: list[np.ndarray]) -> None:
        self._pairs = [(np.ones_like(array), array) for array in arrays]

    def seconds(self) -> float:
        start = time.perf_counter()
        for to, source in self._pairs:
            np.copyto(to, source)
        return time.perf_counter() - start


def sync(directory: pathlib.Path) -> None:
    """Makes the whole file system of `directory` durable (syncfs)."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            os.sync()
    finally:
        os.close(descriptor)


def drop_caches(directory: pathlib.Path) -> str:
    """Forgets what is cached of the files below `directory`; returns how."""
    sync(directory)
    for path in directory.rglob("*"):
        if path.is_file() and not path.is_symlink():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
    try:
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("3\n")
    except OSError:
        return "posix_fadvise"
    return "posix_fadvise and drop_caches"


class PeakMemory:
    """How far the process's resident memory grows within a `with` block, in bytes; None where the
    system does not tell."""

    def __enter__(self) -> "PeakMemory":
        self.bytes: int | None = None
        try:
            pathlib.Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
        except OSError:
            self._before = None
        else:
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
