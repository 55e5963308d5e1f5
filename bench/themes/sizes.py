# SPDX-License-Identifier: Apache-2.0
"""Saves of states of several sizes: how long the caller waits, and the CPU time."""

import gc
import time
from statistics import median
from typing import Any

import machine
import numpy as np
import states
from themes import Job

SIZES_MB = (1, 10, 100, 1000)
SAVES = 9  # of each; of the first two, which take memory, nothing counts


def run(job: Job) -> None:
    for size_mb in SIZES_MB:
        state = states.make_state(min(size_mb * 1_000_000, 2 * job.size_bytes), job.seed)
        size = states.total_bytes(state)
        user = job.contender(f"sizes-{size_mb}")
        copy = states.tree_map(np.zeros_like, state)
        gc.collect()
        machine.warm_memory(2 * size)
        stalls, copies, cpu = [], [], []
        for _ in range(SAVES):
            state = states.advance(state)
            copies.append(_copy(copy, state))
            saved = user.save(state)
            stalls.append(saved.stall)
            cpu.append(saved.cpu)
        job.emit(f"sizes/{size_mb}-stall", median(stalls[2:]), median(copies[2:]))
        job.emit(f"sizes/{size_mb}-cpu", median(cpu[2:]) / (size / 1e9))


def _copy(to: Any, state: Any) -> float:
    """Seconds of one thread, into memory that is there."""
    start = time.perf_counter()
    for there, here in zip(states.leaves(to), states.leaves(state), strict=True):
        np.copyto(there, here)
    return time.perf_counter() - start
