# SPDX-License-Identifier: Apache-2.0
"""One small checkpoint: ten arrays of 1 KiB, beside one file of as many bytes."""

import pathlib
import statistics
import time
from typing import Any

import numpy as np
from contenders.base import FileContender
from themes import Job

ARRAYS, ELEMENTS, TIMES = 10, 256, 20


class _Bytes(FileContender):
    def write(self, file: pathlib.Path, state: Any) -> None:
        file.write_bytes(b"".join(array.tobytes() for array in state.values()))


def run(job: Job) -> None:
    user = job.contender("one")
    (job.directory / "file").mkdir()
    file = _Bytes(job.directory / "file")
    times, limits = [], []
    for number in range(TIMES):
        state = {f"a{i}": np.full(ELEMENTS, number + i, np.float32) for i in range(ARRAYS)}
        limits.append(file.save(state).durable)
        times.append(user.save(state).durable)
    limit = statistics.median(limits)
    job.emit("one/durable", statistics.median(times[1:]), limit)
    if job.make.key == "stepwell":
        job.emit("one/new", statistics.median(
            [_new_store(user.directory / f"new{number}", state) for number in range(TIMES)]), limit)


def _new_store(path: pathlib.Path, state: dict[str, np.ndarray]) -> float:
    import stepwell

    start = time.perf_counter()
    with stepwell.open(path) as store:
        store.save(0, state).result()
    return time.perf_counter() - start
