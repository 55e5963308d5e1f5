# SPDX-License-Identifier: Apache-2.0
"""Measures the machine itself: fio and memcpy, in every round."""

import json
import pathlib
import shutil
import subprocess
import sys
import time
from typing import Any, NamedTuple

import machine
import numpy as np
import states

engine = "io_uring"  # of fio; libaio once io_uring has failed


class Sizes(NamedTuple):
    """The sizes of the states, in bytes."""

    state: int
    part: int
    leaves: int
    tiny: int
    commit: int


class Memcpy:
    """Copies of arrays into memory that is there already: the floor of any snapshot."""

    def __init__(self, size_bytes: int) -> None:
        arrays = states.leaves(states.make_state(size_bytes))
        self._pairs = [(np.ones_like(array), array) for array in arrays]
        self._bytes = sum(array.nbytes for array in arrays)

    def measure(self) -> dict[str, float]:
        best = min(self._run() for _ in range(2))
        return {"memcpy": best[0], "memcpy rate": self._bytes / best[0],
                "memcpy cpu": best[1] / (self._bytes / 1e9)}

    def _run(self) -> tuple[float, float]:
        cpu, start = time.process_time(), time.perf_counter()
        for to, source in self._pairs:
            np.copyto(to, source)
        return time.perf_counter() - start, time.process_time() - cpu


def measure(directory: pathlib.Path, sizes: Sizes, syncs: int) -> dict[str, float]:
    """The disk's limits by the names that rows.py uses: bytes per second, and seconds."""
    file = directory / "fio.dat"
    whole = -(-sizes.state // 2**20) * 2**20
    found: dict[str, float | None] = {
        "write": _best(file, "write", whole),
        "read": _best(file, "read", whole),
        "read 4k": _seconds(file, "randread", 4096, whole, 200 * syncs),
    }
    for name, size in (("leaves", sizes.leaves), ("tiny", sizes.tiny), ("commit", sizes.commit)):
        block = -(-size // 4096) * 4096
        found[f"sync {name}"] = _seconds(file, "write", block, block * syncs, syncs)
        if name != "commit":
            found[f"read {name}"] = _seconds(file, "read", block, block * syncs, syncs)
    file.unlink(missing_ok=True)
    if found["read"]:
        found["read part"] = sizes.part / found["read"]
    return {name: value for name, value in found.items() if value}


def _best(file: pathlib.Path, kind: str, size_bytes: int) -> float | None:
    """Bytes per second: the best of a few runs of fio in two shapes, because single runs vary by
    half, always downwards. A write is of a new file, and its fsync counts."""
    machine.warm_memory(2 * size_bytes)
    rates = []
    for block, depth in (("1M", 16), ("4M", 12)) * 2:
        if kind == "write":
            file.unlink(missing_ok=True)
        job = _fio(file, kind, f"--size={size_bytes}", f"--bs={block}", f"--iodepth={depth}",
                   "--end_fsync=1")
        if job is not None:
            rates.append(float(job[kind]["bw_bytes"]))
    return max(rates, default=None)


def _seconds(file: pathlib.Path, kind: str, block_bytes: int, size_bytes: int,
             count: int) -> float | None:
    """Seconds for one request of exactly `block_bytes`, a write with its fdatasync: the mean of
    `count` of them one after the other, in a new file where it writes."""
    options = [f"--size={size_bytes}", f"--bs={block_bytes}", "--iodepth=1",
               f"--number_ios={count}"]
    if kind == "write":
        file.unlink(missing_ok=True)
        options.append("--fdatasync=1")
    job = _fio(file, kind, *options)
    if job is None:
        return None
    side = job["write" if kind == "write" else "read"]
    mean_ns = side["lat_ns"]["mean"]
    if kind == "write":
        mean_ns += job["sync"]["lat_ns"]["mean"]
    return float(mean_ns) / 1e9


def _fio(file: pathlib.Path, kind: str, *options: str) -> dict[str, Any] | None:
    global engine
    if shutil.which("fio") is None:
        return None
    while True:
        command = ["fio", "--name=limit", f"--filename={file}", f"--rw={kind}", "--direct=1",
                   f"--ioengine={engine}", "--output-format=json", *options]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode == 0 or engine == "libaio":
            break
        engine = "libaio"  # where io_uring is forbidden
    if result.returncode != 0:
        print(f"fio failed: {result.stderr.strip()[:200]}", file=sys.stderr)
        return None
    text = result.stdout
    job: dict[str, Any] = json.loads(text[text.index("{"):])["jobs"][0]
    return job


def copy_seconds(source: pathlib.Path, to: pathlib.Path) -> float:
    """Seconds for a cold and durable copy of the files below `source`: the better of `cp` with a
    sync after it, and of dd past the page cache in blocks of 4 MiB. Removes the copies."""
    files = sorted(file for file in source.rglob("*") if file.is_file())
    by_hand = [["dd", f"if={file}", f"of={to / str(index)}", "bs=4M", "iflag=direct",
                "oflag=direct", "conv=fsync"] for index, file in enumerate(files)]
    return min(_copy([["cp", "-r", str(source), str(to / "copy")]], source, to),
               _copy(by_hand, source, to))


def _copy(commands: list[list[str]], source: pathlib.Path, to: pathlib.Path) -> float:
    machine.drop_cached(source)
    to.mkdir()
    try:
        start = time.perf_counter()
        for command in commands:
            subprocess.run(command, capture_output=True, check=True)
        machine.sync(to)
        return time.perf_counter() - start
    finally:
        shutil.rmtree(to)


def fio_version() -> str | None:
    if shutil.which("fio") is None:
        return None
    return subprocess.run(["fio", "--version"], capture_output=True, text=True,
                          check=False).stdout.strip()
