# SPDX-License-Identifier: Apache-2.0
"""Many steps of which the newest five are kept: bytes to the disk for each byte saved, and what a
root takes in which each step is a directory as well."""

import counters
import machine
import states
from themes import Job

KEPT = 5
SMALL_BYTES = 1 << 20  # many of these steps share a segment of the store


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
    if user.key == "stepwell":
        _viewed(job, "space/viewed", job.size_bytes // 8, job.settings["space_steps"])
        _viewed(job, "space/viewed-small", SMALL_BYTES, 20 * KEPT)


def _viewed(job: Job, row: str, size_bytes: int, steps: int) -> None:
    """The space of a root, as a manager of Orbax has one: its store, and each step as a directory
    of Orbax's that stays readable if the store is moved or gone."""
    import stepwell  # not in the processes of others

    root = job.directory / row.replace("/", "-")
    root.mkdir()
    store = stepwell.open(root / ".stepwell", keep=stepwell.policy.LatestN(KEPT))
    with store, store.orbax_view(root, beside=True) as view:
        for index in range(steps):
            state = states.make_state(size_bytes, seed=1000 * job.seed + index)
            store.save(index, state).result()
        view.wait()
    machine.sync(root)
    job.emit(row, counters.allocated_bytes(root), KEPT * states.total_bytes(state))


def _emit(job: Job, row: str, before: int | None, after: int | None, saved: int) -> None:
    if before is not None and after is not None:
        job.emit(row, after - before, saved)
