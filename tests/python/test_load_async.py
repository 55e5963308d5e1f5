# SPDX-License-Identifier: Apache-2.0
"""Loads on a thread of their own, and progress of loads."""

from __future__ import annotations

import asyncio
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stepwell
from equality import same


def test_a_handle_gives_what_load_gives(store):
    state = {"w": jnp.arange(1000.0), "n": 3}
    store.save(0, state).result()
    handle = store.load_async()
    assert handle.step == 0 and same(handle.result(60), {"w": np.arange(1000.0, dtype=np.float32),
                                                         "n": 3})
    assert handle.done() and repr(handle) == "<load of step 0, done>"
    assert same(store.load_async(0, like=state).result(), state)
    assert store.load_async(0, "n").result() == 3


def test_errors_come_with_the_result(store):
    store.save(0, {"w": np.zeros(3)}).result()
    handle = store.load_async(like={"w": np.zeros(4)})
    for _ in range(2):
        with pytest.raises(stepwell.MismatchError):
            handle.result()
    with pytest.raises(stepwell.StepNotFoundError):
        store.load_async(7)  # before there is a handle
    with pytest.raises(stepwell.InvalidArgumentError):
        store.load_async(missing="target")


def test_the_step_is_kept_from_deletion(store):
    state = {"w": np.arange(3_000_000)}
    store.save(0, state).result()
    handles = [store.load_async(0) for _ in range(3)]
    store.delete(0)
    store.reclaim()
    for handle in handles:
        assert same(handle.result(), state)


def test_awaiting_and_callbacks(store):
    store.save(0, {"w": np.arange(5)}).result()

    async def load_all():
        return await asyncio.gather(*[store.load_async(0, "w") for _ in range(8)])

    assert all(w.tolist() == [0, 1, 2, 3, 4] for w in asyncio.run(load_all()))
    called = threading.Event()
    seen = []
    handle = store.load_async(0)
    handle.on_complete(lambda done: (seen.append(done.result()["w"].sum()), called.set()))
    assert called.wait(60) and seen == [10]
    assert handle.as_future().result()["w"][4] == 4


def test_closing_waits_for_loads(path):
    with stepwell.open(path) as store:
        store.save(0, {"w": np.arange(2_000_000)}).result()
        handle = store.load_async()
    assert handle.done()
    assert handle.result()["w"].shape == (2_000_000,)


def test_progress(store):
    state = {f"w{i}": np.full(4 << 20, i, np.int64) for i in range(3)}  # 32 MiB each
    store.save(0, state).result()
    for how in ({}, {"like": state}, {"path": "w*"}):
        calls = []
        store.load(0, progress=lambda done, total: calls.append((done, total)), **how)
        total = 3 * (32 << 20)
        assert [done for done, _ in calls] == [32 << 20, 64 << 20, total]
        assert {total for _, total in calls} == {total}

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.load(0, progress=stop)
    assert jax.tree.structure(store.load(0)) == jax.tree.structure(state)
