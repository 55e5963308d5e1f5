# SPDX-License-Identifier: Apache-2.0
"""A reader process loads the latest step again and again beside a writer that saves and deletes.

    PYTHONPATH=<build>/python python soak_readers.py DIR [SECONDS]

The writer reclaims, too. Every loaded byte is compared; an error or a wrong byte is status 1. Not a
test but a command: tests/db/reclaim_test has the short form.
"""

from __future__ import annotations

import multiprocessing
import pathlib
import random
import sys
import time
from multiprocessing.synchronize import Event
from typing import Any

import numpy as np
import stepwell

ELEMENTS = (1_000_000, 300_000, 1000, 7)


def state_of(step: int) -> dict[str, Any]:
    arrays = {}
    for index, count in enumerate(ELEMENTS):
        generator = np.random.Generator(np.random.SFC64([step, index]))
        arrays[f"w{index}"] = generator.integers(0, 2**32, count, dtype=np.uint32)
    return {"params": arrays, "step": step}


def read(path: str, stop: Event, results: Any) -> None:
    loads = gone = 0
    seen: set[int] = set()
    try:
        with stepwell.open(path, mode="r") as store:
            while not stop.is_set():
                step = store.latest
                if step is None:
                    continue
                try:
                    loaded = store.load(step)
                except stepwell.errors.StepNotFoundError:
                    gone += 1  # deleted between the two calls; the next latest is another
                    continue
                wanted = state_of(step)
                if loaded["step"] != step:
                    raise AssertionError(f"step {step} loaded as {loaded['step']}")
                for name, array in wanted["params"].items():
                    if not np.array_equal(loaded["params"][name], array):
                        raise AssertionError(f"step {step}: {name} is wrong")
                loads += 1
                seen.add(step)
        results.put((loads, gone, len(seen), ""))
    except BaseException as error:  # told to the parent, which fails
        results.put((loads, gone, len(seen), repr(error)))


def write(path: str, seconds: float) -> tuple[int, int, int]:
    chance = random.Random(1)
    saves = deletes = reclaims = 0
    end = time.monotonic() + seconds
    with stepwell.open(path, keep=stepwell.policy.LatestN(4)) as store:
        step = 0
        while time.monotonic() < end:
            step += 1
            store.save(step, state_of(step)).result()
            saves += 1
            steps = store.steps()
            if chance.random() < 0.3 and len(steps) > 1:
                store.delete(chance.choice(steps[-2:]))  # often the very latest
                deletes += 1
            if chance.random() < 0.2:
                store.reclaim()
                reclaims += 1
        return saves, deletes, reclaims


def main() -> int:
    path = str(pathlib.Path(sys.argv[1]) / "run")
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 60.0
    with stepwell.open(path) as store:
        store.save(0, state_of(0)).result()
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    results = context.Queue()
    reader = context.Process(target=read, args=(path, stop, results))
    reader.start()
    saves, deletes, reclaims = write(path, seconds)
    stop.set()
    loads, gone, steps, problem = results.get(timeout=60)
    reader.join()
    print(f"{seconds:.0f} s: {saves} saves, {deletes} deletes, {reclaims} reclaims beside "
          f"{loads} loads of {steps} steps ({gone} deleted just before): "
          f"{problem or 'no error, no wrong byte'}")
    return 1 if problem or loads == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
