# SPDX-License-Identifier: Apache-2.0
"""The machine: what it is, its page cache, its memory."""

import ctypes
import importlib
import importlib.metadata
import os
import pathlib
import platform
import time
from typing import Any

import counters
import numpy as np

SETTLE_SECONDS_MAX = 10.0
PACKAGES = ["stepwell", "numpy", "jax", "jaxlib", "flax", "orbax-checkpoint", "tensorstore",
            "safetensors", "equinox"]


def describe(directory: pathlib.Path) -> dict[str, Any]:
    """Describes the machine, so that a reader can judge the figures."""
    cpu = platform.machine()
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "filesystem": _filesystem(directory),
        "disk": _disk(directory),
        "load_average": os.getloadavg()[0],
        "versions": {"python": platform.python_version(),
                     **{package: version(package) for package in PACKAGES}},
    }


def version(package: str) -> str:
    try:
        if package == "stepwell":  # which lies in a build directory
            return str(importlib.import_module(package).__version__)
        return importlib.metadata.version(package)
    except ImportError:  # PackageNotFoundError is one, too
        return "missing"


def _filesystem(directory: pathlib.Path) -> str:
    """Type, device and options of the longest mount point above `directory`."""
    best, answer = "", "unknown"
    for line in pathlib.Path("/proc/self/mounts").read_text().splitlines():
        device, mount, kind, options = line.split()[:4]
        inside = f"{directory.resolve()}/".startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, answer = mount, f"{kind} on {device} ({options})"
    return answer


def _disk(directory: pathlib.Path) -> str:
    entry = counters.device(directory)
    if entry is None:
        return "no block device"
    if (entry / "partition").exists():
        entry = entry.parent

    def read(name: str) -> str:
        try:
            return (entry / name).read_text().strip()
        except OSError:
            return ""

    size = int(read("size") or 0) * 512
    words = [read("device/model") or entry.name, f"{size / 1e9:.0f} GB",
             f"cache {read('queue/write_cache')}", f"scheduler {read('queue/scheduler')}",
             f"{read('queue/nr_requests')} requests"]
    return ", ".join(word for word in words if word)


def warm_memory(size_bytes: int) -> None:
    """Touches memory and gives it back to the kernel. A virtual machine's host takes back what is
    free for some seconds; without this, whoever comes first would pay for getting it again."""
    np.ones(size_bytes, dtype=np.uint8)


def sync(directory: pathlib.Path) -> None:
    """Makes the whole file system of `directory` durable (syncfs)."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            os.sync()
    finally:
        os.close(descriptor)


def settle(directory: pathlib.Path) -> None:
    """Syncs, and waits until the device has nothing more to do: a file system may tell it of freed
    blocks (ext4's `discard`) for a second after, and whoever came next would wait for that."""
    sync(directory)
    entry = counters.device(directory)
    if entry is None:
        return
    before, quiet, deadline = "", 0, time.monotonic() + SETTLE_SECONDS_MAX
    while quiet < 5 and time.monotonic() < deadline:
        time.sleep(0.1)
        now = (entry / "stat").read_text()
        quiet = quiet + 1 if now == before else 0
        before = now


CACHE = "fsync and posix_fadvise(DONTNEED) of each file"


def drop_cached(directory: pathlib.Path) -> None:
    """Forgets what is cached of the files below `directory`, and of no others: dropping all caches
    would make every process read its own program again, and count that."""
    for path in directory.rglob("*"):
        if path.is_file() and not path.is_symlink():
            try:
                descriptor = os.open(path, os.O_RDONLY)
            except FileNotFoundError:  # a writer removes files behind its commits
                continue
            os.fsync(descriptor)  # what is not written yet would stay
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
