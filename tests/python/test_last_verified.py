# SPDX-License-Identifier: Apache-2.0
"""policy.LastVerified, and the record of verifications that it goes by."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from group_runs import run
from test_damage import flip

import stepwell
from stepwell.policy import LastVerified, LatestN

KEEP = LatestN(1) | LastVerified()


def save(store: stepwell.Store, *steps: int, **more: Any) -> None:
    for step in steps:
        store.save(step, {"w": np.full(5000, step, np.float32)}, **more).result()


def kept_as_verified(path: Path) -> list[int]:
    """The steps that LastVerified keeps, as another process sees it."""
    with stepwell.open(path, mode="r", keep=LastVerified()) as reader:
        return [each.step for each in reader.retention().steps if each.kept_by]


def test_the_newest_verified_step_stays(path: Path) -> None:
    with stepwell.open(path, codec="raw", keep=KEEP) as store:
        save(store, 1, 2)
        assert store.steps() == [2]
        assert "no step is verified" in store.retention().warnings[0]
        assert store.verify(2).ok
        assert store.retention().steps[0].kept_by == (LastVerified(),)
        save(store, 3, 4)
        assert store.steps() == [2, 4]
    with stepwell.open(path, keep=KEEP) as store:
        save(store, 5)
        assert store.steps() == [2, 5]
        assert store.verify().ok
        save(store, 6)
        assert store.steps() == [5, 6]
        store.taint(5, "loss spike")
        save(store, 7)
        assert store.steps() == [7]
        assert store.verify().ok
        save(store, 7, if_exists="replace")  # another step of that number
        save(store, 8)
        assert store.steps() == [8]


def test_damage_ends_the_record(path: Path) -> None:
    with stepwell.open(path, codec="raw") as store:
        save(store, 1, 2)
        assert store.verify().ok
        assert kept_as_verified(path) == [2]
        flip(path, np.full(100, 2, np.float32).tobytes())
        assert [problem.step for problem in store.verify().problems] == [2]
        assert kept_as_verified(path) == [1]


def test_only_the_writer_records(path: Path) -> None:
    with stepwell.open(path) as store:
        save(store, 1)
        with stepwell.open(path, mode="r") as reader:
            assert reader.verify().ok
        assert kept_as_verified(path) == []
    with stepwell.open(path) as store:
        assert store.verify().ok
    assert kept_as_verified(path) == [1]


def test_a_verification_in_the_background_counts(path: Path) -> None:
    with stepwell.open(path, keep=KEEP) as store:
        save(store, 1)
        store.verify_in_background(1e12)
        for _ in range(3000):
            if kept_as_verified(path) == [1]:
                break
            time.sleep(0.01)
        store.verify_in_background(None)
        save(store, 2, 3)
        assert store.steps() == [1, 3]


def test_process_zero_verifies_for_all(tmp_path: Path) -> None:
    acts = [["open", {"keep": 1, "keep_last_verified": True}], ["save", {"step": 1}],
            ["verify_in_background", {"steps": 1}], ["save", {"step": 2}], ["save", {"step": 3}],
            ["steps", {}], ["check", {"step": 1}], ["close", {}]]
    for said in run(tmp_path / "store", acts):
        assert said.gave(5) == [1, 3]
        assert said.gave(6) == "equal"
    assert kept_as_verified(tmp_path / "store") == [1]


def test_local_disks_refuse_it(path: Path) -> None:
    with pytest.raises(stepwell.InvalidArgumentError, match="LastVerified needs disks='shared'"):
        stepwell.open(path, keep=KEEP, disks="local")
    assert not path.exists()
