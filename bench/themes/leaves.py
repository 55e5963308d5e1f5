# SPDX-License-Identifier: Apache-2.0
"""Many small leaves in one step: 4 KiB each, and 64 B each."""

import statistics

import machine
import states
from themes import Job, Timed

SAVES = 11  # in a row, of JAX arrays


def run_leaves(job: Job) -> None:
    _run(job, "leaves", job.settings["leaves"], 4096)
    if "jax" in job.make.kinds:
        _run_jax(job, job.settings["jax_leaves"])
    else:
        for row in ("leaves/jax-stall", "leaves/jax-durable"):
            job.cannot(row, "no JAX arrays")


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


def _run_jax(job: Job, count: int) -> None:
    """Saves one state after another, as a training loop does; returns the median."""
    user = job.contender("jax-leaves")
    saved = []
    for index in range(SAVES):
        tree = states.to_jax(states.make_leaves(count, 4096, seed=100 * job.seed + index))
        saved.append(user.save(tree))
    job.emit("leaves/jax-stall", statistics.median(save.stall for save in saved))
    job.emit("leaves/jax-durable", statistics.median(save.durable for save in saved))
    states.expect_equal(user.restore(states.target(tree)), tree)
