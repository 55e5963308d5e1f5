# SPDX-License-Identifier: Apache-2.0
"""A training loop that donates its state at every step, right after the save; and what each step
must be, computed without JAX. As a program: `donated_loop.py {spawn,fork} STORE STEPS` runs it in a
child process of that kind, beside a store that the parent has open."""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
from typing import Any

import numpy as np

import stepwell

_FACTOR, _TERM = np.uint32(1664525), np.uint32(1013904223)


def first(seed: int) -> dict[str, Any]:
    return {"params": {"w": np.arange(20_000, dtype=np.uint32) + np.uint32(seed),
                       "b": np.full(7, seed, np.uint32)},
            "count": np.zeros((), np.uint32)}


def advance(state: dict[str, Any]) -> dict[str, Any]:
    params = state["params"]
    return {"params": {name: leaf * _FACTOR + _TERM for name, leaf in params.items()},
            "count": state["count"] + np.uint32(1)}


class Training:
    def __init__(self, seed: int) -> None:
        import jax

        self.state = jax.tree.map(jax.numpy.array, first(seed))
        self.donated = 0
        self._advance = jax.jit(advance, donate_argnums=0)

    def save_and_advance(self, store: stepwell.Store, step: int) -> stepwell.SaveHandle:
        handle = store.save(step, self.state)
        if step % 4 == 0:  # else the save mostly has the buffers yet, and JAX takes new ones
            handle.result()
        donated = self.state
        self.state = self._advance(donated)
        self.donated += donated["params"]["w"].is_deleted()
        return handle


def run(store: stepwell.Store, seed: int, steps: range) -> None:
    training = Training(seed)
    for step in steps:
        training.save_and_advance(store, step)
    assert training.donated > 0


async def run_async(store: stepwell.Store, seed: int, steps: range) -> list[int]:
    """Each save is awaited by a task of its own while the loop goes on."""
    training = Training(seed)

    async def finished(handle: stepwell.SaveHandle) -> int:
        return await handle

    async with asyncio.TaskGroup() as group:
        tasks = []
        for step in steps:
            tasks.append(group.create_task(finished(training.save_and_advance(store, step))))
            await asyncio.sleep(0)
    assert training.donated > 0
    return [task.result() for task in tasks]


def check(store: stepwell.Store, seed: int, steps: range) -> None:
    """Every step is what it must be, bit for bit."""
    state = first(seed)
    for step in steps:
        loaded = store.load(step)
        for name in ("w", "b"):
            np.testing.assert_array_equal(loaded["params"][name], state["params"][name],
                                          strict=True, err_msg=f"step {step}: {name}")
        assert loaded["count"] == state["count"], step
        with np.errstate(over="ignore"):
            state = advance(state)


def in_child(path: str, seed: int, count: int) -> None:
    with stepwell.open(path) as store:
        run(store, seed, range(count))


if __name__ == "__main__":
    kind, path, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    with stepwell.open(path + ".parent") as own:
        own.save(0, first(0)).result()
        child = multiprocessing.get_context(kind).Process(target=in_child, args=(path, 5, count))
        child.start()
        child.join()
        own.save(1, first(1)).result()
        check(own, 0, range(1))
    sys.exit(child.exitcode)
