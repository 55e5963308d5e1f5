# SPDX-License-Identifier: Apache-2.0
"""Weights in bfloat16 of which one in a hundred changes from step to step, from a training to a
follower in another process: how long until they are durable, seen and applied there; what the
follower reads, and what memory it takes; beside published encoders of such changes. Stepwell
only."""

import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, NamedTuple

import numpy as np
import states
import stepwell
from themes import Job

STEPS = 8
WARM_STEPS = 4  # the first saves and updates pay for threads and memory
WAIT_SECONDS = 10e-3  # of a follower, beyond its reads

BENCH = pathlib.Path(__file__).resolve().parents[1]


class _Published(NamedTuple):
    """One step: seconds from the call of save until each, and bytes."""

    durable: float
    seen: float
    applied: float
    read: int
    peak: int | None
    changed: int


def run(job: Job) -> None:
    size = job.size_bytes * 5 // 2  # 2 GB at the default
    encoders = _encoders(job, size) if job.settings["encoders"] else {}
    # The step before, which a difference needs, fits into the second's staging memory.
    for kind, options in (("default", {}), ("staged", {"staging_bytes": max(20 << 20, 4 * size)})):
        with tempfile.TemporaryDirectory(dir=job.directory) as folder:
            steps, total = _publish(size, job.seed, f"{folder}/store", options)
        for of in ("durable", "seen", "applied"):
            job.emit(f"publish/{kind}-{of}", _median(steps, of),
                     total / job.settings["limits"]["memcpy rate"])
        for name, seconds in encoders.items():
            job.emit(f"publish/{kind}-{name}", _median(steps, "applied"), seconds)
    _follower(job, steps)


def _median(steps: list[_Published], of: str) -> float:
    return float(statistics.median(getattr(step, of) for step in steps[WARM_STEPS:]))


def _follower(job: Job, steps: list[_Published]) -> None:
    waits = [step.seen - step.durable for step in steps[WARM_STEPS:]]
    job.emit("publish/wait", statistics.median(waits))
    job.emit("publish/wait-worst", max(waits))
    read = _median(steps, "read")
    job.emit("publish/read", read, _median(steps, "changed"))
    if "read" in job.settings["limits"]:
        job.emit("publish/behind", _median(steps, "applied") - _median(steps, "durable"),
                 WAIT_SECONDS + read / job.settings["limits"]["read"])
    peaks = [step.peak for step in steps if step.peak is not None]
    job.emit("publish/memory", max(peaks, default=None))


def _publish(size_bytes: int, seed: int, path: str,
             options: dict[str, Any]) -> tuple[list[_Published], int]:
    """Every step as it was published, and the bytes of one."""
    state = states.make_weights(size_bytes, seed)
    generator = np.random.default_rng(seed)
    published = []
    with stepwell.open(path, delta=True, **options) as store:
        store.save(0, state).result()
        with subprocess.Popen([sys.executable, str(BENCH / "follower.py"), path, str(STEPS)],
                              stdout=subprocess.PIPE) as follower:
            try:
                _told(follower, 0)
                for step in range(1, STEPS + 1):
                    changed = states.nudge(state, generator)
                    start = time.monotonic()  # the follower's clock, too
                    store.save(step, state).result()
                    durable = time.monotonic()
                    told = _told(follower, step)
                    digest = str(stepwell.digest(state))
                    if told["digest"] != digest:
                        raise states.WrongBytes(f"step {step} is {digest}, followed {told}")
                    published.append(_Published(durable - start, told["seen"] - start,
                                                told["applied"] - start, told["read"],
                                                told["peak"], changed))
            finally:
                follower.kill()
    return published, states.total_bytes(state)


def _told(follower: "subprocess.Popen[bytes]", step: int) -> dict[str, Any]:
    """What the follower tells of `step`, once it holds it."""
    assert follower.stdout is not None
    line = follower.stdout.readline()
    if not line:
        raise RuntimeError(f"the follower ended with status {follower.wait()}")
    told: dict[str, Any] = json.loads(line)
    if told["step"] != step:
        raise RuntimeError(f"the follower holds step {told['step']} instead of {step}")
    return told


def _encoders(job: Job, size_bytes: int) -> dict[str, float]:
    """Seconds of each encoder for one such step."""
    python, checkouts = job.settings["encoders"]
    result = subprocess.run(
        [python, str(BENCH / "encoders.py"), checkouts, str(job.directory), str(size_bytes),
         str(job.seed)], stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(result.stdout)
    return found
