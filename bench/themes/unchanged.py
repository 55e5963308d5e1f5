# SPDX-License-Identifier: Apache-2.0
"""A fine-tuning of which one array in a hundred changes from step to step: bytes and time of its
later steps, beside those of the first, which is written as a whole."""

import counters
import machine
import states
from themes import Job, Timed

STEPS = 4


def run(job: Job) -> None:
    for kind in ("objects", "content"):
        user = job.contender(f"unchanged-{kind}", keep=STEPS + 1)
        base = states.to_jax(states.make_state(job.size_bytes // 2, seed=job.seed))
        total = states.total_bytes(base)
        tuned_bytes = max(total // 100, 4096)
        seconds, written = [], []
        for index in range(STEPS):
            tuned = states.make_state(tuned_bytes, seed=1000 * (1 + job.seed) + index)
            # New objects with the same content are what a jitted step returns for what it keeps.
            same = base if kind == "objects" else states.to_jax(states.make_state(
                job.size_bytes // 2, seed=job.seed))
            before = counters.written_bytes()
            with Timed() as timed:
                user.save({"base": same, "tuned": states.to_jax(tuned)})
            machine.sync(user.directory)
            seconds.append(timed.seconds)
            after = counters.written_bytes()
            if before is not None and after is not None:
                written.append(after - before)
        later = sorted(seconds[1:])[len(seconds[1:]) // 2]
        job.emit(f"unchanged/{kind}-time", later, seconds[0])
        if written:
            job.emit(f"unchanged/{kind}-written", sum(written[1:]) / len(written[1:]), total)
