# SPDX-License-Identifier: Apache-2.0
"""Buckets for tests of push and pull, also ones that fail."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import obstore
import obstore.store
import pytest
import stepwell
from fsspec.implementations.memory import MemoryFileSystem
from stepwell._remote import object_store, push


def state() -> dict[str, Any]:
    rng = np.random.default_rng(5)
    return {
        "params": {"w": rng.standard_normal((700, 1000)).astype(np.float32),
                   "b": np.arange(9).astype(ml_dtypes.bfloat16)},
        "opt": [jnp.zeros((300, 50)), {"count": 3, "name": "adam", "none": None}],
    }


def equal(one: Any, other: Any) -> None:
    """Trees as Orbax gives them back."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            equal(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            equal(left, right)
    elif isinstance(one, (np.ndarray, jax.Array)):
        left, right = np.asarray(one), np.asarray(other)
        assert (left.dtype, left.shape) == (right.dtype, right.shape)
        assert left.tobytes() == right.tobytes()
    else:
        assert one == other


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push, "_DATA_FILE_BYTES", 1 << 20)


@pytest.fixture
def saved(store: stepwell.Store) -> stepwell.Store:
    store.save(7, state(), metadata={"note": "ä"}, metrics={"loss": 0.5}).result()
    return store


@pytest.fixture
def other(tmp_path: Path) -> Iterator[stepwell.Store]:
    with stepwell.open(tmp_path / "other") as opened:
        yield opened


Place = tuple[Any, dict[str, Any]]


def places(tmp_path: Path) -> dict[str, Place]:
    memory = MemoryFileSystem()
    root = f"/{tmp_path.name}"
    return {
        "obstore local": (obstore.store.LocalStore(tmp_path / "bucket", mkdir=True),
                          {"prefix": "run/7"}),
        "obstore memory": (obstore.store.MemoryStore(), {"prefix": "run/7"}),
        "path": (tmp_path / "bucket" / "run" / "7", {}),
        "URL": (f"file://{tmp_path}/bucket", {"prefix": "/run/7/"}),
        "fsspec local": (fsspec.filesystem("file"), {"prefix": f"{tmp_path}/bucket/run/7"}),
        "fsspec memory": (memory, {"prefix": f"{root}/run/7"}),
        "fsspec URL": (f"memory:/{root}/run/7", {}),
    }


class Cut(Exception):
    pass


class Faulty:
    """A bucket of which the k-th call of a kind does something else."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._lock = threading.Lock()
        self.url = inner.url
        self.puts = self.reads = 0
        self.put_keys: list[str] = []
        self.on_put: Callable[[int, str], None] = lambda number, key: None
        self.on_read: Callable[[int, str, bytes], bytes] = lambda number, key, data: data

    def _count(self, key: str) -> None:
        with self._lock:
            self.puts += 1
            self.put_keys.append(key)
            self.on_put(self.puts, key)

    def put(self, key: str, data: bytes) -> None:
        self._count(key)
        self._inner.put(key, data)

    def put_file(self, key: str, path: str) -> None:
        self._count(key)
        self._inner.put_file(key, path)

    def read(self, key: str, start: int, length: int) -> bytes:
        data = bytes(self._inner.read(key, start, length))
        with self._lock:
            self.reads += 1
            return self.on_read(self.reads, key, data)

    def size(self, key: str) -> int | None:
        return self._inner.size(key)

    def delete(self, key: str) -> None:
        self._inner.delete(key)

    def list(self) -> dict[str, int]:
        return self._inner.list()


@pytest.fixture(params=["obstore", "fsspec"])
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Faulty:
    if request.param == "obstore":
        return Faulty(object_store.open_object_store(obstore.store.MemoryStore(), "p", None))
    files = fsspec.filesystem("file")
    return Faulty(object_store.open_object_store(files, f"{tmp_path}/p", None))


def cut_at(put: int) -> Callable[[int, str], None]:
    def check(number: int, key: str) -> None:
        if number >= put:
            raise Cut("the wire was cut")

    return check
