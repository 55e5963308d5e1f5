# SPDX-License-Identifier: Apache-2.0
"""Branches: stores that share bytes and nothing else."""

from __future__ import annotations

import os
import pathlib
import random
import shutil
import signal
import subprocess
import threading
import time

import numpy as np
import pytest

import stepwell
from stepwell._runtime import durable
from equality import same
from storm import in_a_storm


def state(step: int, fill: int = 0) -> dict[str, object]:
    rng = np.random.default_rng(1000 * fill + step)
    return {"w": rng.integers(0, 2**60, 40_000), "step": step, "fill": fill}


def check(store: stepwell.Store, wanted: dict[int, int]) -> None:
    """`wanted`: of each step which fill it has."""
    assert store.steps() == sorted(wanted)
    for step, fill in wanted.items():
        assert same(store.load(step), state(step, fill)), step
    report = store.verify()
    assert report.ok, report.problems


def test_a_branch_of_a_store_that_was_copied_by_links(path: pathlib.Path) -> None:
    copy = path.with_name("copy")
    with stepwell.open(path) as store:
        for step in range(4):
            store.save(step, state(step)).result()
            if step == 1:
                subprocess.run(["cp", "-al", path, copy], check=True)
        store.branch("b")
        store.branch("c", 2)
        store.save(4, state(4)).result()
        for name, steps in (("b", range(4)), ("c", range(3))):
            with stepwell.open(path, branch=name) as branch:
                assert branch.steps() == list(steps) and not branch.verify().problems
                branch.save(9, state(9)).result()
                for step in branch:
                    assert same(branch.load(step), state(step)), (name, step)
    for where, steps in ((path, range(5)), (copy, range(2))):
        with stepwell.open(where) as store:
            assert store.steps() == list(steps) and not store.verify().problems
            for step in store:
                assert same(store.load(step), state(step)), (where, step)


def test_a_branch_has_the_steps_up_to_where_it_forks(path):
    with stepwell.open(path) as store:
        for step in range(6):
            store.save(step, state(step), metadata={"note": step}).result()
        store.pin(5)
        where = store.branch("wide", 3)
        assert where == str(path / "branches" / "wide") and store.branches() == ["wide"]
        with stepwell.open(path, branch="wide") as branch:
            check(branch, {step: 0 for step in range(4)})
            assert branch[3].metadata == {"note": 3}
            branch.save(4, state(4, 7)).result()
            assert branch.load_or(state(0))[1] == 5
        check(store, {step: 0 for step in range(6)})
        assert store.branch("all").endswith("all")
        with pytest.raises(stepwell.StepExistsError, match="a branch 'all' already"):
            store.branch("all")
        with pytest.raises(stepwell.StepNotFoundError, match="no step 17"):
            store.branch("none", 17)
        for name in ("", "../x", "a/b", ".hidden", "x.stepwell-tmp", 3):
            with pytest.raises(stepwell.InvalidArgumentError, match="a branch's name"):
                store.branch(name)
    with stepwell.open(path, "r", branch="wide") as branch:
        check(branch, {0: 0, 1: 0, 2: 0, 3: 0, 4: 7})
        with pytest.raises(stepwell.PermissionDeniedError):
            branch.branch("more")
    with pytest.raises(stepwell.StoreNotFoundError, match="branch 'wider' does not exist"):
        stepwell.open(path, branch="wider")


def test_a_branch_shares_its_bytes(path):
    with stepwell.open(path, codec="raw") as store:
        for step in range(8):
            store.save(step, {"w": np.random.default_rng(step).random(500_000)}).result()
        before = space(path)
        store.branch("b")
        assert space(path) - before < 1 << 20  # of 32 MB


def space(folder: pathlib.Path) -> int:
    seen = {}
    for each in folder.rglob("*"):
        if each.is_file() and "index" not in each.parts:
            info = each.stat()
            if each.name.endswith(".seg"):
                seen[info.st_ino] = info.st_blocks * 512
    return sum(seen.values())


@pytest.mark.parametrize("seed", range(4))
def test_stores_with_common_segments_go_on_by_themselves(path, seed):
    """Random changes of a store, its branches and branches of these; all are checked, also after
    space was given back, and after each was opened again."""
    chance = random.Random(seed)
    wanted = {"": {}}
    opened = {"": stepwell.open(path)}
    try:
        for turn in range(60):
            name = chance.choice(list(opened))
            store, steps = opened[name], wanted[name]
            act = chance.choice(["save", "save", "save", "delete", "reclaim", "branch", "reopen"])
            if act == "save":
                step = chance.randrange(30)
                store.save(step, state(step, turn), if_exists="replace").result()
                steps[step] = turn
            elif act == "delete" and steps:
                step = chance.choice(list(steps))
                store.delete(step)
                del steps[step]
            elif act == "reclaim":
                store.reclaim()
            elif act == "branch" and steps and len(opened) < 5:
                fork = chance.choice(list(steps))
                made = store.branch(f"b{turn}", fork)
                opened[made] = stepwell.open(made)
                wanted[made] = {step: fill for step, fill in steps.items() if step <= fork}
            elif act == "reopen":
                store.close()
                opened[name] = stepwell.open(name or path)
            for each in opened:
                assert opened[each].steps() == sorted(wanted[each])
        for name, store in opened.items():
            store.reclaim()
            check(store, wanted[name])
    finally:
        for store in opened.values():
            store.close()
    for name, steps in wanted.items():
        with stepwell.open(name or path) as store:
            check(store, steps)
    if len(wanted) > 1:
        # The trunk's death leaves the branches whole, as far as they lie elsewhere.
        name = next(name for name in wanted if name)
        shutil.move(name, str(path) + "-moved")
        shutil.rmtree(path)
        with stepwell.open(str(path) + "-moved") as store:
            check(store, wanted[name])


