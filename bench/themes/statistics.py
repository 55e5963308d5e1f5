# SPDX-License-Identifier: Apache-2.0
"""Saves that take statistics of each array, in turn with saves that do not, of the same states."""

from __future__ import annotations

from statistics import median

import states
from themes import Job

SAVES = 7  # of each; of the first nothing counts


def run(job: Job) -> None:
    import jax.numpy as jnp

    for kind, dtype in (("fp32", jnp.float32), ("bf16", jnp.bfloat16)):
        state = states.ready(states.tree_map(lambda leaf, dtype=dtype: leaf.astype(dtype),
                                             job.state("jax")))
        users = [job.contender(f"statistics-{kind}-{taken}", statistics=taken)
                 for taken in (True, False)]
        durable: list[list[float]] = [[], []]
        cpu: list[list[float]] = [[], []]
        for turn in range(SAVES):
            state = states.ready(states.advance(state))
            for which in (0, 1) if turn % 2 else (1, 0):
                saved = users[which].save(state)
                if turn > 0:
                    durable[which].append(saved.durable)
                    cpu[which].append(saved.cpu)
        job.emit(f"statistics/{kind}-durable", *map(median, durable))
        job.emit(f"statistics/{kind}-cpu", *map(median, cpu))
