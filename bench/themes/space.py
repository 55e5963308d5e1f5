# SPDX-License-Identifier: Apache-2.0
"""Many steps of which the newest five are kept: bytes to the disk for each byte saved."""

import counters
import machine
import states
from themes import Job

KEPT = 5


def run(job: Job) -> None:
    user = job.contender("space", keep=KEPT)
    written = counters.written_bytes()
    device = counters.device_written_bytes(user.directory)
    saved = 0
    for index in range(job.settings["space_steps"]):
        state = states.make_state(job.size_bytes // 8, seed=1000 * job.seed + index)
        user.save(state)
        saved += states.total_bytes(state)
    user.close()  # what goes on in the background counts, too
    machine.sync(user.directory)
    _emit(job, "space/written", written, counters.written_bytes(), saved)
    _emit(job, "space/device", device, counters.device_written_bytes(user.directory), saved)
    job.emit("space/kept", counters.allocated_bytes(user.directory),
             KEPT * states.total_bytes(state))
    states.expect_equal(user.restore(states.target(state)), state)


def _emit(job: Job, row: str, before: int | None, after: int | None, saved: int) -> None:
    if before is not None and after is not None:
        job.emit(row, after - before, saved)
