# SPDX-License-Identifier: Apache-2.0
"""Handles of saves: in asyncio, as futures, with callbacks."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading

import numpy as np
import pytest

import stepwell
from stepwell._runtime import service


class Held:
    """A save that is under way until `finish`. Handles know no more of the engine's than this."""

    step = 7
    skipped = False

    def __init__(self, error: BaseException | None = None) -> None:
        self._error = error
        self._done = threading.Event()
        self._tokens: list[int] = []

    def done(self) -> bool:
        return self._done.is_set()

    def error(self) -> BaseException | None:
        return self._error

    def wait(self, timeout: float | None = None) -> bool:
        return self._done.wait(timeout)

    def notify(self, token: int) -> None:
        self._tokens.append(token)

    def finish(self) -> None:
        self._done.set()
        for token in self._tokens:
            service.completed(token)


def test_saves_are_awaited_together(store):
    async def run() -> list[int]:
        async def one(step: int) -> int:
            return await store.save(step, {"x": np.full(100_000, step)})

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(step)) for step in range(20)]
        handle = store.save(20, {"x": 1})
        assert await asyncio.wait_for(handle, 60) == 20
        return [task.result() for task in tasks] + [await handle]  # and again

    assert asyncio.run(run()) == list(range(21))
    assert store.steps() == list(range(21))


def test_the_loop_runs_while_a_save_is_awaited(store):
    held = Held()
    handle = store._track(held)

    async def run() -> int:
        asyncio.get_running_loop().call_soon(held.finish)
        return await handle

    assert asyncio.run(run()) == 7


def test_a_cancelled_task_leaves_the_save_alone(store):
    held = Held()
    handle = store._track(held)

    async def run() -> int:
        waiting = asyncio.ensure_future(handle)
        await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(handle, 0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        held.finish()
        return await handle

    assert asyncio.run(run()) == 7 and handle.result() == 7


def test_a_loop_that_is_gone_when_the_save_is_done(store, caplog):
    held = Held()
    handle = store._track(held)

    async def run() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(handle, 0.01)

    asyncio.run(run())
    held.finish()
    assert handle.result() == 7 and not caplog.records


def test_errors_are_raised_where_they_are_awaited(store):
    async def run(handle: stepwell.SaveHandle) -> None:
        with pytest.raises(stepwell.NoSpaceError, match="full"):
            await handle

    held = Held(stepwell.NoSpaceError("full"))
    handle = store._track(held)
    held.finish()
    asyncio.run(run(handle))
    store.steps()  # it was reported: not raised again


def test_futures(store):
    handles = [store.save(step, {"x": np.arange(step)}) for step in range(8)]
    futures = [handle.as_future() for handle in handles]
    done, left = concurrent.futures.wait(futures, 60)
    assert {future.result() for future in done} == set(range(8)) and not left
    assert [future.result() for future in concurrent.futures.as_completed(
        [handles[3].as_future()])] == [3]

    held = Held()
    future = store._track(held).as_future()
    called: list[int] = []
    future.add_done_callback(lambda each: called.append(each.result()))
    assert future.running() and not future.cancel() and not future.done()
    with pytest.raises(TimeoutError):
        future.result(0)
    held.finish()
    assert (future.result(), future.exception(), called) == (7, None, [7])


@pytest.mark.parametrize("ask", ["result", "exception", None])
def test_an_error_that_a_future_was_asked_for_is_not_raised_again(store, ask):
    held = Held(stepwell.NoSpaceError("full"))
    future = store._track(held).as_future()
    held.finish()
    if ask == "result":
        with pytest.raises(stepwell.NoSpaceError, match="full"):
            future.result()
    elif ask == "exception":
        assert str(future.exception()) == "full"
    else:
        with pytest.raises(stepwell.NoSpaceError, match="full"):
            store.steps()
    store.steps()


def test_futures_do_not_wait_for_slow_callbacks(store):
    seen: list[int] = []

    def slow(handle: stepwell.SaveHandle) -> None:
        seen.append(store.save(2, {"x": 2}).as_future().result(60))
        seen.append(asyncio.run(wait_for(store.save(3, {"x": 3}))))

    async def wait_for(handle: stepwell.SaveHandle) -> int:
        return await handle

    finished = threading.Event()
    first = store.save(1, {"x": 1})
    first.on_complete(slow)
    first.on_complete(lambda _: finished.set())
    assert finished.wait(60) and seen == [2, 3]
