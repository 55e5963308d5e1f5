# SPDX-License-Identifier: Apache-2.0
"""The page of a run with many steps of many leaves and statistics, beside reading the records that
it looks into. Stepwell only."""

import json
import pathlib
import shutil

import machine
import numpy as np
import stepwell
from stepwell._report.document import document_of
from stepwell._report.page import page_of
from themes import Job, Timed


def run(job: Job) -> None:
    path = job.directory / "report"
    count: int = job.settings["steps"]
    leaves = 5 * int(job.settings["step_leaves"])
    _make(path, count, leaves, np.random.default_rng(job.seed))
    with _cold(path) as store:
        with Timed() as timed:
            document = document_of(store)
        with Timed() as whole:
            page = page_of(document)
    looked_into = [document["steps"]["number"][i] for i in document["leaves"]["steps"]]
    with _cold(path) as store, Timed() as records:
        found = sum(len(store[step]._source.tree) for step in looked_into)
    shutil.rmtree(path)
    if found < leaves * len(looked_into) or document["leaves"]["shown"] != leaves:
        raise RuntimeError("the page lacks leaves")
    job.emit("report/document", timed.seconds, records.seconds)
    job.emit("report/page", timed.seconds + whole.seconds, records.seconds)
    job.emit("report/size", len(page.encode()), len(json.dumps(document).encode()))


def _make(path: pathlib.Path, count: int, leaves: int, rng: np.random.Generator) -> None:
    """A fifth of the leaves does not change."""
    names = [f"leaf_{i:04}" for i in range(leaves)]
    arrays = rng.standard_normal((leaves, 16)).astype(np.float32)
    with stepwell.open(path, statistics=True) as store:
        for step in range(count):
            arrays[leaves // 5:] += rng.standard_normal(
                (leaves - leaves // 5, 16)).astype(np.float32) / 100
            store.save(step, dict(zip(names, arrays.copy(), strict=True)),
                       metrics={"loss": float(rng.random())})


def _cold(path: pathlib.Path) -> stepwell.Store:
    machine.drop_cached(path)
    return stepwell.open(path, mode="r")
