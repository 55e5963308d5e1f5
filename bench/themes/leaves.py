# SPDX-License-Identifier: Apache-2.0
"""Many small leaves in one step: 4 KiB each, and 64 B each."""

import machine
import states
from themes import Job, Timed


def run_leaves(job: Job) -> None:
    _run(job, "leaves", job.settings["leaves"], 4096)


def run_tiny(job: Job) -> None:
    _run(job, "tiny", job.settings["tiny"], 64)


def _run(job: Job, theme: str, count: int, leaf_bytes: int) -> None:
    user = job.contender(theme)
    user.save(states.make_leaves(100, leaf_bytes, seed=99))  # its threads and buffers are there now
    tree = states.make_leaves(count, leaf_bytes, job.seed)
    machine.warm_memory(job.size_bytes)
    saved = user.save(tree)
    job.emit(f"{theme}/durable", saved.durable)
    job.emit(f"{theme}/stall", saved.stall)

    like = states.target(tree)
    job.make_cold(user)
    with Timed() as timed:
        restored = user.restore(like)
    job.emit(f"{theme}/restore", timed.seconds)
    states.expect_equal(restored, tree)
    if user.key == "stepwell":
        job.make_cold(user)
        with user.reader() as store:  # type: ignore[attr-defined]
            with Timed() as timed:
                restored = store.load()
        job.emit(f"{theme}/open", timed.seconds)
        states.expect_equal(restored, tree)
