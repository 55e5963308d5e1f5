# SPDX-License-Identifier: Apache-2.0
"""Twenty steps, of a frozen base with a hundredth of it that is trained, and of a training with
differences, to a directory as the place: bytes that are sent as a run, and as Orbax checkpoints;
bytes that a consumer receives which pulls each of them."""

import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import states
import stepwell
import trainings
from themes import Job

STEPS = 20


def _adapted(size_bytes: int, seed: int) -> Iterator[Any]:
    rng = np.random.default_rng(seed)
    rows = max(100, size_bytes // 4096)
    base = rng.random((rows, 1024), np.float32)
    for _ in range(STEPS):
        yield {"base": base, "adapter": rng.random((rows // 100, 1024), np.float32)}


def run(job: Job) -> None:
    size = job.size_bytes // 32
    trained = trainings.train("rl-1e-06", size, job.seed, STEPS)
    for kind, states_of in (("lora", _adapted(size, job.seed)), ("rl-1e-06", trained)):
        steps = list(states_of)
        full = states.total_bytes(steps[0])
        sent, received, alone = [], [], []
        with tempfile.TemporaryDirectory(dir=job.directory) as folder:
            with stepwell.open(f"{folder}/store", delta=kind != "lora") as store, \
                    stepwell.open(f"{folder}/consumer") as consumer:
                for step, state in enumerate(steps):
                    store.save(step, state).result()
                    sent.append(store.push(step, f"{folder}/run", layout="stepwell").sent_bytes)
                    alone.append(store.push(step, f"{folder}/orbax", if_exists="replace",
                                            on_unsupported="widen").sent_bytes)
                    received.append(consumer.pull(f"{folder}/run", step).received_bytes)
                states.expect_equal(consumer.load(STEPS - 1), steps[-1])
        job.emit(f"push/{kind}-sent", sum(sent), full)
        job.emit(f"push/{kind}-orbax", sum(alone), full)
        job.emit(f"push/{kind}-received", sum(received), full)
