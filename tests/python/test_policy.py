# SPDX-License-Identifier: Apache-2.0
"""Policies: what they say, and what they keep, against plain Python."""

from __future__ import annotations

import datetime
import math
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from log_lines import wait_for

import stepwell
from stepwell.policy import (BestN, ByteBudget, EveryN, KeepFor, LastVerified, LatestN, Pinned,
                             Policy)
from storm import in_a_storm

# ---- the objects --------------------------------------------------------------------------------


def test_how_they_look():
    assert repr(LatestN(3)) == "LatestN(3)"
    assert repr(EveryN(np.int64(1000))) == "EveryN(1000)"
    assert repr(BestN(2, "loss")) == "BestN(2, 'loss', mode='min')"
    assert repr(KeepFor(datetime.timedelta(hours=1))) == "KeepFor(3600)"
    assert repr(ByteBudget("10 GB")) == "ByteBudget(10000000000)"
    assert repr(Pinned()) == "Pinned()"
    assert repr(LastVerified()) == "LastVerified()"
    union = LatestN(3) | EveryN(10) | BestN(1, "acc", "max")
    assert repr(union) == "LatestN(3) | EveryN(10) | BestN(1, 'acc', mode='max')"
    everything = {name: getattr(stepwell.policy, name) for name in stepwell.policy.__all__}
    assert eval(repr(union), everything) == union
    assert BestN(2, "loss").metric == "loss" and BestN(2, "loss").mode == "min"
    assert KeepFor(1.5).duration == datetime.timedelta(seconds=1.5)


def test_equality_and_hash():
    assert LatestN(3) == LatestN(3) != LatestN(4)
    assert LatestN(3) != EveryN(3)
    assert LastVerified() == LastVerified() != Pinned()
    assert LatestN(3) != 3
    assert LatestN(3) | EveryN(10) == EveryN(10) | LatestN(3)
    assert LatestN(3) | LatestN(3) == LatestN(3)
    assert BestN(1, "x") != BestN(1, "x", "max")
    assert KeepFor(60) == KeepFor(datetime.timedelta(minutes=1))
    assert ByteBudget("1 KiB") == ByteBudget(1024) == ByteBudget("0.001024MB")
    assert len({LatestN(3), LatestN(3), LatestN(3) | LatestN(3), EveryN(3)}) == 2
    with pytest.raises(TypeError):
        LatestN(3) | 4


@pytest.mark.parametrize(("make", "why"), [
    (lambda: LatestN(0), "at least 1"),
    (lambda: LatestN(2**63), "below 2\\^63"),
    (lambda: LatestN(1.5), "LatestN takes an int, not 1.5"),
    (lambda: EveryN(-1), "at least 1"),
    (lambda: EveryN("10"), "EveryN takes an int, not '10'"),
    (lambda: BestN(0, "loss"), "at least 1"),
    (lambda: BestN(1, ""), "name of one"),
    (lambda: BestN(1, 3), "name of one, not 3"),
    (lambda: BestN(1, "loss", "least"), "'min' or 'max', not 'least'"),
    (lambda: KeepFor(-1), "292 years"),
    (lambda: KeepFor("1h"), "seconds or a timedelta, not '1h'"),
    (lambda: KeepFor(math.nan), "seconds or a timedelta, not nan"),
    (lambda: KeepFor(math.inf), "seconds or a timedelta"),
    (lambda: KeepFor(datetime.timedelta(days=365 * 300)), "292 years"),
    (lambda: ByteBudget(0), "1 byte"),
    (lambda: ByteBudget("0.1"), "1 byte"),
    (lambda: ByteBudget("10 XB"), "not '10 XB'"),
    (lambda: ByteBudget("-1GB"), "not '-1GB'"),
    (lambda: ByteBudget(1.5), "not 1.5"),
    (lambda: ByteBudget(True), "not True"),
    (lambda: LatestN(True), "not True"),
    (Policy, "made of others"),
])
def test_what_makes_no_sense(make, why):
    with pytest.raises(stepwell.InvalidArgumentError, match=why):
        make()


# ---- what they keep -----------------------------------------------------------------------------


@dataclass
class Saved:
    """The facts about a step that the rules look at."""

    step: int
    time_ns: int
    nbytes: int
    frame_bytes: int  # known once it is committed
    metrics: dict[str, Any]
    pinned: bool = False
    is_old: bool = False  # of an earlier session
    verified: bool = False


def is_blind(policy: Policy, steps: list[Saved]) -> bool:
    """A metric that no step has."""
    return isinstance(policy, BestN) and not any(
        isinstance(value := s.metrics.get(policy.metric), (int, float)) and math.isfinite(value)
        for s in steps)


