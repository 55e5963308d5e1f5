# SPDX-License-Identifier: Apache-2.0
"""How a store does, as another process sees it: one look after the other."""

from __future__ import annotations

import fcntl
import heapq
import itertools
import json
import os
import re
import statistics
import struct
import time
from typing import Any, NamedTuple

from .. import _stepwell
from .._metrics import numbers_in
from .._runtime.files import read_small
from .._store import Store
from ..errors import Error
from .place import Place

_STEPS_MAX = 60  # of the newest, which rates are about
_HOLDER_BYTES_MAX = 4096
_FLOCK = "hhqqi"  # of fcntl.h: type, whence, start, length, process


class Saved(NamedTuple):
    """A step that a look has seen. `owned_bytes`: those of the chunks that its save wrote.
    `save_s`: how long its save took, from the call until its commit began; None: not known."""

    step: int
    time_s: float
    save_s: float | None
    logical_bytes: int
    owned_bytes: int
    metrics: dict[str, float]


class Looks:
    """Looks at a store that another process may be writing to. Steps that retention has deleted
    since they were seen still count for rates."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._place = Place(store)
        self._seen: dict[tuple[int, int], Saved] = {}  # by step and time of its commit

    def look(self) -> dict[str, Any]:
        """What there is to say, as JSON has it. Only what is known from outside: what follows the
        store in the process that writes, that process alone knows."""
        self._place.check()
        records = self._store._backend.whole("a look from outside").steps()
        now = time.time()
        newest = self._newest(records)
        stats = self._store.stats()
        untainted = [record for record in records if not record.taint]
        latest = max(untainted, key=lambda record: record.step, default=None)
        return {
            "store": self._store.path,
            "steps": len(records),
            "first": min((record.step for record in records), default=None),
            "latest": None if latest is None else {
                "step": latest.step, "age_s": now - latest.time_ns / 1e9,
                **self._sizes(latest)._asdict()},
            "pinned": [record.step for record in records if record.pinned],
            "tainted": {str(record.step): record.taint for record in records if record.taint},
            "last_verified": max((record.step for record in records if record.verified),
                                 default=None),
            "rate": _rate(newest),
            "newest": {"step": [each.step for each in newest],
                       "time_s": [each.time_s for each in newest],
                       "save_s": [each.save_s for each in newest],
                       "logical_bytes": [each.logical_bytes for each in newest],
                       "owned_bytes": [each.owned_bytes for each in newest]},
            "metrics": _columns(newest),
            "space": stats["space"] if stats["space"]["total_bytes"] else None,  # of a pushed run
            "disk": _disk(self._store.path),
            "writer": _writer(self._store.path),
            "readers": [{"text": text, "behind": _behind(text, records)}
                        for text in stats["old_pins"]],
            "problems": stats["recovery"]["problems"],
        }

    def _newest(self, records: list[_stepwell.StepRecord]) -> list[Saved]:
        """The steps that were committed last, ascending by the time of their commits."""
        for record in heapq.nlargest(_STEPS_MAX, records, key=lambda record: record.time_ns):
            key = record.step, record.time_ns
            if key not in self._seen:
                sizes = self._sizes(record)
                self._seen[key] = Saved(
                    record.step, record.time_ns / 1e9,
                    record.save_ns / 1e9 if record.save_ns else None, sizes.logical_bytes,
                    sizes.owned_bytes, self._metrics(record.step))
        kept = heapq.nlargest(_STEPS_MAX, self._seen, key=lambda key: key[1])
        self._seen = {key: self._seen[key] for key in reversed(kept)}
        return list(self._seen.values())

    def _sizes(self, record: _stepwell.StepRecord) -> _Sizes:
        """Of a step of several processes: as long as it can be opened, of all of them."""
        if record.group is not None and len(record.group.parts) > 1:
            try:
                reader = self._store._source(record.step).reader
                return _Sizes(reader.logical_bytes, reader.owned_bytes)
            except Error:  # deleted meanwhile, or damaged
                pass
        return _Sizes(record.logical_bytes, record.owned_bytes)

    def _metrics(self, step: int) -> dict[str, float]:
        try:
            metrics = json.loads(self._store._source(step).reader.metrics_json or "{}")
        except (Error, ValueError, RecursionError):
            return {}
        return numbers_in(metrics)


class _Sizes(NamedTuple):
    logical_bytes: int
    owned_bytes: int


def _columns(newest: list[Saved]) -> dict[str, list[float | None]]:
    """Each metric over the steps; None where a step lacks it."""
    names = dict.fromkeys(name for each in newest for name in each.metrics)
    return {name: [each.metrics.get(name) for each in newest] for name in names}


def intervals(times_s: list[float]) -> list[float]:
    """From each commit to the next, in seconds. A clock that was set back gives none below 0."""
    return [max(0.0, later - sooner) for sooner, later in itertools.pairwise(times_s)]


def _rate(newest: list[Saved]) -> dict[str, Any] | None:
    """Of the newest steps; None where there are not two of different times."""
    seconds = newest[-1].time_s - newest[0].time_s if newest else 0.0
    if not seconds > 0:
        return None
    between = intervals([each.time_s for each in newest])
    return {
        "steps": len(between), "seconds": seconds, "steps_per_s": len(between) / seconds,
        "owned_bytes_per_s": sum(each.owned_bytes for each in newest[1:]) / seconds,
        "logical_bytes_per_s": sum(each.logical_bytes for each in newest[1:]) / seconds,
        "interval_median_s": statistics.median(between), "interval_max_s": max(between)}


def _disk(path: str) -> dict[str, int] | None:
    """None for a run that is not on a disk of this machine."""
    try:
        disk = os.statvfs(path)
    except OSError:
        return None
    return {"free_bytes": disk.f_bavail * disk.f_frsize,
            "total_bytes": disk.f_blocks * disk.f_frsize}


def _writer(path: str) -> dict[str, Any] | None:
    """Whether a process has the store open for writing, and which. None where that cannot be seen,
    as of a pushed run. It asks for the lock, and takes none."""
    file = os.path.join(path, "LOCK")
    try:
        held = read_small(file, _HOLDER_BYTES_MAX, follow=False)
        if held is None:
            return None
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            lock = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK,
                               struct.pack(_FLOCK, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0))
        finally:
            os.close(descriptor)
    except (OSError, Error):
        return None
    if struct.unpack(_FLOCK, lock)[0] == fcntl.F_UNLCK:
        return {"running": False, "process": None}
    process = re.match(rb"pid=(\d{1,10}) ", held)
    return {"running": True, "process": int(process[1]) if process else None}


def _behind(pin: str, records: list[_stepwell.StepRecord]) -> int | None:
    """How many steps were committed since what a reader reads; None where it does not say."""
    commit = re.search(r"commit (\d+)", pin)
    return sum(record.commit > int(commit[1]) for record in records) if commit else None