def test_branches_beside_a_trainer(path):
    """A branch has what was acknowledged before it, whatever is being saved meanwhile."""
    with stepwell.open(path, keep=stepwell.policy.LatestN(6)) as store:
        acknowledged = -1
        stop = threading.Event()

        def train():
            nonlocal acknowledged
            step = 0
            while not stop.is_set():
                store.save(step, state(step)).result()
                acknowledged = step
                step += 1

        trainer = threading.Thread(target=train)
        trainer.start()
        try:
            for number in range(12):
                while acknowledged < 3 * number:
                    time.sleep(0.001)
                least = acknowledged
                try:
                    where = store.branch(f"b{number}")
                except (stepwell.StepNotFoundError, stepwell.Error) as error:
                    assert "try again" in str(error) or "no step" in str(error), error
                    continue
                with stepwell.open(where) as branch:
                    assert branch.latest >= least
                    for step in branch.steps():
                        assert same(branch.load(step), state(step))
                    assert branch.verify().ok
        finally:
            stop.set()
            trainer.join()
        assert len(store.branches()) >= 6


@pytest.mark.parametrize("asked", [None, 5])
def test_steps_are_deleted_while_the_branch_is_made(path, asked, monkeypatch):
    """A trainer that keeps the newest deletes steps: the branch has the newest, or is refused."""
    def save_meanwhile(*arguments, **options):
        monkeypatch.undo()
        for step in range(6, 12):
            store.save(step, state(step)).result()
        durable.make_directories(*arguments, **options)

    with stepwell.open(path, keep=stepwell.policy.LatestN(3)) as store:
        for step in range(6):
            store.save(step, state(step)).result()
        monkeypatch.setattr(durable, "make_directories", save_meanwhile)
        if asked is not None:
            with pytest.raises(stepwell.StepNotFoundError, match="no step 5 to branch from"):
                store.branch("late", asked)
            assert store.branches() == [] and os.listdir(path / "branches") == []
            return
        with stepwell.open(store.branch("late")) as branch:
            assert branch.latest == 11
            assert same(branch.load(11), state(11))


def test_a_process_that_dies_leaves_no_half_branch(path, start_python):
    with stepwell.open(path) as store:
        for step in range(5):
            store.save(step, state(step)).result()
    chance = random.Random(5)
    made = set()
    for turn in range(in_a_storm(3)):
        process = start_python("""
import sys, stepwell
with stepwell.open(sys.argv[1]) as store:
    print("open", flush=True)
    for number in range(10_000):
        store.branch(f"t{sys.argv[2]}n{number}", 3)
        print(number, flush=True)
""", path, turn)
        assert process.stdout.readline() == "open\n"
        time.sleep(chance.random() * 0.3)
        process.send_signal(signal.SIGKILL)
        done = process.stdout.read().split()
        process.wait()
        made |= {f"t{turn}n{number}" for number in done}
    with stepwell.open(path) as store:
        check(store, {step: 0 for step in range(5)})
        there = store.branches()
        assert made <= set(there)
        for name in chance.sample(there, min(len(there), 12)):
            with stepwell.open(path, branch=name) as branch:
                check(branch, {step: 0 for step in range(4)})
        left = {name.split(".stepwell-tmp")[0] for name in os.listdir(path / "branches")} - {*there}
        for name in left:  # another branch of that name takes its place
            store.branch(name, 2)
        assert store.branches() == sorted(os.listdir(path / "branches"))
        assert left <= set(store.branches())


def test_segments_that_branches_ended_are_no_spares_without_bound(path):
    array = np.arange(20_000, dtype=np.float32)
    policy = stepwell.policy.LatestN(2)
    segments = os.path.join(path, "segments")
    with stepwell.open(path, keep=policy) as store:
        store.save(0, array).result()
        for number in range(12):  # each ends a segment
            shutil.rmtree(store.branch(f"b{number}"))
        assert len(os.listdir(segments)) > 12
        for step in range(1, 4):
            store.save(step, array + step).result()
    with stepwell.open(path, keep=policy) as store:
        store.save(4, array + 4).result()
        store.reclaim()
        spares = [name for name in os.listdir(segments) if name.endswith(".spare")]
        assert 0 < len(spares) <= 4
        assert len(os.listdir(segments)) <= 9
        np.testing.assert_array_equal(store.load(4), array + 4)
