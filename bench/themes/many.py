# SPDX-License-Identifier: Apache-2.0
"""Questions about all steps of a store that has very many small ones. Stepwell only."""

import pathlib
import subprocess
from collections.abc import Callable

import machine
import numpy as np
import stepwell
from themes import Job, Timed


def run(job: Job) -> None:
    if job.make.key != "stepwell":
        return
    path = pathlib.Path(job.settings["many_directory"])
    count: int = job.settings["many"]
    if not path.exists():
        _make(path, count)
    machine.drop_cached(path)
    with stepwell.open(path, mode="r") as store:
        def ask(row: str, question: Callable[[], object], wanted: object) -> None:
            with Timed() as timed:
                answer = question()
            job.emit(f"many/{row}", timed.seconds)
            if wanted is not None and answer != wanted:
                raise RuntimeError(f"{row}: {answer!r:.80} instead of {wanted!r:.80}")

        assert store.latest == count - 1  # the first call
        ask("latest", lambda: store.latest, count - 1)
        ask("numbers", store.steps, list(range(count)))
        ask("metrics", lambda: len(store.steps(metrics=True)), count)
        ask("best", lambda: store.best("loss"), count - 1)
        ask("stats", lambda: store.stats()["steps"], count)
    program = pathlib.Path(stepwell.__file__).parents[2] / "api" / "cli" / "stepwell"
    with Timed() as timed:
        listed = subprocess.run([str(program), "ls", "--last", "20", str(path)], check=True,
                                capture_output=True, text=True).stdout
    job.emit("many/ls", timed.seconds)
    if str(count - 1) not in listed.split():
        raise RuntimeError(f"ls: {listed}")


def _make(path: pathlib.Path, count: int) -> None:
    with stepwell.open(path) as store:
        for step in range(count):
            store.save(step, {"w": np.full(4, step, np.float32)}, metrics={"loss": 1 / (1 + step)})
