# SPDX-License-Identifier: Apache-2.0
"""Small states saved one after the other: what a commit costs."""

import statistics

import states
from themes import Job


def run(job: Job) -> None:
    user = job.contender("commit")
    user.save(states.make_state(1_000_000, seed=9999))
    times = []
    for index in range(job.settings["commits"]):
        state = states.make_state(1_000_000, seed=1000 * job.seed + index)
        times.append(user.save(state).durable)
    job.emit("commit/durable", statistics.median(times))
    job.emit("commit/slowest", max(times))
    states.expect_equal(user.restore(states.target(state)), state)
