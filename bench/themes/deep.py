# SPDX-License-Identifier: Apache-2.0
"""Saves to a store of very many live steps, by turns with saves to one of few. Stepwell only."""

import pathlib
import shutil
import statistics
import time
from collections.abc import Callable
from typing import Any

import machine
import numpy as np
import stepwell
from stepwell import policy
from themes import Job

FEW = 100
SAVES_MAX = 1000  # measured, in each store
TURN = 50  # so many at a time


def _dense(step: int) -> dict[str, np.ndarray]:
    return {"w": np.full(1024, step, np.float32)}


_FROZEN = {f"frozen_{index:02}": np.full(1024, index, np.float32) for index in range(63)}


def _shared(step: int) -> dict[str, np.ndarray]:
    return {**_FROZEN, "w": np.full(1024, step, np.float32)}


def run(job: Job) -> None:
    for kind, make in (("dense", _dense), ("shared", _shared)):
        counts = {FEW: 0, job.settings["many"]: 0}
        stores = {count: _filled(job.directory / f"deep-{kind}-{count}", count, make)
                  for count in counts}
        machine.settle(job.directory)
        seconds: dict[int, list[float]] = {count: [] for count in counts}
        for turn in range(min(SAVES_MAX, max(counts)) // TURN):
            for count in sorted(counts, reverse=bool(turn % 2)):
                store = stores[count]
                for _ in range(TURN):
                    step = count + counts[count]
                    counts[count] += 1
                    start = time.perf_counter()
                    store.save(step, make(step)).result()
                    seconds[count].append(time.perf_counter() - start)
        for count, store in stores.items():
            if len(store) != count:
                raise RuntimeError(f"{len(store)} live steps instead of {count}")
            store.close()
            shutil.rmtree(store.path)
        for row, of in (("p99", _p99), ("median", statistics.median)):
            job.emit(f"deep/{kind}-{row}", of(seconds[job.settings["many"]]), of(seconds[FEW]))


def _p99(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=100)[98]


def _filled(path: pathlib.Path, count: int, make: Callable[[int], Any]) -> stepwell.Store:
    store = stepwell.open(path, keep=policy.LatestN(count))
    for step in range(count):
        store.save(step, make(step))
    store.wait()
    return store
