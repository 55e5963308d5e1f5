# SPDX-License-Identifier: Apache-2.0
"""One array in all steps of a fine-tuning, beside a load of it from each step. Stepwell only."""

import pathlib
import shutil

import machine
import numpy as np
import stepwell
from themes import Job, Timed


def run(job: Job) -> None:
    path = job.directory / "history"
    count: int = job.settings["steps"]
    rng = np.random.default_rng(job.seed)
    base = {f"base_{index}": rng.standard_normal(1 << 18).astype(np.float32) for index in range(8)}
    wanted = rng.standard_normal((count, 64, 256)).astype(np.float32)
    with stepwell.open(path) as store:
        for step in range(count):
            store.save(step, {"base": base, "tuned": wanted[step]})
    with _cold(path) as store:
        with Timed() as timed:
            found = store.history("tuned").values
        with Timed() as compared:
            changed = store.changed(0, count - 1)
    with _cold(path) as store, Timed() as each:
        loaded = np.stack([store.load(step, "tuned") for step in store])
    shutil.rmtree(path)
    if not np.array_equal(found, wanted) or not np.array_equal(loaded, wanted):
        raise RuntimeError("other values than were saved")
    if list(changed.changed) != ["tuned"]:
        raise RuntimeError(f"{changed} instead of one leaf")
    job.emit("history/time", timed.seconds, each.seconds)
    job.emit("history/read", timed.read, wanted.nbytes)
    job.emit("history/changed", compared.seconds)


def _cold(path: pathlib.Path) -> stepwell.Store:
    machine.drop_cached(path)
    return stepwell.open(path, mode="r")
