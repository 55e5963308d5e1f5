# SPDX-License-Identifier: Apache-2.0
"""The full state, saved and restored: throughput, stall, CPU, bytes."""

import gc
from typing import Any

import machine
import states
from themes import Job, Timed


def run(job: Job) -> None:
    for kind in job.make.kinds:
        _save_and_restore(job, kind, job.state(kind))


def _save_and_restore(job: Job, kind: str, state: Any) -> None:
    size = states.total_bytes(state)
    user = job.contender(f"full-{kind}")
    machine.warm_memory(2 * size)
    # The first save of a process pays for threads, imports and buffers: it has a row of its own.
    job.emit(f"full/{kind}/first", user.save(state).stall)
    state = states.ready(states.advance(state))
    gc.collect()
    machine.warm_memory(2 * size)
    saved = user.save(state)
    job.emit(f"full/{kind}/durable", size / saved.durable)
    if not user.durable:
        job.emit(f"full/{kind}/done", size / saved.done)
    job.emit(f"full/{kind}/stall", saved.stall)
    job.emit(f"full/{kind}/cpu", saved.cpu / (size / 1e9))
    job.emit(f"full/{kind}/written", saved.written, size)

    like = states.target(state)
    job.make_cold(user)
    with Timed() as timed:
        restored = states.ready(user.restore(like))
    job.emit(f"full/{kind}/restore", size / timed.seconds)
    job.emit(f"full/{kind}/read", timed.read, size)
    states.expect_equal(restored, state)
