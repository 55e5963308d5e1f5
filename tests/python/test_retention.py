# SPDX-License-Identifier: Apache-2.0
"""Store.retention, and what `open` says before a policy deletes anything."""

from __future__ import annotations

import logging
import pathlib

import numpy as np
import pytest
from log_lines import wait_for

import stepwell
from stepwell.policy import BestN, ByteBudget, EveryN, KeepFor, LastVerified, LatestN, Pinned


def save(store: stepwell.Store, *steps: int) -> None:
    for step in steps:
        store.save(step, {"w": np.full(4, step, np.float32)},
                   metrics={"loss": 1 / (1 + step)}).result()


def ten(path: pathlib.Path) -> None:
    with stepwell.open(path) as store:
        save(store, *range(10))


def test_a_typo_keeps_history_and_is_named(tmp_path: pathlib.Path,
                                           caplog: pytest.LogCaptureFixture) -> None:
    ten(tmp_path / "run")
    with stepwell.open(tmp_path / "run", keep=LatestN(1) | BestN(1, "losss")) as store:
        report = store.retention()
        assert report.policy == LatestN(1) | BestN(1, "losss")
        assert report.goes_next == []
        assert report.steps[3].kept_by == (BestN(1, "losss"),)
        save(store, 10)
        assert store.steps() == list(range(11))
    said = 'no step has the metric "losss" (they have "loss")'
    assert said in report.warnings[0]
    wait_for(said, caplog)


def test_a_tighter_policy_is_named_before_it_deletes(tmp_path: pathlib.Path,
                                                     caplog: pytest.LogCaptureFixture) -> None:
    ten(tmp_path / "run")
    with stepwell.open(tmp_path / "run", keep=LatestN(10)):
        pass
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    with stepwell.open(tmp_path / "run", keep=LatestN(1)) as store:
        assert store.steps() == list(range(10))
        store.pin(4)
        report = store.retention()
        assert report.goes_next == [0, 1, 2, 3, 5, 6, 7, 8, 9]
        assert "step 4: kept by its pin" in str(report)
        save(store, 10)
        assert store.steps() == [4, 10]
    wait_for("the next save deletes 9 of 10 steps (0, 1, 2,", caplog)


@pytest.mark.parametrize("policy", [
    LatestN(3), EveryN(2) | LatestN(1), BestN(2, "loss", mode="max"), KeepFor(3600.5),
    ByteBudget("1 MB"), Pinned(), LastVerified() | LatestN(2)])
def test_every_policy_is_seen_from_outside(tmp_path: pathlib.Path,
                                           policy: stepwell.policy.Policy) -> None:
    """Beside the writer."""
    run = tmp_path / "run"
    with stepwell.open(run, keep=policy) as store:
        save(store, 1, 2, 3, 4)
        with stepwell.open(run, mode="r") as reader:
            seen = reader.retention()
            assert seen == store.retention()
            assert seen.policy == policy
        save(store, 5)
        assert set(store.steps()) == {1, 2, 3, 4, 5} & (
            {step.step for step in seen.steps} - set(seen.goes_next) | {5})


def test_what_a_policy_would_do(tmp_path: pathlib.Path) -> None:
    ten(tmp_path / "run")
    with stepwell.open(tmp_path / "run", mode="r") as reader:
        assert reader.retention().policy is None
        assert "every step is kept" in str(reader.retention())
    with stepwell.open(tmp_path / "run", mode="r", keep=EveryN(3)) as reader:
        assert reader.retention().goes_next == [1, 2, 4, 5, 7, 8]
        assert reader.steps() == list(range(10))
