# SPDX-License-Identifier: Apache-2.0
"""Store.verify_in_background."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from group_runs import machines, run
from test_damage import flip

import stepwell

FAST = 1e12


def save(store: stepwell.Store, *steps: int, **more: Any) -> None:
    for step in steps:
        store.save(step, {"w": np.full(5000, step, np.float32)}, **more).result()


def until(holds: Callable[[], bool], store: stepwell.Store) -> stepwell.VerificationStats:
    for _ in range(3000):
        if holds():
            return store.stats()["verification"]
        time.sleep(0.01)
    raise AssertionError(store.stats()["verification"])


def verified(store: stepwell.Store, count: int) -> stepwell.VerificationStats:
    return until(lambda: store.stats()["verification"]["steps"] >= count, store)


def damage(path: Path, step: int) -> None:
    flip(path, np.full(100, step, np.float32).tobytes())


@pytest.mark.parametrize("mode", ["a", "r"])
def test_every_step_is_verified_once(path: Path, mode: Any, monkeypatch: pytest.MonkeyPatch
                                     ) -> None:
    with stepwell.open(path, codec="raw") as store:
        save(store, *range(1, 5))
    with stepwell.open(path, mode=mode) as store:
        assert store.stats()["verification"] == {
            "running": False, "steps": 0, "bytes": 0, "damaged": []}
        order: list[int] = []
        real = store._backend.verify_at_pace

        def recorded(step: int, pace: Callable[[int], bool]) -> Any:
            order.append(step)
            return real(step, pace)

        monkeypatch.setattr(store._backend, "verify_at_pace", recorded)
        store.verify_in_background(FAST)
        stats = verified(store, 4)
        assert order == [4, 3, 2, 1] and stats["running"] and stats["damaged"] == []
        assert stats["bytes"] >= 4 * 20_000
        if mode == "a":
            save(store, 2, if_exists="replace")
            save(store, 7)
            verified(store, 6)
            assert order[4:] in ([2, 7], [7, 2])
        store.verify_in_background(None)
        assert not store.stats()["verification"]["running"]
        store.verify_in_background(FAST)
        assert store.stats()["verification"]["running"]


def test_damage_is_logged_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with stepwell.open(path, codec="raw") as store:
        save(store, *range(1, 5))
    damage(path, 2)
    with stepwell.open(path) as store:
        store.verify_in_background(FAST)
        assert verified(store, 4)["damaged"] == [2]
        save(store, 5)
        assert verified(store, 5)["damaged"] == [2]
        assert caplog.text.count("step 2: verifying in the background found 1 problem") == 1
        assert store.tainted_steps() == {} and store.steps() == [1, 2, 3, 4, 5]
        save(store, 2, if_exists="replace")
        assert verified(store, 6)["damaged"] == []


def test_it_ends_when_it_is_slow(path: Path) -> None:
    """One byte a second: it would take hours."""
    with stepwell.open(path, codec="raw") as store:
        save(store, 1, 2)
        store.verify_in_background(1)
        until(lambda: store.stats()["verification"]["bytes"] > 0, store)
        assert store.stats()["verification"]["steps"] == 0
        store.delete(2)
        assert store.load(path="w")[0] == 1
        store.verify_in_background(None)
        store.verify_in_background(1)
    other = stepwell.open(path)
    other.verify_in_background(1)
    del other  # ends it, too
    with stepwell.open(path) as store:
        assert store.steps() == [1]


def test_what_is_no_rate(store: stepwell.Store) -> None:
    for rate in (0, -1, True, "fast", float("nan"), float("inf")):
        with pytest.raises(stepwell.InvalidArgumentError, match="bytes_per_second must be"):
            store.verify_in_background(rate)  # type: ignore[arg-type]
    store.verify_in_background(None)
    store.close()
    with pytest.raises(stepwell.Error, match="is closed"):
        store.verify_in_background(1)


@pytest.mark.parametrize("disks", ["shared", "local"])
def test_processes_verify_what_they_see(tmp_path: Path, disks: str) -> None:
    """On a shared disk process 0 verifies all parts, on local ones each process its own."""
    roots: Any = machines(tmp_path, 0, 1) if disks == "local" else tmp_path / "store"
    acts = [["open", {"disks": disks}], ["save", {"step": 1}], ["save", {"step": 2}],
            ["verify_in_background", {"steps": 2}], ["save", {"step": 3}],
            ["verify_in_background", {"steps": 3}], ["close", {}]]
    for process, said in enumerate(run(roots, acts)):
        verifies = process == 0 or disks == "local"
        assert said.gave(3) == ([True, 2, []] if verifies else [False, 0, []])
        assert said.gave(5) == ([True, 3, []] if verifies else [False, 0, []])
        assert "gave" in said.lines[6]


def test_a_step_that_could_not_be_read_is_looked_at_again(store, caplog):
    store.save(0, {"w": np.zeros(9)}).result()
    verify = store._backend.verify_at_pace
    calls = []

    def unread(step, pace):
        calls.append(step)
        if len(calls) < 3:
            raise stepwell.StorageError("too many open files")
        return verify(step, pace)

    store._backend.verify_at_pace = unread
    store.verify_in_background(1e9)
    deadline = time.monotonic() + 60
    while store.stats()["verification"]["steps"] < 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(calls) == 3 and "too many open files" in caplog.text
    assert store.stats()["verification"]["damaged"] == []


def test_another_rate_ends_the_pause_of_the_old_one(store):
    store.save(0, {"w": np.random.default_rng(0).standard_normal(4_000_000)}).result()
    store.verify_in_background(1000)  # it would take hours
    deadline = time.monotonic() + 60
    while not store.stats()["verification"]["bytes"] and time.monotonic() < deadline:
        time.sleep(0.01)
    store.verify_in_background(1e12)
    while not store.stats()["verification"]["steps"] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert store.stats()["verification"]["steps"] == 1
