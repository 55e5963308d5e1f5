# SPDX-License-Identifier: Apache-2.0
"""A step as an Orbax checkpoint: saved and exported, loaded by Orbax, imported."""

import pathlib
import shutil
import time
from typing import Any

import limits
import machine
import numpy as np
import states
from themes import Job, Timed


def run(job: Job) -> None:
    if job.make.key == "stepwell":
        _stepwell(job)
    elif job.make.writes_orbax:
        _orbax(job)
    else:
        for row in ("orbax/step", "orbax/load"):
            job.cannot(row, "writes no Orbax checkpoint")


def _orbax(job: Job) -> None:
    user = job.contender("orbax")
    state = _saved_once(job, user)
    job.emit("orbax/step", states.total_bytes(state) / user.save(state).durable)
    _load(job, user.path(user.step), state)


def _saved_once(job: Job, user: Any) -> Any:
    """The state to measure with, after a save that has paid for threads, imports and buffers."""
    state = job.state()
    user.save(state)
    machine.warm_memory(2 * job.size_bytes)
    return states.advance(state)


def _load(job: Job, checkpoint: pathlib.Path, state: Any) -> None:
    from orbax.checkpoint import v1

    like = states.target(state)
    machine.drop_cached(checkpoint)
    machine.warm_memory(2 * job.size_bytes)
    with Timed() as timed:
        loaded = v1.load(checkpoint, like)
    job.emit("orbax/load", states.total_bytes(state) / timed.seconds)
    states.expect_equal(loaded, state)


def _stepwell(job: Job) -> None:
    user = job.contender("orbax")
    state = _saved_once(job, user)
    size = states.total_bytes(state)
    folder = user.directory
    with Timed() as saved:
        user.save(state)
        user.writer().export(None, folder / "first")
    job.emit("orbax/step", size / saved.seconds)
    _load(job, folder / "first", state)

    with Timed() as linked:
        report = user.writer().export(None, folder / "link", mode="link")
    job.emit("orbax/link", linked.seconds)
    job.emit("orbax/link-written", report.written_bytes, size)
    shutil.rmtree(folder / "first")
    shutil.rmtree(folder / "link")

    _settle(job)
    machine.drop_cached(folder)
    with Timed() as copied:
        user.writer().export(None, folder / "copy", mode="copy")
        machine.sync(folder)
    _settle(job)
    limit = limits.copy_seconds(folder / "copy", folder / "cp")
    job.emit("orbax/copy", size / copied.seconds, size / limit)
    _import(job, user, "orbax/import-own", folder / "copy", state, limit)
    shutil.rmtree(folder / "copy")

    from orbax.checkpoint import v1

    v1.save(folder / "saved", state)
    machine.sync(folder)
    _settle(job)
    limit = limits.copy_seconds(folder / "saved", folder / "cp")
    _import(job, user, "orbax/import", folder / "saved", state, limit)


def _settle(job: Job) -> None:
    if job.settings["settle"]:
        machine.settle(job.directory)


def _import(job: Job, user: Any, row: str, checkpoint: pathlib.Path, state: Any,
            limit: float) -> None:
    size = states.total_bytes(state)
    _settle(job)
    machine.drop_cached(checkpoint)
    machine.warm_memory(2 * job.size_bytes)
    user.step += 1
    start = time.perf_counter()
    user.writer().import_checkpoint(checkpoint, user.step).result()
    seconds = time.perf_counter() - start
    job.emit(row, size / seconds, size / limit)
    with user.reader() as store:
        states.expect_equal(store.load(user.step), state)


def run_million(job: Job) -> None:
    import tensorstore

    user = job.contender("million")
    count = job.settings["million"]
    tree = states.make_leaves(count, 16, job.seed)
    user.save(tree)
    with Timed() as exported:
        user.writer().export(None, user.directory / "link", mode="link")
    job.emit("million/export", exported.seconds)

    machine.drop_cached(user.directory)
    names = [states.leaf_name(int(i)) for i in np.random.default_rng(1).integers(0, count, 200)]
    base = {"driver": "ocdbt", "base": f"file://{user.directory}/link/state/"}
    context = tensorstore.Context()
    with Timed() as read:
        opened = [tensorstore.open(
            {"driver": "zarr3", "kvstore": {**base, "path": name + "/"}}, read=True, open=True,
            context=context) for name in names]
        arrays = [array.result().read() for array in opened]
        got = {name: array.result() for name, array in zip(names, arrays, strict=True)}
    job.emit("million/read", read.seconds)
    states.expect_equal(got, {name: tree[name] for name in got})
