# SPDX-License-Identifier: Apache-2.0
"""Peak memory beyond the state: each in a process that has done nothing else."""

from typing import Any

import states
from counters import PeakMemory
from themes import Job


def run_save_numpy(job: Job) -> None:
    _save(job, "NumPy")


def run_save_jax(job: Job) -> None:
    if "jax" in job.make.kinds:
        _save(job, "jax")


def _save(job: Job, kind: str) -> None:
    state = job.state(kind)
    user = job.contender(f"memory-{kind}")
    with PeakMemory() as peak:
        user.save(state)
    job.emit(f"memory/save-{kind}", peak.bytes, states.total_bytes(state))


def run_restore(job: Job) -> None:
    """Restores what the process of run_save_numpy left."""
    user = job.contender("memory-NumPy")
    user.step = 1
    like: Any = states.tree_map(states.empty_like, states.make_state(job.size_bytes, job.seed))
    with PeakMemory() as peak:
        restored = user.restore(like)
    size = states.total_bytes(restored)
    if peak.bytes is not None:
        job.emit("memory/restore", max(0, peak.bytes - size), size)
    states.expect_equal(restored, job.state())


def run_staging(job: Job) -> None:
    """A state three times as large as the staging memory. Stepwell only."""
    if job.make.key != "stepwell":
        return
    bound = max(20 << 20, job.size_bytes // 3 >> 20 << 20)  # the least is about 17 MiB
    state = states.make_state(3 * bound)
    user: Any = job.contender("staging", staging_bytes=bound)
    user.save(states.make_state(24 * 4096))
    with PeakMemory() as peak:
        user.save(state)
    job.emit("memory/staging", user.writer().stats()["staging_bytes_max"], bound)
    job.emit("memory/bounded", peak.bytes, bound)
