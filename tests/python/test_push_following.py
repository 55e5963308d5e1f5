# SPDX-License-Identifier: Apache-2.0
"""Runs at other places that are kept up to date in the background."""

from __future__ import annotations

import os
import queue
import threading
from pathlib import Path
from typing import Any

import numpy as np
import obstore.store
import pytest
import stepwell
from stepwell._remote import object_store, push_following
from transfers import other, places

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
SECONDS = 120  # that a wait may take at most; none is expected to


def tree(step: int) -> dict[str, Any]:
    w = np.random.default_rng(1).standard_normal((300, 100)).astype(np.float32)
    w[step % 300] = step
    return {"w": w, "step": step}


def steps_of(place: Any, **where: Any) -> list[int]:
    return [each.step for each in stepwell.pushed_steps(place, **where)]


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A push that failed is tried again at once."""
    monkeypatch.setattr(push_following, "_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(push_following, "_PAUSE_MAX_SECONDS", 0.01)


@pytest.mark.parametrize("kind", ["obstore local", "obstore memory", "path", "URL",
                                  "fsspec memory"])
def test_places_follow(store, other, tmp_path, kind):
    place, where = places(tmp_path)[kind]
    with store.push_following(place, **where) as follower:
        assert follower.pushed is None and follower.wait(0)  # there is nothing to push
        for step in range(5):
            store.save(step, tree(step)).result()
            assert follower.wait(SECONDS)
            assert follower.pushed == step and follower.error is None
        store.save(4, tree(9), if_exists="replace").result()
        store.save(5, tree(5)).result()
        assert follower.wait(SECONDS)
    assert steps_of(place, **where) == [0, 1, 2, 3, 4, 5]
    for step in (0, 3, 5):
        other.pull(place, step, **where)
        assert other.digest(step) == stepwell.digest(tree(step))


def test_it_begins_with_the_newest_and_passes_over(store, tmp_path, monkeypatch):
    """Steps that come while a push is under way are not pushed, but for the newest."""
    going, held = threading.Event(), threading.Event()

    class Held(object_store.Obstore):
        def put(self, key: str, data: bytes) -> None:
            if key == "steps/" + f"{10:020d}":
                going.set()
                assert held.wait(SECONDS)
            super().put(key, data)

    monkeypatch.setattr(object_store, "Obstore", Held)
    bucket = obstore.store.MemoryStore()
    for step in (5, 10):
        store.save(step, tree(step)).result()
    with store.push_following(bucket, prefix="run") as follower:
        assert going.wait(SECONDS)
        for step in range(11, 20):
            store.save(step, tree(step)).result()
        assert not follower.wait(0)
        held.set()
        assert follower.wait(SECONDS)
    assert steps_of(bucket, prefix="run") == [10, 19]


def test_it_waits_for_what_the_newest_step_is_now(store, other, tmp_path):
    """A step that is saved anew, and one that the store goes back to, are not there before."""
    with store.push_following(tmp_path / "run") as follower:
        for seed in range(4, 12):
            store.save(4, tree(seed), if_exists="replace").result()
            assert follower.wait(SECONDS)
            other.pull(tmp_path / "run", 4, if_exists="replace")
            assert other.digest(4) == stepwell.digest(tree(seed))
        for _ in range(4):
            store.save(7, tree(7)).result()
            assert follower.wait(SECONDS)
            store.rollback(4)
            assert follower.wait(SECONDS)
            assert steps_of(tmp_path / "run") == [4]


def test_keep_is_of_the_place(store, tmp_path):
    store.save(0, tree(0)).result()
    store.push(0, tmp_path / "run", layout="stepwell")
    with store.push_following(tmp_path / "run", keep=2) as follower:
        for step in range(1, 6):
            store.save(step, tree(step)).result()
            assert follower.wait(SECONDS)
    assert steps_of(tmp_path / "run") == [4, 5] and store.steps() == [0, 1, 2, 3, 4, 5]


def test_higher_steps_of_another_run_are_told(store, other, tmp_path, caplog):
    other.save(29, tree(29)).result()
    other.push(29, tmp_path / "place", layout="stepwell")
    with caplog.at_level("WARNING", "stepwell"), \
            store.push_following(tmp_path / "place", keep=2) as follower:
        for step in range(4):
            store.save(step, tree(step)).result()
            assert follower.wait(SECONDS)
    assert steps_of(tmp_path / "place") == [2, 3, 29]
    assert caplog.text.count("higher steps, such as 29, which this store did not push") == 1
    with pytest.raises(stepwell.StepExistsError, match="is a pushed run: push to it with layout="):
        store.push(3, tmp_path / "place")


def test_a_store_that_goes_back(store, tmp_path):
    store.save(3, tree(3)).result()
    store.push(3, tmp_path / "run", layout="stepwell")
    with store.push_following(tmp_path / "run") as follower:
        for step in (7, 8, 9):
            store.save(step, tree(step)).result()
            assert follower.wait(SECONDS)
        store.delete([7, 8, 9])
        with follower._changed:
            assert follower._changed.wait_for(lambda: follower.pushed == 3, SECONDS)
        store.save(4, tree(4)).result()
        assert follower.wait(SECONDS)
    assert steps_of(tmp_path / "run") == [3, 4]


def test_a_place_that_fails_fails_no_save(store, other, monkeypatch, soon, caplog):
    """It is tried again until it works."""
    inner = object_store.Obstore
    bucket = obstore.store.MemoryStore()
    failing = threading.Event()
    failing.set()
    failures: list[str] = []

    class Failing(inner):
        def put(self, key: str, data: bytes) -> None:
            if failing.is_set():
                failures.append(key)
                raise OSError(5, "the place is down")
            super().put(key, data)

    monkeypatch.setattr(object_store, "Obstore", Failing)
    with store.push_following(bucket, prefix="run") as follower:
        for step in range(3):
            store.save(step, tree(step)).result()
        with follower._changed:
            assert follower._changed.wait_for(lambda: len(failures) > 3, SECONDS)
        assert "the place is down" in str(follower.error) and follower.pushed is None
        failing.clear()
        assert follower.wait(SECONDS) and follower.error is None
    assert len([each for each in caplog.records if "the place is down" in each.message]) == 1
    other.pull(bucket, prefix="run")
    assert other.digest() == stepwell.digest(tree(2))


def test_closing_cuts_a_push_off(store, tmp_path, monkeypatch):
    going, held = threading.Event(), threading.Event()
    inner = object_store.Obstore

    class Held(inner):
        def put(self, key: str, data: bytes) -> None:
            going.set()
            assert held.wait(SECONDS)
            super().put(key, data)

    monkeypatch.setattr(object_store, "Obstore", Held)
    monkeypatch.setattr(push_following, "_JOIN_SECONDS", 0.01)
    bucket = obstore.store.MemoryStore()
    store.save(1, tree(1)).result()
    follower = store.push_following(bucket, prefix="run")
    assert going.wait(SECONDS)
    follower.close()  # does not wait for a place that does not answer
    follower.close()
    assert not follower.wait(0)
    held.set()
    assert follower._thread.join(SECONDS)
    assert steps_of(bucket, prefix="run") == []
    with store.push_following(bucket, prefix="run") as again:
        assert again.wait(SECONDS)
    assert steps_of(bucket, prefix="run") == [1]


def test_closing_the_store_ends_it(path, tmp_path):
    before = threading.active_count()
    with stepwell.open(path) as store:
        store.save(1, tree(1)).result()
        follower = store.push_following(tmp_path / "run")
        assert follower.wait(SECONDS)
    assert follower._thread.join(SECONDS) and threading.active_count() <= before + 1
    assert follower.pushed == 1 and follower.error is None
    with stepwell.open(path, "r") as reader, reader.push_following(tmp_path / "other") as follower:
        assert follower.wait(SECONDS)  # a reader, beside a writer or not
    with pytest.raises(stepwell.Error, match="is closed"):
        store.push_following(tmp_path / "run")


def test_reports_and_the_work_directory(store, tmp_path):
    reports: queue.SimpleQueue[stepwell.PushReport] = queue.SimpleQueue()
    with store.push_following(tmp_path / "run", on_push=reports.put) as follower:
        for step in (3, 8):
            store.save(step, tree(step)).result()
            report = reports.get(timeout=SECONDS)
            assert (report.step, report.skipped) == (step, False) and report.sent_bytes > 0
        assert not follower.ended
    assert follower.ended
    with store.push_following(tmp_path / "other", work_dir=tmp_path / "work") as follower:
        assert follower.wait(SECONDS)
    assert (tmp_path / "work").is_dir()  # made for the push's note, which is not needed any more


def test_what_is_wrong(store, tmp_path):
    for keep in (0, True, "3", 1.5):
        with pytest.raises(stepwell.InvalidArgumentError, match="keep"):
            store.push_following(tmp_path / "run", keep=keep)
    with pytest.raises(stepwell.InvalidArgumentError, match="storage_options"):
        store.push_following(tmp_path / "run", storage_options={"region": "x"})
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("x")
    store.save(1, tree(1)).result()
    with store.push_following(tmp_path / "full") as follower:
        with follower._changed:
            assert follower._changed.wait_for(lambda: follower.error is not None, SECONDS)
        assert isinstance(follower.error, stepwell.StepExistsError)
    assert os.listdir(tmp_path / "full") == ["file"]


def test_what_the_store_goes_back_behind_goes_from_the_place(store, tmp_path):
    """Also where another process followed it before, and steps were passed over meanwhile."""
    place = tmp_path / "run"
    other_store = tmp_path / "another"
    with stepwell.open(other_store) as another:
        another.save(9, tree(9)).result()
        another.push(9, place, layout="stepwell")  # of another store: it stays
    for step in range(5):
        store.save(step, tree(step)).result()
        with store.push_following(place) as follower:
            assert follower.wait(SECONDS)
    store.taint(2, "a spike")
    store.rollback(to=3, taint="diverged")
    with store.push_following(place) as follower:
        assert follower.wait(SECONDS)
    with stepwell.open(place, mode="r") as run:
        assert run.steps() == [0, 1, 2, 3, 9] and run.tainted_steps() == {2: "a spike"}
    store.rollback(to=0)
    for step in (1, 2, 5):  # of these only the newest is pushed
        store.save(step, tree(step + 50)).result()
    with store.push_following(place) as follower:
        assert follower.wait(SECONDS)
    with stepwell.open(place, mode="r") as run:
        assert run.steps() == [0, 1, 2, 5, 9]
        for step in (0, 1, 2, 5):
            assert run.digest(step) == store.digest(step)


def test_the_place_keeps_what_retention_drops_beside_steps_that_are_saved_anew(path, tmp_path):
    place = tmp_path / "run"
    policy = stepwell.policy.LatestN(3) | stepwell.policy.EveryN(5)
    with stepwell.open(path, keep=policy) as store, store.push_following(place) as follower:
        for step in range(20):
            store.save(step, tree(step)).result()
            assert follower.wait(SECONDS)
        store.save(5, tree(99), if_exists="replace").result()
        store.save(20, tree(20)).result()
        assert follower.wait(SECONDS)
        with stepwell.open(place, mode="r") as run:
            assert run.steps() == list(range(21)) and run.digest(5) == store.digest(5)
