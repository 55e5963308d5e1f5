# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests: stores in temporary directories, programs, file systems."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import forks
import stepwell
from equality import same


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(path: Path) -> Iterator[stepwell.Store]:
    with stepwell.open(path) as opened:
        yield opened


@pytest.fixture
def round_trip(store: stepwell.Store) -> Callable[..., Any]:
    """Saves a tree, loads it into `like` (default: itself), checks that it is the same, and gives
    what loading without `like` gives."""
    steps = iter(range(1000))

    def run(tree: Any, like: Any = None) -> Any:
        step = next(steps)
        store.save(step, tree).result()
        assert same(store.load(step, like=tree if like is None else like), tree)
        return store.load(step)

    return run


XFS_BYTES = 512 << 20  # at least 300 MB; as a sparse file


@pytest.fixture(scope="module")
def xfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Returns the mount point of an XFS image: it can share blocks of files."""
    folder = tmp_path_factory.mktemp("xfs")
    image, point = folder / "image", folder / "mount"
    point.mkdir()
    with open(image, "wb") as file:
        file.truncate(XFS_BYTES)
    for command in (["/sbin/mkfs.xfs", "-q", image], ["mount", "-o", "loop", image, point]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (
            "the test cannot mount a file system of its own here (it needs root, and loop "
            f"devices): {done.stderr}")
    yield point
    subprocess.run(["umount", point], check=False)
    image.unlink()


Script = Callable[..., Any]
Run = Callable[..., tuple[int, str, str]]


def _anew(source: str, *arguments: object, environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", source, *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu", **environment})


def _starter(start: Script) -> Iterator[Script]:
    started: list[Any] = []

    def start_one(source: str, *arguments: object, **environment: str) -> Any:
        started.append(start(source, *arguments, environment=environment))
        return started[-1]

    yield start_one
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def _runner(start: Script) -> Run:
    def run(source: str, *arguments: object, **environment: str) -> tuple[int, str, str]:
        process = start(source, *arguments, **environment)
        out, err = process.communicate(timeout=300)
        return process.returncode, out, err

    return run


@pytest.fixture
def start_python() -> Iterator[Script]:
    """Starts Python programs; their stdout and stderr are pipes. Kills what is left."""
    yield from _starter(_anew)


@pytest.fixture
def start_jax() -> Iterator[Script]:
    """The same for programs that use JAX, in a process that has imported it (forks.py)."""
    yield from _starter(forks.start)


@pytest.fixture
def run_python(start_python: Script) -> Run:
    """Runs a Python program; (exit status, stdout, stderr)."""
    return _runner(start_python)


@pytest.fixture
def run_jax(start_jax: Script) -> Run:
    return _runner(start_jax)
