# SPDX-License-Identifier: Apache-2.0
"""Which steps there are: their metrics, the best of them, and counting from the newest."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from group_runs import run

import stepwell

METRICS = {
    3: {"loss": 0.5, "accuracy": 0.25},
    5: {"loss": 0.25, "accuracy": 0.75},
    7: None,
    8: {"loss": math.nan, "accuracy": math.inf},
    10: {"loss": "0.1", "accuracy": True},
    11: {"other": -1, "loss": None},
    20: {"loss": 0.25, "accuracy": 0.5},
    21: {"loss": [0.1], "accuracy": 10**400},
    30: {"loss": 3, "accuracy": 0.75},
}


def fill(store: stepwell.Store) -> None:
    for step, metrics in METRICS.items():
        store.save(step, {"x": step}, metrics=metrics)
    store.wait()


@pytest.mark.parametrize("mode", ["a", "r"])
def test_metrics_and_the_best_step(path, mode):
    with stepwell.open(path) as store:
        assert (store.steps(metrics=True), store.best("loss")) == ({}, None)
        fill(store)
    with stepwell.open(path, mode=mode) as store:
        found = store.steps(metrics=True)
        assert list(found) == store.steps() == sorted(METRICS)
        assert math.isnan(found[8]["loss"])
        assert {k: v for k, v in found.items() if k != 8} == {
            k: v for k, v in METRICS.items() if k != 8}
        assert store.best("loss") == 20  # of 5 and 20, which are equal
        assert store.best("loss", "max") == 30 == store.best("loss", mode="max")
        assert store.best("accuracy", mode="max") == 30  # of 5 and 30
        assert store.best("accuracy") == 3
        assert store.best("other") == 11
        with pytest.raises(stepwell.InvalidArgumentError,
                           match="no step has the metric 'absent'; there are 'accuracy', 'loss'"):
            store.best("absent")
        for metric, way in ((None, "min"), ("", "min"), (7, "max")):
            with pytest.raises(stepwell.InvalidArgumentError, match="metric must be the name"):
                store.best(metric, way)
        with pytest.raises(stepwell.InvalidArgumentError, match="'min' or 'max', not 'least'"):
            store.best("loss", "least")


def test_the_best_step_is_not_a_tainted_one(path):
    with stepwell.open(path) as store:
        for step, loss in ((1, 3.0), (2, 1.0), (3, 2.0)):
            store.save(step, {"x": step}, metrics={"loss": loss}).result()
        store.taint(2, "the labels were in it")
        assert store.best("loss") == 3
        store.taint(3, "and here")
        assert store.best("loss") == 1
        store.taint(1, "and here")
        assert store.best("loss") is None


@pytest.mark.parametrize(("metric", "mode"), [("loss", "min"), ("loss", "max"),
                                              ("accuracy", "min"), ("accuracy", "max")])
def test_the_best_step_is_the_one_that_the_policy_keeps(path, metric, mode):
    with stepwell.open(path, keep=stepwell.policy.BestN(1, metric, mode)) as store:
        fill(store)
        best = store.best(metric, mode)
        store.save(1, {"x": 1}).result()
        store.save(2, {"x": 1}).result()
        assert store.steps() == [2, best]


def test_no_step_is_not_the_newest(path):
    with stepwell.open(path) as store:
        store.save(1, {"x": 1}, metrics={"loss": math.nan}).result()
        assert store.best("loss") is None
        for call in (lambda: store.load(store.best("loss")), lambda: store.load_async(None),
                     lambda: store.tree(None), lambda: store.branch("b", None)):
            with pytest.raises(stepwell.InvalidArgumentError, match="leave it out for the newest"):
                call()
        assert store.load() == store.load(path="") == {"x": 1} == store.load_async().result()


def test_negative_positions_count_from_the_newest(store):
    with pytest.raises(stepwell.StepNotFoundError, match=r"has 0 steps, so none at \[-1\]"):
        store[-1]
    fill(store)
    steps = sorted(METRICS)
    for position in range(-len(steps), 0):
        assert store[position].step == steps[position]
    assert store[np.int64(-1)].step == 30 and store[3].step == 3
    with pytest.raises(stepwell.StepNotFoundError, match=r"has 9 steps, so none at \[-10\]"):
        store[-10]
    with pytest.raises(stepwell.StepNotFoundError):
        store[4]
    for position in (True, 1.0, "-1"):
        with pytest.raises(stepwell.InvalidArgumentError, match="a step must be an int"):
            store[position]
    store.delete(30)
    assert store[-1].step == 21


def test_the_newest_step_may_be_deleted_while_it_is_looked_up(path, monkeypatch):
    with stepwell.open(path) as store:
        fill(store)
        find = store._at

        def slow(position: int) -> int:
            step = find(position)
            if step > 20:
                store.delete(step)
            return step

        monkeypatch.setattr(store, "_at", slow)
        assert store[-1].step == 20
        with pytest.raises(stepwell.StepNotFoundError):
            store[21]


@pytest.mark.parametrize("disks", ["shared", "local"])
def test_processes_agree_on_them(tmp_path, disks):
    roots = [tmp_path / (f"machine_{number}" if disks == "local" else "") / "store"
             for number in range(2)]
    for root in roots:
        root.parent.mkdir(exist_ok=True)
    losses = {1: 0.5, 2: 0.25, 3: None, 4: 2.0}
    saves = [["save", {"step": step, "metrics": None if loss is None else {"loss": loss}}]
             for step, loss in losses.items()]
    for said in run(roots, [["open", {"disks": disks}], *saves, ["best", {}],
                            ["stateful", {"step": 4, "misfit": 1}],
                            ["stateful", {"step": 4, "misfit": None}], ["close", {}]]):
        metrics, *found = said.gave(5)
        assert metrics == [[step, None if loss is None else {"loss": loss}]
                           for step, loss in losses.items()]
        assert found == [2, 4, 4, None]
        together = disks == "local"  # then a load is one of all processes
        assert said.gave(6) in ([["", 1]] if not together else []) + [["MismatchError", 0]]
        assert said.gave(7) == ["", 1]


def test_a_step_knows_how_long_its_save_took(path):
    with stepwell.open(path) as store:
        for step, size in enumerate([10, 1_000_000]):
            before = time.perf_counter()
            handle = store.save(step, {"x": np.random.default_rng(step).random(size)})
            handle.result()
            stats = handle.stats
            assert stats is not None
            took = time.perf_counter() - before
            found = store[step].duration_s
            assert stats.snapshot_s <= found <= stats.durable_s <= took
        kept = [store[step].duration_s for step in (0, 1)]
    with stepwell.open(path, mode="r") as store:  # from the log, and as copies keep it
        assert [store[step].duration_s for step in (0, 1)] == kept