def keeps(policy: Policy, steps: list[Saved], added: Saved) -> set[int]:
    """Step numbers that one policy keeps (the words of policy.py, as plainly as can be)."""
    down = sorted(steps, key=lambda s: -s.step)
    others = [s for s in down if s is not added]
    match policy:
        case LatestN(n=n):
            return {s.step for s in [added, *others][:n]}
        case EveryN(n=n):
            return {s.step for s in steps if s.step % n == 0}
        case BestN(n=n, metric=metric, mode=mode):
            sign = 1 if mode == "min" else -1
            with_metric = [s for s in down if isinstance(s.metrics.get(metric), (int, float))
                           and math.isfinite(s.metrics[metric])]
            with_metric.sort(key=lambda s: sign * s.metrics[metric])  # stable: higher step first
            return {s.step for s in with_metric[:n]}
        case KeepFor(duration=duration):
            limit = duration // datetime.timedelta(microseconds=1) * 1000
            return {s.step for s in steps if added.time_ns - s.time_ns <= limit}
        case ByteBudget(nbytes=budget):
            kept, used = set(), added.nbytes
            for s in others:
                used += s.nbytes + s.frame_bytes
                if used > budget:
                    break
                kept.add(s.step)
            return kept
        case LastVerified():
            return {s.step for s in [s for s in down if s.verified][:1]}
        case Pinned():
            return set()
    raise AssertionError(policy)


def some_policies(rng: random.Random) -> list[Policy]:
    makers = [
        lambda: LatestN(rng.randint(1, 6)),
        lambda: EveryN(rng.randint(1, 12)),
        lambda: BestN(rng.randint(1, 4), rng.choice(["loss", "acc"]), rng.choice(["min", "max"])),
        lambda: KeepFor(rng.choice([0, 0.01, 0.03, 0.1, 3600])),
        lambda: ByteBudget(rng.randint(1, 80_000)),
        Pinned,
        LastVerified,
    ]
    return [make() for make in rng.sample(makers, rng.choice([1, 1, 2, 3]))]


def some_metrics(rng: random.Random) -> dict[str, Any]:
    values = [rng.uniform(-2, 2), rng.choice([0.5, 1, 2]), math.nan, math.inf, "text", None, [1]]
    return {name: rng.choice(values) for name in ("loss", "acc") if rng.random() < 0.8}


@pytest.mark.parametrize("seed", range(in_a_storm(8)))
def test_random_histories(path, seed):
    rng = random.Random(seed)
    parts = some_policies(rng)
    policy = Policy(*parts)
    held: dict[int, Saved] = {}
    store = stepwell.open(path, keep=policy)
    last = paused = 0  # nanoseconds; what passes between two sessions does not count
    reopened = False
    walls: dict[int, int] = {}
    for _ in range(40):
        if held and rng.random() < 0.2:
            step = rng.choice(list(held))
            held[step].pinned = rng.random() < 0.6
            (store.pin if held[step].pinned else store.unpin)(step)
        if rng.random() < 0.2:
            assert store.verify().ok
            for saved in held.values():
                saved.verified = True
        if rng.random() < 0.05:
            store.close()
            store = stepwell.open(path, keep=policy)
            reopened = True
            # Commits have wall times: of pauses between earlier sessions a session knows nothing.
            paused = 0
            for saved in held.values():
                saved.time_ns = walls[saved.step]
                saved.is_old = True
        step = rng.choice([max(held, default=0) + 1, rng.randint(0, 60)])
        if step in held and held[step].pinned:
            continue
        metrics = some_metrics(rng)
        state = {"x": np.full(rng.randint(1, 3000), step, np.float32)}
        store.save(step, state, metrics=metrics or None, if_exists="replace").result()
        view = store[step]
        record = store._backend.writer.read(step)
        now_ns = record.time_ns
        paused += now_ns - last if reopened and last else 0
        last, reopened = now_ns, False
        walls[step] = now_ns
        held[step] = Saved(step, now_ns - paused, view.stored_bytes, record.frame_bytes,
                           metrics)
        added, now = held[step], list(held.values())
        kept = {step} | {s.step for s in now if s.pinned}
        blind = [part for part in parts if is_blind(part, now)]
        others = [part for part in parts if part not in blind and part != Pinned()]
        for part in parts:
            kept |= keeps(part, now, added)
        if blind:
            kept |= {s.step for s in now if s.is_old or not others}
        held = {s.step: s for s in now if s.step in kept}
        assert store.steps() == sorted(held), (policy, added)
        assert store.pinned_steps() == sorted(s.step for s in now if s.pinned)
    store.close()
    with stepwell.open(path, mode="r") as reader:
        assert reader.steps() == sorted(held)
        for step in held:
            assert (reader.load(step)["x"] == step).all()


def test_opening_deletes_nothing(path):
    with stepwell.open(path) as store:
        for step in range(5):
            store.save(step, step)
    with stepwell.open(path, keep=LatestN(1)) as store:
        assert store.steps() == [0, 1, 2, 3, 4]
        store.save(5, 5).result()
        assert store.steps() == [5]


@pytest.mark.parametrize(("keep", "metrics", "text"), [
    (BestN(2, "eval_loss"), {"val_loss": 1.0}, "without a finite metric \"eval_loss\""),
    (LatestN(3), None, "below step 102")])
def test_a_save_that_the_rules_do_not_keep_is_said_once(
        path: Any, caplog: pytest.LogCaptureFixture, keep: Policy, metrics: Any, text: str) -> None:
    with stepwell.open(path) as store:
        for step in (100, 101, 102):
            store.save(step, {"w": np.ones(3)}, metrics={"eval_loss": 0.5})
    with caplog.at_level("WARNING", "stepwell"), stepwell.open(path, keep=keep) as store:
        for step in (50, 51):
            store.save(step, {"w": np.ones(3)}, metrics=metrics).result()
        wait_for(text, caplog)
    assert caplog.text.count(text) == 1
