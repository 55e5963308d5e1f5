# SPDX-License-Identifier: Apache-2.0
"""A part of a step: `params` without the optimizer, rows of an array, one leaf of many."""

from typing import Any

import numpy as np
import states
import stepwell
from contenders import Cannot, Contender
from themes import Job, Timed


def run_part(job: Job) -> None:
    user = job.contender("part")
    state = job.state()
    user.save(state)
    wanted = state["params"]
    size = states.total_bytes(wanted)
    like = states.target(wanted)
    try:
        user.load_part("params", like)  # imports and threads are there now
    except Cannot as why:
        job.cannot("part/time", str(why))
        job.cannot("part/read", str(why))
        return
    job.make_cold(user)
    with Timed() as timed:
        part = user.load_part("params", like)
    job.emit("part/time", timed.seconds)
    job.emit("part/read", timed.read, size)
    states.expect_equal(part, wanted)
    if user.key == "stepwell":
        _stepwell(job, user, state)


def _stepwell(job: Job, user: Any, state: Any) -> None:
    job.make_cold(user)
    with user.reader() as store:
        part = store.load(path="params/layer_3")
        counted = store.stats()["last_load"]
        job.emit("part/planned", counted["bytes_read"], counted["bytes_needed"])
        view = store[store.latest]["params/layer_4/kernel"]
        with Timed() as timed:
            rows = view[0:16]
        job.emit("part/rows", timed.seconds)
    states.expect_equal(part, state["params"]["layer_3"])
    states.expect_equal(rows, state["params"]["layer_4"]["kernel"][:16])
    _columns(job, user)


def _columns(job: Job, user: Contender) -> None:
    """An eighth of the columns of an array."""
    side = 4096 if job.size_bytes >= 1 << 28 else 2048
    array = np.random.default_rng(job.seed).random((side, side), np.float32)
    wanted = (slice(None), slice(side // 2, side // 2 + side // 8))
    with stepwell.open(user.directory / "columns") as store:
        store.save(0, {"kernel": array}).result()
        view = store[0]["kernel"]
        columns = view[wanted]
        job.emit("part/columns", store.stats()["last_load"]["bytes_read"], columns.nbytes)
    states.expect_equal(columns, array[wanted])


def run_leaf(job: Job) -> None:
    user = job.contender("leaf")
    count = job.settings["wide"]
    tree = states.make_leaves(count, 4096, job.seed)
    user.save(tree)
    try:
        _one_leaf(job, user, tree, count)
    except Cannot as why:
        for row in ("leaf/open", "leaf/first", "leaf/next"):
            job.cannot(row, str(why))


def _one_leaf(job: Job, user: Contender, tree: Any, count: int) -> None:
    like = states.target(tree)
    job.make_cold(user)
    opening = user.open_leaf(like)
    with Timed() as opened:
        load = opening.__enter__()
    try:
        names = [states.leaf_name(count // 2), states.leaf_name(count // 3)]
        got = []
        for row, name in zip(("leaf/first", "leaf/next"), names, strict=True):
            with Timed() as timed:
                got.append(load(name))
            job.emit(row, timed.seconds)
        if user.opens_once:
            job.emit("leaf/open", opened.seconds)
        else:
            job.cannot("leaf/open", "each load opens anew")
        for name, leaf in zip(names, got, strict=True):
            states.expect_equal(leaf, tree[name])
    finally:
        opening.__exit__(None, None, None)
