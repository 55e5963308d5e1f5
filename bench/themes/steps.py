# SPDX-License-Identifier: Apache-2.0
"""Opening a store with many steps of many leaves, which was closed cleanly. Stepwell only."""

import pathlib

import machine
import numpy as np
import stepwell
from themes import Job, Timed


def run(job: Job) -> None:
    if job.make.key != "stepwell":
        return
    path = pathlib.Path(job.settings["steps_directory"])
    count: int = job.settings["steps"]
    if not path.exists():
        _make(path, count, job.settings["step_leaves"])
    for mode in ("reader", "writer"):
        machine.drop_cached(path)
        with Timed() as timed:
            store = stepwell.open(path, mode="r" if mode == "reader" else "a")
        rate = job.settings["limits"].get("read")
        job.emit(f"steps/{mode}", timed.seconds,
                 timed.read / rate if rate and timed.read else None)
        with store:
            with Timed() as timed:
                steps = store.steps()
            if mode == "reader":
                job.emit("steps/list", timed.seconds)
            if steps != list(range(count)):
                raise RuntimeError(f"{len(steps)} steps are there instead of {count}")


def _make(path: pathlib.Path, count: int, leaves: int) -> None:
    names = [f"leaf_{i:04}" for i in range(leaves)]
    with stepwell.open(path) as store:
        for step in range(count):
            rows = np.full((leaves, 4), step, np.float32)
            store.save(step, dict(zip(names, rows, strict=True)))
