# SPDX-License-Identifier: Apache-2.0
"""A pushed run's objects as the engine asks for them (db/transfer/run_objects.h)."""

from __future__ import annotations

import bisect
import threading
from collections import OrderedDict

from .. import _stepwell
from ..errors import StorageError
from . import run
from .object_store import ReadableStore
from .push_manifest import bucket_bytes
from .transfer import with_context

_HEAD_BYTES = 64 << 10  # asked for at first: the head of most lists, and all of short ones
_CACHE_BYTES = 32 << 20
_ENTRY_BYTES = 512  # what a range in the cache takes beside its data, at most


class RangeCache:
    """The ranges of objects that were read last, in so many bytes. Thread-safe. (An object never
    changes: a name has one content.)"""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._lock = threading.Lock()
        self._ranges: OrderedDict[tuple[str, int], bytes] = OrderedDict()  # by object and start
        self._starts: dict[str, list[int]] = {}  # ascending

    def get(self, name: str, start: int, length: int) -> bytes | None:
        """A range that one which was read has; None: there is none."""
        with self._lock:
            starts = self._starts.get(name, [])
            place = bisect.bisect_right(starts, start)
            if place == 0:
                return None
            first = starts[place - 1]
            data = self._ranges[name, first]
            if first + len(data) < start + length:
                return None
            self._ranges.move_to_end((name, first))
            return data[start - first:start - first + length]

    def drop(self, name: str) -> None:
        with self._lock:
            for start in self._starts.pop(name, []):
                self._bytes -= _ENTRY_BYTES + len(self._ranges.pop((name, start)))

    def put(self, name: str, start: int, data: bytes) -> None:
        if len(data) > self._bytes_max // 4:  # it would drive most others out
            return
        with self._lock:
            known = self._ranges.get((name, start))
            if known is not None and len(known) >= len(data):
                return
            if known is None:
                bisect.insort(self._starts.setdefault(name, []), start)
                self._bytes += _ENTRY_BYTES
            self._ranges[name, start] = data
            self._ranges.move_to_end((name, start))
            self._bytes += len(data) - len(known or b"")
            while self._bytes > self._bytes_max:
                (oldest, first), dropped = self._ranges.popitem(last=False)
                self._bytes -= _ENTRY_BYTES + len(dropped)
                self._starts[oldest].remove(first)
                if not self._starts[oldest]:
                    del self._starts[oldest]


class RunObjects:
    """What the engine reads of a run. Thread-safe. FileNotFoundError: it is not there."""

    def __init__(self, bucket: ReadableStore, lists: ReadableStore) -> None:
        """`lists`: the same place below steps/, so that a look at the steps lists no data."""
        self._bucket = bucket
        self._lists = lists
        self._cache = RangeCache(_CACHE_BYTES)

    def steps(self) -> list[int]:
        with with_context(f"listing {self._lists.url}"):
            keys = self._lists.list()
            if not keys and self._bucket.size(run.MARK) is None:
                raise StorageError(f"{self._bucket.url}: the run is not there any more")
        return run.listing_of((f"steps/{key}", size) for key, size in keys.items()).steps

    def list_head(self, step: int) -> bytes:
        key = run.step_key(step)
        wanted = _HEAD_BYTES
        with with_context(f"reading {self._bucket.url}/{key}"):
            while (data := run.read_range(self._bucket, key, 0, wanted)) is not None:
                size = run.head_bytes(self._bucket, key, data)
                if size <= len(data):
                    return data
                if len(data) == wanted:
                    wanted = size
                elif self._bucket.size(key) == len(data):  # it was not replaced: it is cut short
                    return data
        raise self._missing(key)

    def list(self, step: int) -> bytes:
        key = run.step_key(step)
        with with_context(f"reading {self._bucket.url}/{key}"):
            data = run.read_list(self._bucket, key)
        if data is None:
            raise self._missing(key)
        return data

    def read(self, name: str, start: int, length: int) -> bytes:
        """A range of an object of data/; fewer bytes where it ends before."""
        kept = self._cache.get(name, start, length)
        if kept is not None:
            return kept
        key = run.data_key(name)
        with with_context(f"reading {self._bucket.url}/{key}"):
            data: bytes | None
            try:
                data = b"".join(bucket_bytes(self._bucket, key, start, start + length, _nothing))
            except Exception:
                size = self._bucket.size(key)
                if size is not None and size >= start + length:
                    raise
                data = None if size is None else b""
        if data is None:
            raise self._missing(key)
        self._cache.put(name, start, data)
        return data

    def drop_cached(self, name: str) -> None:
        """Forgets what was kept of an object of data/: it was read wrong."""
        self._cache.drop(name)

    def _missing(self, key: str) -> FileNotFoundError:
        return FileNotFoundError(f"{self._bucket.url}/{key} is not there")


def _nothing() -> None:
    pass
